"""Fetch: every version by name and id, the long poll, the limits, epochs, and slow readers."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, batch, fetch_body, records_of, versions
from tests.support.waiting import eventually

BY_NAME = [version for version in versions(ApiKey.FETCH) if version < 13]
BY_ID = [version for version in versions(ApiKey.FETCH) if version >= 13]


def by(version: int, name: str, topic_id: uuid.UUID) -> str | uuid.UUID:
    return name if version < 13 else topic_id


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_every_version_gives_records_and_watermarks(ask: Requests, topic: str, version: int) -> None:
    topic_id = ask.create(topic, 2)
    ask.put(topic, b"a", b"b")
    wanted = [ask_for(by(version, topic, topic_id), 0, partition) for partition in (0, 1)]
    full, empty = ask.fetch(wanted, version=version)
    assert (full.error_code, full.high_watermark, full.last_stable_offset) == (ErrorCode.none, 2, 2)
    assert [record.value for record in records_of(full)] == [b"a", b"b"]
    assert (empty.error_code, empty.high_watermark, empty.records or b"") == (ErrorCode.none, 0, b"")


@pytest.mark.parametrize("version", BY_NAME)
def test_an_unknown_topic_or_partition_by_name(ask: Requests, topic: str, version: int) -> None:
    ask.create(topic)
    found = ask.fetch([ask_for("no-such-topic"), ask_for(topic, 0, 1)], version=version)
    assert [p.error_code for p in found] == [ErrorCode.unknown_topic_or_partition] * 2


@pytest.mark.parametrize("version", BY_ID)
@pytest.mark.parametrize("topic_id", [uuid.uuid4(), uuid.UUID(int=0)], ids=["unknown", "zero"])
def test_an_unknown_topic_id(ask: Requests, topic: str, version: int, topic_id: uuid.UUID) -> None:
    (found,) = ask.fetch([ask_for(topic_id)], version=version)
    assert found.error_code is ErrorCode.unknown_topic_id


def test_a_recreated_topic_is_not_found_by_its_old_id(ask: Requests, topic: str) -> None:
    old = ask.create(topic)
    ask.put(topic, b"old")
    assert ask.delete(topic) is ErrorCode.none
    new = ask.create(topic)
    assert [p.error_code for p in ask.fetch([ask_for(old), ask_for(new)])] == [
        ErrorCode.unknown_topic_id,
        ErrorCode.none,
    ]


@pytest.mark.parametrize("offset", [-1, 3, 1 << 62])
def test_an_offset_outside_the_log_is_out_of_range_at_once(ask: Requests, topic: str, offset: int) -> None:
    ask.create(topic)
    ask.put(topic, b"a", b"b")
    (found,) = ask.fetch([ask_for(topic, offset)], version=12, max_wait=20_000)
    assert found.error_code is ErrorCode.offset_out_of_range


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, ErrorCode.none), (0, ErrorCode.none), (1, ErrorCode.unknown_leader_epoch)]
)
def test_the_leader_epoch_is_checked(ask: Requests, topic: str, epoch: int, code: ErrorCode) -> None:
    ask.create(topic)
    (found,) = ask.fetch([ask_for(topic, epoch=epoch)], version=12)
    assert found.error_code is code


def test_read_committed_sees_everything_without_transactions(ask: Requests, topic: str) -> None:
    ask.create(topic)
    ask.put(topic, b"a")
    (found,) = ask.fetch([ask_for(topic)], version=12, isolation_level=1)
    assert len(records_of(found)) == 1
    assert found.aborted_transactions == ()


class TestLimits:
    def test_partition_max_bytes_holds_but_one_batch_always_comes(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        size = len(batch(b"x" * 100))
        for _ in range(10):
            ask.put(topic, b"x" * 100)
        counts = [
            len(records_of(ask.fetch([ask_for(topic, max_bytes=limit)], version=12)[0]))
            for limit in (0, 1, size, 3 * size + 1, 100 * size)
        ]
        assert counts == [1, 1, 1, 3, 10]

    def test_max_bytes_holds_over_many_partitions_with_at_least_one_batch(self, ask: Requests, topic: str) -> None:
        ask.create(topic, 4)
        size = len(batch(b"x" * 100))
        for partition in range(4):
            ask.put(topic, b"x" * 100, partition=partition)
        wanted = [ask_for(topic, 0, partition) for partition in range(4)]
        for limit, expected in ((0, 1), (1, 1), (2 * size, 2), (2 * size + 1, 2), (50 * size, 4)):
            found = ask.fetch(wanted, version=12, max_bytes=limit)
            assert sum(len(records_of(p)) for p in found) == expected, limit

    def test_a_batch_larger_than_max_bytes_comes_whole_if_it_is_the_first(self, ask: Requests, topic: str) -> None:
        ask.create(topic, 2)
        ask.put(topic, b"small")
        ask.put(topic, b"x" * 500_000, partition=1)
        first, second = ask.fetch([ask_for(topic), ask_for(topic, 0, 1)], version=12, max_bytes=1000)
        assert (len(records_of(first)), len(records_of(second))) == (1, 0)
        second, first = ask.fetch([ask_for(topic, 0, 1), ask_for(topic)], version=12, max_bytes=1000)
        assert (len(records_of(second)), len(records_of(first))) == (1, 0)


class TestLongPoll:
    def test_it_lasts_as_long_as_asked_when_nothing_comes(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        started = time.monotonic()
        (found,) = ask.fetch([ask_for(topic)], version=12, max_wait=300)
        assert 0.29 < time.monotonic() - started < 5
        assert (found.error_code, found.records or b"") == (ErrorCode.none, b"")

    def test_an_append_ends_it_at_once(self, ask: Requests, broker: BrokerProcess, topic: str) -> None:
        ask.create(topic)
        delays, asked_when_there = [], []
        with Requests(broker.bootstrap) as producer:
            for number in range(20):
                ask.send(ApiKey.FETCH, fetch_body([ask_for(topic, number)], max_wait=60_000), 12)
                producer.metadata(topic)  # by its answer the fetch waits
                started = time.monotonic()
                producer.put(topic, b"x")
                answer = ask.receive(ApiKey.FETCH, 12)
                delays.append(time.monotonic() - started)
                assert len(records_of(answer.responses[0].partitions[0])) == 1
                started = time.monotonic()
                ask.fetch([ask_for(topic, number)], version=12)
                asked_when_there.append(time.monotonic() - started)
        # A busy machine may hold up some; and one that is slow takes its time for a fetch that need not wait, too.
        assert sorted(delays)[5] < 0.05 + 10 * sorted(asked_when_there)[5], (delays, asked_when_there)

    def test_an_append_that_comes_in_the_same_moment_is_not_missed(
        self, ask: Requests, broker: BrokerProcess, topic: str
    ) -> None:
        ask.create(topic)
        with Requests(broker.bootstrap) as producer:
            for number in range(100):
                go = threading.Barrier(2)
                thread = threading.Thread(target=lambda go=go: (go.wait(), producer.put(topic, b"x")))
                thread.start()
                go.wait()
                (found,) = ask.fetch([ask_for(topic, number)], version=12, max_wait=60_000)  # `ask` waits for 30 s
                thread.join()
                assert len(records_of(found)) == 1

    def test_min_bytes_is_waited_for(self, ask: Requests, broker: BrokerProcess, topic: str) -> None:
        ask.create(topic, 2)
        size = len(batch(b"x" * 100))
        wanted = [ask_for(topic, 0, partition) for partition in (0, 1)]
        ask.send(ApiKey.FETCH, fetch_body(wanted, max_wait=20_000, min_bytes=3 * size), 12)
        with Requests(broker.bootstrap) as producer:
            for partition in (0, 1, 0):
                producer.put(topic, b"x" * 100, partition=partition)
        answer = ask.receive(ApiKey.FETCH, 12)
        assert sum(len(records_of(p)) for t in answer.responses for p in t.partitions) == 3

    def test_records_of_a_rolled_segment_are_not_held_back_for_min_bytes(self, ask: Requests, topic: str) -> None:
        ask.create(topic, segment_bytes="2000", index_interval_bytes="0")
        for _ in range(30):
            ask.put(topic, b"x" * 100)
        (found,) = ask.fetch([ask_for(topic)], version=12, max_wait=60_000, min_bytes=3000)  # `ask` waits for 30 s
        assert records_of(found)

    def test_a_deleted_topic_ends_it(self, ask: Requests, broker: BrokerProcess, topic: str) -> None:
        ask.create(topic)
        ask.send(ApiKey.FETCH, fetch_body([ask_for(topic)], max_wait=20_000), 12)
        with Requests(broker.bootstrap) as other:
            assert other.delete(topic) is ErrorCode.none
        answer = ask.receive(ApiKey.FETCH, 12)
        assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition

    def test_later_requests_of_the_connection_wait_their_turn(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        ask.send(ApiKey.FETCH, fetch_body([ask_for(topic)], max_wait=200), 12)
        ask.send(ApiKey.METADATA, {"topics": [{"name": topic}]})
        ask.receive(ApiKey.FETCH, 12)
        assert ask.receive(ApiKey.METADATA).topics[0].name == topic


def test_a_slow_reader_gets_what_was_there_although_it_is_rolled_and_deleted_meanwhile(
    ask: Requests, broker: BrokerProcess, topic: str
) -> None:
    ask.create(topic, segment_bytes="8000000", retention_bytes="1", file_delete_delay_ms="0")
    sent = [bytes([65 + number]) * 900_000 for number in range(8)]
    for value in sent:
        ask.put(topic, value)
    ask.send(ApiKey.FETCH, fetch_body([ask_for(topic, max_bytes=50 << 20)]), 12)
    ask.read(4)  # the answer is on its way; nobody reads on
    with Requests(broker.bootstrap) as other:
        for _ in range(9):
            other.put(topic, b"z" * 900_000)
        directory = broker.data_dir / "broker" / f"{topic}-0"
        assert (directory / f"{0:020}.log").exists()
        assert other.delete(topic) is ErrorCode.none
        eventually(lambda: not directory.exists())
    data = bytearray()
    ask.socket.settimeout(60)
    while len(data) < 900_000 * 8:
        data += ask.socket.recv(1 << 20)
    assert all(value in data for value in sent)
