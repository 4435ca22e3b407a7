"""Reading a partition as bytes: what comes, where it ends, what goes wrong, and the fetch sent ahead."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from broker.client.admin import Admin
from broker.client.batch_producer import produce_batches
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.fetch_protocol import FetchFrom, FetchLimits
from broker.client.fetcher import Fetched, Fetcher, FetchStream, end_of_batches, fetch_together
from broker.client.leader_fetches import LeaderFetches
from broker.client.partition_offsets import NO_EPOCH, Position
from broker.errors import BrokerError, ConnectionFailed, CorruptBatch, ErrorCode, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.builder import BatchBuilder
from broker.records.record import decode_records
from tests.client.conftest import TopicMaker
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.waiting import eventually

RECORDS, PER_BATCH = 1000, 10


def batch(first: int, count: int = PER_BATCH) -> bytes:
    builder = BatchBuilder(max_bytes=1 << 20)
    for number in range(first, first + count):
        assert builder.append(1000 + number, None, b"%06d" % number)
    return builder.build()


def values(fetched: Fetched, low: int = 0) -> list[int]:
    return [int(record.value or b"") for record in decode_records(fetched.records, low=low)]


@pytest.fixture
def tp(cluster: Cluster, make_topic: TopicMaker) -> TopicPartition:
    """A partition of 1000 records in batches of ten, each with its offset for a value."""
    tp = TopicPartition(make_topic(2), 1)
    produce_batches(cluster, tp, [batch(first) for first in range(0, RECORDS, PER_BATCH)])
    return tp


@pytest.fixture
def fetcher(cluster: Cluster, tp: TopicPartition) -> Iterator[Fetcher]:
    with Fetcher(cluster, tp, max_wait_ms=50) as opened:
        yield opened


def test_a_joint_fetch_over_an_open_connection_begins_no_thread(
    cluster: Cluster, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.connection(cluster.leader(tp))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail(f"{thread} was begun"))
    assert values(fetch_together(cluster, {tp: 0}, max_bytes=1 << 20)[tp])[:2] == [0, 1]


def test_a_fetch_brings_whole_batches_and_says_where_to_go_on(fetcher: Fetcher) -> None:
    fetched = fetcher.fetch(0)
    assert values(fetched) == list(range(fetched.next_offset))
    assert fetched.high_watermark == fetched.last_stable_offset == RECORDS
    assert fetched.log_start_offset == 0
    assert fetched.aborted == []
    assert isinstance(fetched.records, memoryview)


def test_a_fetch_in_the_middle_of_a_batch_brings_the_batch(fetcher: Fetcher) -> None:
    fetched = fetcher.fetch(995)
    assert values(fetched) == list(range(990, 1000))
    assert values(fetched, low=995) == list(range(995, 1000))


def test_nothing_new_is_no_records_after_the_wait(fetcher: Fetcher) -> None:
    fetched = fetcher.fetch(RECORDS)
    assert len(fetched.records) == 0
    assert fetched.next_offset == RECORDS


def test_a_batch_larger_than_the_limit_still_comes_whole(cluster: Cluster, tp: TopicPartition) -> None:
    with Fetcher(cluster, tp, max_bytes=1) as fetcher:
        assert values(fetcher.fetch(20)) == list(range(20, 30))


def test_an_offset_beyond_the_log_is_out_of_range(fetcher: Fetcher) -> None:
    with pytest.raises(BrokerError, match=rf"fetching {fetcher.tp} at offset 1001") as raised:
        fetcher.fetch(RECORDS + 1)
    assert raised.value.code is ErrorCode.offset_out_of_range
    assert values(fetcher.fetch(990)) == list(range(990, 1000)), "the fetcher goes on"


def test_a_topic_that_is_deleted_is_missed_by_name(cluster: Cluster, tp: TopicPartition, fetcher: Fetcher) -> None:
    fetcher.fetch(0)
    Admin(cluster).delete_topics([tp.topic])

    def what_is_missed() -> str:
        try:
            fetcher.fetch(0)  # its leader may have yet to hear of it
        except UnknownTopic as error:
            return str(error)
        return ""

    eventually(lambda: tp.topic in what_is_missed())


def test_a_prefetched_answer_is_taken_by_the_fetch_of_that_offset(fetcher: Fetcher) -> None:
    fetcher.prefetch(10)
    assert values(fetcher.fetch(10))[0] == 10


def test_a_prefetch_of_another_offset_is_thrown_away(fetcher: Fetcher) -> None:
    fetcher.prefetch(10)
    assert values(fetcher.fetch(500))[0] == 500


def test_a_prefetch_that_fails_is_reported_by_the_fetch(fetcher: Fetcher) -> None:
    fetcher.prefetch(RECORDS + 5)
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        fetcher.fetch(RECORDS + 5)


def test_a_closed_fetcher_connects_anew(fetcher: Fetcher) -> None:
    fetcher.fetch(0)
    fetcher.close()
    fetcher.close()
    assert values(fetcher.fetch(990)) == list(range(990, 1000))


@pytest.mark.parametrize("max_bytes", [1, 300, 5_000, 1 << 20])
def test_a_stream_gives_every_batch_of_a_range_once(cluster: Cluster, tp: TopicPartition, max_bytes: int) -> None:
    with Fetcher(cluster, tp, max_bytes=max_bytes) as fetcher:
        stream = FetchStream(fetcher, 15, RECORDS - 5)
        read = [number for fetched in stream for number in values(fetched)]
    assert read == list(range(10, RECORDS))
    assert stream.position == RECORDS


@pytest.fixture
def growing(cluster: Cluster, make_topic: TopicMaker) -> TopicPartition:
    """A hundred batches of 10 KB, with a record each, then five of 300 KB."""
    tp = TopicPartition(make_topic(1), 0)
    for size, count in ((10_000, 100), (300_000, 5)):
        made = []
        for _ in range(count):
            builder = BatchBuilder(max_bytes=1 << 20)
            builder.append(1000, None, bytes(size))
            made.append(builder.build())
        produce_batches(cluster, tp, made)
    return tp


def test_a_short_range_is_not_paid_for_with_all_that_follows(cluster: Cluster, growing: TopicPartition) -> None:
    """As those of micro-batches: the size of records is known from the range before."""
    with Fetcher(cluster, growing, max_bytes=1 << 20, max_wait_ms=50) as fetcher:
        (first,) = FetchStream(fetcher, 0, 10)
        assert len(first.records) > 900_000
        (second,) = FetchStream(fetcher, 10, 20)
        assert 20 <= second.next_offset < 30
        assert 100_000 <= len(second.records) < 250_000
        last = list(FetchStream(fetcher, 98, 105))
        assert last[-1].next_offset == 105, "the records have become larger, so more answers are needed"
        assert len(fetcher.fetch(0).records) > 900_000, "without an end as many as one answer may hold"


def test_a_short_range_does_not_ask_for_less_than_the_broker_is_to_wait_for(
    broker: Kafka, growing: TopicPartition
) -> None:
    patient = {"fetch.min.bytes": "500000"}
    with Cluster(broker.bootstrap, patient) as cluster, Fetcher(cluster, growing, max_bytes=1 << 20) as fetcher:
        list(FetchStream(fetcher, 0, 10))
        (found,) = FetchStream(fetcher, 10, 20)
        assert len(found.records) > 490_000


def test_a_stream_of_an_empty_range_asks_nothing(fetcher: Fetcher) -> None:
    assert list(FetchStream(fetcher, 7, 7)) == []


def test_a_stream_waits_for_records_that_are_yet_to_come(
    cluster: Cluster, tp: TopicPartition, fetcher: Fetcher
) -> None:
    writer = threading.Timer(0.2, produce_batches, (cluster, tp, [batch(RECORDS)]))
    writer.start()
    read = [number for fetched in FetchStream(fetcher, 990, RECORDS + 10) for number in values(fetched)]
    writer.join()
    assert read == list(range(990, RECORDS + 10))


def test_a_stream_that_stalls_says_where(fetcher: Fetcher) -> None:
    stalled = rf"{fetcher.tp}: nothing came at offset 1000 .* ends at 1005, the high watermark is 1000"
    with pytest.raises(RequestTimedOut, match=stalled):
        list(FetchStream(fetcher, 995, 1005, stall_s=2))


def test_a_stream_waits_for_what_a_broker_gets_from_its_archive(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without records says by its offsets that there are some."""
    cold = iter([True] * 5)
    fetch, now = fetcher.fetch, itertools.count(step=1.5)

    def fetch_cold(offset: int, *, until: int | None) -> Fetched:
        found = fetch(offset, until=until)
        return found._replace(records=memoryview(b""), next_offset=offset) if next(cold, False) else found

    monkeypatch.setattr(fetcher, "fetch", fetch_cold)
    monkeypatch.setattr("broker.client.fetcher.time", SimpleNamespace(monotonic=lambda: next(now)))
    assert sum(len(values(fetched)) for fetched in FetchStream(fetcher, 0, RECORDS, stall_s=2)) == RECORDS


def test_a_stream_without_end_yields_the_silence_too(fetcher: Fetcher) -> None:
    stream = iter(FetchStream(fetcher, 990))
    assert next(stream).next_offset == RECORDS
    assert not next(stream).records


def test_a_restarted_broker_is_found_again_in_the_middle_of_a_stream(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    process, tp = broker_factory(), TopicPartition("t", 0)
    with Cluster(process.bootstrap) as cluster, Fetcher(cluster, tp, max_bytes=1, max_wait_ms=50) as fetcher:
        Admin(cluster).create_topic("t", 1)
        produce_batches(cluster, tp, [batch(first) for first in range(0, 100, PER_BATCH)])
        read: list[int] = []
        for fetched in FetchStream(fetcher, 0, 100):
            read += values(fetched)
            if len(read) == 50:
                process.kill()
                process.start()
        assert read == list(range(100))


def test_the_end_of_batches_leaves_a_cut_one_out() -> None:
    data = memoryview(batch(0) + batch(10)[:-1])
    assert end_of_batches(data, 0) == 10
    assert sum(1 for _ in walk_batches(data)) == 1


def test_bytes_without_a_whole_batch_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="hold no whole batch at or after offset 7"):
        end_of_batches(memoryview(batch(0)[:-1]), 7)


def test_while_no_broker_answers_many_partitions_cost_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Cluster] = []

    def refuse(cluster: Cluster) -> BrokerConnection:
        attempts.append(cluster)
        raise ConnectionFailed("it was killed")

    monkeypatch.setattr(Cluster, "_any_connection", refuse)
    with Cluster("localhost:1") as cluster:
        fetches = LeaderFetches(cluster, FetchLimits.of(cluster.settings), lambda *_: None)
        assert fetches.send({TopicPartition("t", index): Position(0, NO_EPOCH) for index in range(100)}) == {}
    assert len(attempts) == 1


def test_a_partition_whose_answer_is_on_its_way_is_not_looked_up_again(
    cluster: Cluster, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = {tp: Position(RECORDS, NO_EPOCH)}
    with LeaderFetches(cluster, FetchLimits.of(cluster.settings), lambda *_: None) as fetches:
        eventually(lambda: fetches.send(end) == {} and bool(fetches.in_flight))  # a connection may take long
        looked_up: list[object] = []
        monkeypatch.setattr(FetchFrom, "at", looked_up.append)
        assert fetches.send(end) == {}
        assert looked_up == []
