"""Metadata values: one answer put onto another, and the error for what is not there."""

from __future__ import annotations

import pickle
import uuid

import pytest

from broker.client.cluster_metadata import (
    Metadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
    UnknownTopic,
    parse_metadata,
)
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_response, encode_response


def topic(name: str) -> TopicMetadata:
    return TopicMetadata(name, None, False, {})


def test_an_answer_about_some_topics_leaves_the_others() -> None:
    old = Metadata("c", 0, {}, {"a": topic("a"), "b": topic("b")}, {"gone": ErrorCode.unknown_topic_or_partition})
    new = Metadata("c", 1, {}, {}, {"a": ErrorCode.unknown_topic_or_partition})
    merged = old.updated(new, ["a", "gone"])
    assert merged.controller_id == 1
    assert set(merged.topics) == {"b"}
    assert set(merged.errors) == {"a"}


def led(topic_id: uuid.UUID | None, *leaders: tuple[int, int]) -> Metadata:
    """A topic whose partitions have these leaders and leader epochs."""
    partitions = {i: PartitionMetadata(leader, epoch, (), ()) for i, (leader, epoch) in enumerate(leaders)}
    return Metadata(topics={"t": TopicMetadata("t", topic_id, False, partitions)})


@pytest.mark.parametrize("asked", [["t"], None])
def test_what_is_older_in_an_answer_is_passed_over(asked: list[str] | None) -> None:
    """As in Java's `Metadata`, which keeps the leader of the newest epoch; partitions do not go, either."""
    one = uuid.uuid4()
    merged = led(one, (1, 5), (2, 5), (3, 0)).updated(led(one, (9, 4), (9, 6)), asked)
    assert {i: (p.leader, p.leader_epoch) for i, p in merged.topics["t"].partitions.items()} == {
        0: (1, 5),
        1: (9, 6),
        2: (3, 0),
    }
    assert list(led(one, (1, 5)).updated(led(one, (1, 5), (2, 0)), asked).topics["t"].partitions) == [0, 1]


@pytest.mark.parametrize("new", [uuid.uuid4(), None])
def test_a_topic_of_another_id_is_another_topic(new: uuid.UUID | None) -> None:
    """Nor is one of no id known to be the same."""
    newer = led(new, (9, 0))
    assert led(uuid.uuid4(), (1, 5), (2, 5)).updated(newer, ["t"]) == newer


@pytest.mark.parametrize("version", range(1, 13))
def test_every_version_is_read(version: int) -> None:
    partition = {"partition_index": 1, "leader_id": 5, "replica_nodes": [5], "isr_nodes": [5], "leader_epoch": 3}
    body = {
        "brokers": [{"node_id": 5, "host": "h", "port": 9092, "rack": None}],
        "cluster_id": "c",
        "controller_id": 5,
        "topics": [
            {"name": "t", "is_internal": True, "partitions": [partition]},
            {"name": "missing", "error_code": ErrorCode.unknown_topic_or_partition},
        ],
    }
    payload = encode_response(Request(ApiKey.METADATA, version, 1, "c", None, 0), body)[4:]
    metadata = parse_metadata(decode_response(ApiKey.METADATA, version, payload)[1])
    assert str(metadata.brokers[5]) == "broker 5 at h:9092"
    assert metadata.topics["t"].internal
    assert metadata.topics["t"].partitions[1].leader == 5
    assert metadata.topics["t"].partitions[1].leader_epoch == (3 if version >= 7 else -1)
    assert metadata.errors == {"missing": ErrorCode.unknown_topic_or_partition}


def test_an_unknown_topic_is_a_broker_error_that_is_not_tried_again_and_survives_a_worker() -> None:
    error = pickle.loads(pickle.dumps(UnknownTopic("no topic 'x'")))
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.unknown_topic_or_partition
    assert not error.retriable
    assert "no topic 'x'" in str(error)


def test_an_ipv6_address_of_a_broker_stands_in_brackets() -> None:
    assert str(Node(1, "::1", 9092)) == "broker 1 at [::1]:9092"
    assert str(Node(1, "kafka-1", 9092)) == "broker 1 at kafka-1:9092"
