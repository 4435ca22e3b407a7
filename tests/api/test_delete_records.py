"""DeleteRecords: its answers, and that a crash does not bring the records back."""

from __future__ import annotations

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.conftest import BrokerFactory
from tests.support.raw_requests import EARLIEST, Requests, versions


def delete(ask: Requests, topic: str, offset: int, *, partition: int = 0, version: int = 2) -> tuple[ErrorCode, int]:
    body = {
        "topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
        "timeout_ms": 10_000,
    }
    answer = ask.ask(ApiKey.DELETE_RECORDS, body, version).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def fill(ask: Requests, topic: str, count: int = 5) -> None:
    for _ in range(count):
        ask.put(topic, b"x")


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
def test_the_log_starts_where_it_was_told(ask: Requests, topic: str, version: int) -> None:
    ask.create(topic)
    fill(ask, topic)
    assert delete(ask, topic, 3, version=version) == (ErrorCode.none, 3)
    assert ask.list_offset(topic, EARLIEST).offset == 3
    assert delete(ask, topic, 1, version=version) == (ErrorCode.none, 3), "never back"
    assert delete(ask, topic, -1, version=version) == (ErrorCode.none, 5), "all there is"
    fill(ask, topic, 1)
    assert ask.list_offset(topic, EARLIEST).offset == 5


@pytest.mark.parametrize("offset", [6, -2])
def test_an_offset_that_is_not_there_yet_or_never(ask: Requests, topic: str, offset: int) -> None:
    ask.create(topic)
    fill(ask, topic)
    assert delete(ask, topic, offset) == (ErrorCode.offset_out_of_range, -1)
    assert ask.list_offset(topic, EARLIEST).offset == 0


def test_unknown_partitions(ask: Requests, topic: str) -> None:
    assert delete(ask, topic, 0) == (ErrorCode.unknown_topic_or_partition, -1)
    ask.create(topic)
    assert delete(ask, topic, 0, partition=7) == (ErrorCode.unknown_topic_or_partition, -1)


def test_not_where_records_are_only_compacted(ask: Requests, topic: str) -> None:
    ask.create(topic, cleanup_policy="compact")
    assert delete(ask, topic, 0) == (ErrorCode.policy_violation, -1)


def test_nor_in_internal_topics(ask: Requests) -> None:
    assert delete(ask, "__consumer_offsets", 0) == (ErrorCode.invalid_topic_exception, -1)


def test_what_was_deleted_stays_deleted_after_a_crash(broker_factory: BrokerFactory) -> None:
    broker = broker_factory()
    with Requests(broker.bootstrap) as ask:
        ask.create("gone")
        fill(ask, "gone")
        assert delete(ask, "gone", 3) == (ErrorCode.none, 3)
    broker.kill()
    broker.start()
    with Requests(broker.bootstrap) as ask:
        assert ask.list_offset("gone", EARLIEST).offset == 3
