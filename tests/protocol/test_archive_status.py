"""How a broker tells what it knows of its archives."""

from __future__ import annotations

import json

import pytest

from broker.protocol.archive_status import ArchiveStatus, decode_statuses, encode_statuses
from broker.protocol.topic_partition import TopicPartition

TP = TopicPartition("flights", 3)


def test_what_a_leader_knows_comes_back_without_the_offsets() -> None:
    known = ArchiveStatus(TP, archived_bytes=70, lag_bytes=0, lag_segments=0, problem="the store is full")
    unread = ArchiveStatus(TopicPartition("flights", 4), lag_bytes=9, lag_segments=1)
    text = encode_statuses([known._replace(start=1, archived_end=5, local_start=3, end=8), unread])
    assert decode_statuses(text) == {TP: known, unread.tp: unread}
    assert json.loads(text)[1] == {
        "topic": "flights",
        "partition": 4,
        "archivedBytes": None,
        "lagBytes": 9,
        "lagSegments": 1,
        "problem": "",
    }


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"topic": "t"}]', "7", "null"])
def test_what_no_broker_tells_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode_statuses(text)
