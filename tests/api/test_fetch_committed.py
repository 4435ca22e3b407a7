"""Isolation level read_committed: Fetch and ListOffsets up to the last stable offset; DescribeProducers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import LATEST, Requests, ask_for, batch, fetch_body, records_of, versions
from tests.support.raw_transactions import RawProducer

OK = ErrorCode.none


@pytest.fixture
def producer(ask: Requests, broker: BrokerProcess, topic: str) -> RawProducer:
    """A producer in a transaction with one record, at offset 1, after a plain record."""
    ask.create(topic, 2)
    put(ask, topic, b"plain")
    producer = RawProducer(ask, topic).begin()
    assert producer.add((topic, 0), (topic, 1)) == [OK, OK]
    assert producer.send(topic, b"first") is OK
    return producer


def put(ask: Requests, topic: str, value: bytes) -> None:
    """A plain record of now, as markers are: an older one would make a marker begin a new segment."""
    records = batch(value, timestamp=time.time_ns() // 1_000_000)
    assert ask.produce({(topic, 0): records})[topic, 0].error_code is OK


def fetch(ask: Requests, topic: str, offset: int = 0, *, isolation_level: int = 1, version: int = 12) -> Any:
    (found,) = ask.fetch([ask_for(topic, offset)], version=version, isolation_level=isolation_level)
    assert found.error_code is OK, found
    return found


def aborted(found: Any) -> list[tuple[int, int]]:
    return [(one.producer_id, one.first_offset) for one in found.aborted_transactions]


class TestFetch:
    @pytest.mark.parametrize("version", [version for version in versions(ApiKey.FETCH) if version <= 12])
    def test_every_version_stops_at_the_last_stable_offset(
        self, ask: Requests, producer: RawProducer, topic: str, version: int
    ) -> None:
        put(ask, topic, b"behind")
        found = fetch(ask, topic, version=version)
        assert (found.high_watermark, found.last_stable_offset) == (3, 1)
        assert [record.value for record in records_of(found)] == [b"plain"]
        producer.end(commit=False)
        found = fetch(ask, topic, version=version)
        assert (found.high_watermark, found.last_stable_offset) == (4, 4)
        assert aborted(found) == [(producer.producer_id, 1)]

    def test_others_see_everything_and_are_told_of_no_abort(
        self, ask: Requests, producer: RawProducer, topic: str
    ) -> None:
        producer.end(commit=False)
        found = fetch(ask, topic, isolation_level=0)
        assert [record.value for record in records_of(found)] == [b"plain", b"first"]
        assert found.aborted_transactions is None
        assert found.last_stable_offset == 3

    def test_only_what_touches_the_fetched_range_is_named(
        self, ask: Requests, producer: RawProducer, topic: str
    ) -> None:
        producer.end(commit=False)
        assert aborted(fetch(ask, topic, 2)) == [(producer.producer_id, 1)]
        assert aborted(fetch(ask, topic, 3)) == []

    def test_from_the_last_stable_offset_on_there_is_nothing(
        self, ask: Requests, producer: RawProducer, topic: str
    ) -> None:
        for offset in (1, 2):
            assert not fetch(ask, topic, offset).records
        (beyond,) = ask.fetch([ask_for(topic, 3)], version=12, isolation_level=1)
        assert beyond.error_code is ErrorCode.offset_out_of_range


class TestWaiting:
    """A read_committed fetch waits for the end of a transaction. Records of open transactions do not wake it."""

    def wait(self, ask: Requests, broker: BrokerProcess, topic: str, offset: int, min_bytes: int = 1) -> Requests:
        waiting = Requests(broker.bootstrap)
        wanted = [ask_for(topic, offset)]
        body = fetch_body(wanted, max_wait=20_000, min_bytes=min_bytes, isolation_level=1)
        waiting.send(ApiKey.FETCH, body, 12)
        ask.metadata(topic)  # by its answer the fetch waits
        return waiting

    def answer(self, waiting: Requests) -> Any:
        found = waiting.receive(ApiKey.FETCH, 12).responses[0].partitions[0]
        waiting.close()
        return found

    @pytest.mark.parametrize("commit", [True, False])
    def test_the_marker_ends_the_wait(
        self, ask: Requests, broker: BrokerProcess, producer: RawProducer, topic: str, commit: bool
    ) -> None:
        waiting = self.wait(ask, broker, topic, 1)
        producer.send(topic, b"second")
        assert producer.end(commit=commit) is OK
        found = self.answer(waiting)
        assert (found.last_stable_offset, aborted(found)) == (4, [] if commit else [(producer.producer_id, 1)])
        assert [record.value for record in records_of(found)] == [b"first", b"second"]

    def test_all_that_the_marker_frees_counts(
        self, ask: Requests, broker: BrokerProcess, producer: RawProducer, topic: str
    ) -> None:
        waiting = self.wait(ask, broker, topic, 1, min_bytes=300)
        producer.send(topic, b"x" * 300)
        producer.end()
        assert len(records_of(self.answer(waiting))) == 2

    def test_another_transaction_that_is_still_open_keeps_it_waiting(
        self, ask: Requests, broker: BrokerProcess, producer: RawProducer, topic: str
    ) -> None:
        other = RawProducer(ask, topic + "-other").begin()
        other.add((topic, 0))
        other.send(topic, b"other")
        waiting = self.wait(ask, broker, topic, 1)
        other.end()
        assert not fetch(ask, topic, 1).records
        producer.end()
        assert self.answer(waiting).last_stable_offset == 5

    def test_plain_records_end_the_wait_when_nothing_is_open(
        self, ask: Requests, broker: BrokerProcess, producer: RawProducer, topic: str
    ) -> None:
        producer.end()
        waiting = self.wait(ask, broker, topic, 3)
        put(ask, topic, b"more")
        assert len(records_of(self.answer(waiting))) == 1


@pytest.mark.parametrize("version", [version for version in versions(ApiKey.LIST_OFFSETS) if version >= 2])
def test_the_latest_committed_offset_is_the_last_stable_one(
    ask: Requests, producer: RawProducer, topic: str, version: int
) -> None:
    def latest(isolation_level: int) -> int:
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
        body = {
            "replica_id": -1,
            "isolation_level": isolation_level,
            "topics": [{"name": topic, "partitions": [asked]}],
            "timeout": 1000,
        }
        found = ask.ask(ApiKey.LIST_OFFSETS, body, version).topics[0].partitions[0]
        assert found.error_code is OK
        return int(found.offset)

    assert (latest(0), latest(1)) == (2, 1)
    producer.end()
    assert (latest(0), latest(1)) == (3, 3)


class TestDescribeProducers:
    def describe(self, ask: Requests, topic: str, *partitions: int) -> Any:
        body = {"topics": [{"name": topic, "partition_indexes": partitions}]}
        return ask.ask(ApiKey.DESCRIBE_PRODUCERS, body).topics[0].partitions

    def test_an_open_transaction_is_shown_with_its_first_offset(
        self, ask: Requests, producer: RawProducer, topic: str
    ) -> None:
        with_one, without = self.describe(ask, topic, 0, 1)
        assert (with_one.error_code, without.error_code, without.active_producers) == (OK, OK, ())
        (found,) = with_one.active_producers
        assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
        assert (found.last_sequence, found.current_txn_start_offset, found.coordinator_epoch) == (0, 1, -1)
        assert found.last_timestamp > 1_700_000_000_000

    def test_an_ended_one_leaves_its_producer(self, ask: Requests, producer: RawProducer, topic: str) -> None:
        producer.end()
        ((found,),) = [partition.active_producers for partition in self.describe(ask, topic, 0)]
        assert found.current_txn_start_offset == -1
        assert found.coordinator_epoch >= 0

    def test_a_partition_that_does_not_exist(self, ask: Requests, topic: str) -> None:
        (found,) = self.describe(ask, topic + "-none", 7)
        assert (found.error_code, found.partition_index) == (ErrorCode.unknown_topic_or_partition, 7)
