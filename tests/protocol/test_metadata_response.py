"""The Metadata response put together from encoded topics equals kio's, byte for byte, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, encode_response, known_versions
from broker.protocol.metadata_response import encode_metadata, encode_topic

LOW, HIGH = known_versions(ApiKey.METADATA)

BODY = {
    "brokers": [{"node_id": 7, "host": "a.example", "port": 9092, "rack": None}],
    "cluster_id": "cluster",
    "controller_id": 7,
    "cluster_authorized_operations": 1234,
}


def topic(number: int) -> dict[str, Any]:
    partition = {
        "error_code": ErrorCode.none,
        "partition_index": number,
        "leader_id": 7,
        "leader_epoch": 3,
        "replica_nodes": (7, 8),
        "isr_nodes": (7,),
        "offline_replicas": (8,),
    }
    return {
        "error_code": ErrorCode.none,
        "name": f"topic-{number}",
        "topic_id": uuid.UUID(int=number),
        "is_internal": False,
        "partitions": [partition] * (number % 3),
        "topic_authorized_operations": -(2**31),
    }


@pytest.mark.parametrize("version", range(LOW, HIGH + 1))
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 300])
def test_the_parts_make_up_the_whole(version: int, count: int) -> None:
    request = Request(ApiKey.METADATA, version, 42, "c", None, 0)
    topics = [topic(number) for number in range(count)]
    parts = encode_metadata(request, BODY, [encode_topic(version, one) for one in topics])
    assert b"".join(parts) == encode_response(request, {**BODY, "topics": topics})
