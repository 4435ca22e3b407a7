"""ListOffsets: every version, the special timestamps, and look-up by time."""

from __future__ import annotations

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.raw_requests import EARLIEST, LATEST, Requests, batch, versions

BEGIN = 1_700_000_000_000


def fill(ask: Requests, topic: str) -> None:
    """Offsets 0–3 at 0, 10, 30 and 20 ms after BEGIN."""
    ask.create(topic)
    for delay in (0, 10, 30, 20):
        answer = ask.produce({(topic, 0): batch(b"x", timestamp=BEGIN + delay)})
        assert answer[topic, 0].error_code is ErrorCode.none


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS)[1:])
def test_every_version_knows_both_ends_and_times_between(ask: Requests, topic: str, version: int) -> None:
    fill(ask, topic)
    found = {
        timestamp: (answer.error_code, answer.offset, answer.timestamp)
        for timestamp in (EARLIEST, LATEST, BEGIN + 5, BEGIN + 31)
        for answer in [ask.list_offset(topic, timestamp, version=version)]
    }
    assert found == {
        EARLIEST: (ErrorCode.none, 0, -1),
        LATEST: (ErrorCode.none, 4, -1),
        BEGIN + 5: (ErrorCode.none, 1, BEGIN + 10),
        BEGIN + 31: (ErrorCode.none, -1, -1),
    }


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(-3, 2), (-4, 0), (-5, -1), (-6, -1), (0, 0), (BEGIN, 0), (BEGIN + 20, 2), (1 << 62, -1)],
    ids=["max", "earliest-local", "latest-tiered", "earliest-pending", "zero", "exact", "first-at-or-after", "future"],
)
def test_a_timestamp_finds_its_offset(ask: Requests, topic: str, timestamp: int, offset: int) -> None:
    fill(ask, topic)
    answer = ask.list_offset(topic, timestamp)
    assert (answer.error_code, answer.offset) == (ErrorCode.none, offset)


@pytest.mark.parametrize("timestamp", [EARLIEST, LATEST, -3, 0])
def test_an_empty_partition(ask: Requests, topic: str, timestamp: int) -> None:
    ask.create(topic)
    answer = ask.list_offset(topic, timestamp)
    expected = 0 if timestamp in (EARLIEST, LATEST) else -1
    assert (answer.error_code, answer.offset) == (ErrorCode.none, expected)


@pytest.mark.parametrize(("timestamp", "version"), [(-77, None), (-7, 11), (-6, 10), (-5, 8)])
def test_a_timestamp_without_meaning_is_refused(ask: Requests, topic: str, timestamp: int, version: int | None) -> None:
    ask.create(topic)
    assert ask.list_offset(topic, timestamp, version=version).error_code is ErrorCode.unsupported_version


def test_an_unknown_partition_gets_its_own_error(ask: Requests, topic: str) -> None:
    ask.create(topic)
    assert ask.list_offset(topic, LATEST, partition=5).error_code is ErrorCode.unknown_topic_or_partition
    assert ask.list_offset("no-such-topic", LATEST).error_code is ErrorCode.unknown_topic_or_partition


def test_a_leader_epoch_of_the_future_is_unknown(ask: Requests, topic: str) -> None:
    ask.create(topic)
    asked = {"partition_index": 0, "current_leader_epoch": 9, "timestamp": LATEST}
    answer = ask.ask(ApiKey.LIST_OFFSETS, {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]})
    assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_leader_epoch
