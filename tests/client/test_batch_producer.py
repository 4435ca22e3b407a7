"""Batches to many partitions at once: all of them, in order, once; what is refused, and what a dying broker costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from broker.client.admin import Admin
from broker.client.batch_producer import BatchProducer, produce_batches
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node, UnknownTopic
from broker.client.fetcher import Fetcher, FetchStream
from broker.client.partition_offsets import LATEST, list_offsets
from broker.client.producer_batch import ProducerBatch
from broker.client.transaction_errors import TransactionError
from broker.client.transaction_requests import add_partitions, end_transaction, init_transactional_id
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.builder import BatchBuilder
from broker.records.columns import encode_columns
from broker.records.record import decode_records
from tests.client.conftest import TopicMaker
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka, await_end
from tests.support.randomness import seeded
from tests.support.waiting import eventually

PARTITIONS = 4


@pytest.fixture
def tps(cluster: Cluster, make_topic: TopicMaker) -> list[TopicPartition]:
    topic = make_topic(PARTITIONS)
    found = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    list_offsets(cluster, dict.fromkeys(found, LATEST))  # every leader knows by then that it is one
    return found


def send(
    sender: BatchProducer, tp: TopicPartition, *values: int, transactional: bool = False, pad: int = 0
) -> ProducerBatch:
    """One batch of records."""
    stamp = sender.stamp(tp)
    value = pa.array([b"%d" % number + b" " * pad for number in values], pa.binary())
    (batch,) = encode_columns(None, value, 1000, max_bytes=1 << 24, transactional=transactional, **stamp._asdict())
    return sender.send(tp, batch)


def batch(*values: int) -> bytes:
    builder = BatchBuilder(max_bytes=1 << 20)
    for value in values:
        builder.append(1000, None, b"%d" % value)
    return builder.build()


def read(cluster: Cluster, tp: TopicPartition) -> list[int]:
    """The values of a partition, in order."""
    end = list_offsets(cluster, {tp: LATEST})[tp].offset
    with Fetcher(cluster, tp) as fetcher:
        return [
            int(record.value or b"")
            for fetched in FetchStream(fetcher, 0, end)
            for record in decode_records(fetched.records)
        ]


@pytest.mark.parametrize("acks", [-1, 1])
def test_every_partition_gets_its_batches_in_order(
    broker: Kafka, cluster: Cluster, tps: list[TopicPartition], acks: int
) -> None:
    with BatchProducer(cluster, acks=acks) as sender:
        for n in range(30):
            for tp in tps[: 1 + n % PARTITIONS]:
                send(sender, tp, 2 * n, 2 * n + 1)
        sender.flush()
        sender.flush()
    for tp in tps:
        expected = [v for n in range(30) if tp.partition <= n % PARTITIONS for v in (2 * n, 2 * n + 1)]
        await_end(broker.bootstrap, tp, len(expected))
        assert read(cluster, tp) == expected


def test_without_acknowledgement_all_is_sent(cluster: Cluster, tps: list[TopicPartition]) -> None:
    with BatchProducer(cluster, acks=0) as sender:
        send(sender, tps[0], 1)
        send(sender, tps[0], 2)
        sender.flush()
    with BatchProducer(cluster) as sender:
        send(sender, tps[0], 3)
        sender.flush()
    assert set(read(cluster, tps[0])) == {1, 2, 3}
    assert produce_batches(cluster, tps[1], [batch(0), batch(1)], acks=0) == [-1, -1]


def test_connections_are_kept_for_the_next(cluster: Cluster, tps: list[TopicPartition]) -> None:
    with BatchProducer(cluster) as first:  # which may find a leader that does not know yet that it is one
        send(first, tps[0], -1)
        first.flush()
    idle: dict[Node, BrokerConnection] = {}
    for n in range(3):
        with BatchProducer(cluster, idle=idle) as sender:
            send(sender, tps[0], n)
            sender.flush()
            assert not idle
        (connection,) = idle.values()
        assert connection.usable
    with BatchProducer(cluster, idle=idle) as sender:
        send(sender, tps[0], 3)
        sender._run(lambda: sender._accumulator.all_sent)  # in flight when it is closed
    assert not idle
    connection.close()


def test_a_connection_that_was_cut_is_made_anew_and_nothing_is_twice(
    cluster: Cluster, tps: list[TopicPartition]
) -> None:
    with BatchProducer(cluster) as sender:
        for n in range(40):
            for tp in tps:
                send(sender, tp, n)
            if n % 10 == 5:
                for link in sender._sender._links.values():
                    link.connection._open_socket().shutdown(2)
        sender.flush()
    assert [read(cluster, tp) for tp in tps] == [list(range(40))] * PARTITIONS


def test_a_broker_that_is_killed_and_comes_back_costs_and_doubles_nothing(
    broker_factory: BrokerFactory, topic: str
) -> None:
    broker = broker_factory()
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 2)
        tps = [TopicPartition(topic, partition) for partition in range(2)]
        sent: list[ProducerBatch] = []
        with BatchProducer(cluster) as sender:
            for n in range(60):
                sent += [send(sender, tp, n) for tp in tps]
                if n in (20, 40):
                    sender._run(lambda: sender._accumulator.all_sent)
                    broker.kill()
                    broker.start()
            sender.flush()
        assert [read(cluster, tp) for tp in tps] == [list(range(60))] * 2
        assert [one.base_offset for one in sent] == [n for n in range(60) for _ in tps]


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed_at_random_moments(
    broker_factory: BrokerFactory, topic: str
) -> None:
    broker, written = broker_factory(), 0
    crashes = Crashes(broker, lambda: written)

    def endless() -> Iterator[bytes]:
        nonlocal written
        crashes.start()
        while crashes.is_alive():
            yield batch(2 * written, 2 * written + 1)
            written += 1

    with Cluster(broker.bootstrap, {"max.request.size": "8192"}) as cluster:  # about a hundred batches to a request
        Admin(cluster).create_topic(topic)
        tp = TopicPartition(topic, 0)
        offsets = produce_batches(cluster, tp, endless())
        assert crashes.count == 2
        assert offsets == list(range(0, 2 * written, 2))
        assert read(cluster, tp) == list(range(2 * written))


class Crashes(threading.Thread):
    """Kills the broker and starts it again, twice, each time at a random moment after new batches were sent."""

    def __init__(self, broker: BrokerProcess, written: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._written = written
        self.count = 0

    def run(self) -> None:
        dice = seeded(20)
        for _ in range(2):
            before = self._written()
            eventually(lambda before=before: self._written() > before + 500)  # type: ignore[misc]
            threading.Event().wait(dice.uniform(0, 0.1))
            self._broker.kill()
            self._broker.start()
            self.count += 1


def test_what_the_topic_calls_too_large_goes_in_halves(cluster: Cluster, make_topic: TopicMaker) -> None:
    tp = TopicPartition(make_topic(max_message_bytes="2000"), 0)
    with BatchProducer(cluster) as sender:
        assert sender.largest_batch(tp.topic) == cluster.settings.max_request_size
        for n in range(3):
            send(sender, tp, *range(20 * n, 20 * n + 20), pad=300)
        sender.flush()
        assert sender.largest_batch(tp.topic) < 2000
    assert read(cluster, tp) == list(range(60))
    with BatchProducer(cluster) as sender:
        send(sender, tp, 1, pad=3000)
        with pytest.raises(BrokerError, match=f"producing to {tp}") as refused:
            sender.flush()
        with pytest.raises(BrokerError):
            sender.flush()
    assert refused.value.code is ErrorCode.message_too_large
    produce_batches(cluster, tp, [batch(60)])
    assert read(cluster, tp) == list(range(61))


def test_a_transaction_is_written_and_a_fenced_one_is_refused(cluster: Cluster, tps: list[TopicPartition]) -> None:
    handle = init_transactional_id(cluster, tps[0].topic)
    add_partitions(cluster, handle, tps)
    with BatchProducer(cluster, transaction=handle) as sender:
        for n in range(12):
            for tp in tps:
                send(sender, tp, n, transactional=True)
        sender.flush()
        end_transaction(cluster, handle, commit=True)
        assert read(cluster, tps[3]) == list(range(12))
        init_transactional_id(cluster, tps[0].topic)
        send(sender, tps[0], 99, transactional=True)
        with pytest.raises(TransactionError):
            sender.flush()
    with pytest.raises(ConfigError):
        BatchProducer(cluster, acks=1, transaction=handle)


@pytest.mark.parametrize("acks", [-1, 1])
def test_the_base_offset_of_each_batch_is_returned(cluster: Cluster, tps: list[TopicPartition], acks: int) -> None:
    batches = (batch(3 * n, 3 * n + 1, 3 * n + 2) for n in range(20))
    assert produce_batches(cluster, tps[0], batches, acks=acks) == list(range(0, 60, 3))
    assert produce_batches(cluster, tps[0], [batch(60)], acks=acks) == [60]
    assert produce_batches(cluster, tps[0], [], acks=acks) == []


def test_with_all_acks_every_batch_has_a_sequence_number(cluster: Cluster, tps: list[TopicPartition]) -> None:
    produce_batches(cluster, tps[0], [batch(0, 1), batch(2), batch(3)])
    with Fetcher(cluster, tps[0]) as fetcher:
        headers = [header for _, header in walk_batches(fetcher.fetch(0).records)]
    assert [header.base_sequence for header in headers] == [0, 2, 3]
    assert len({(header.producer_id, header.producer_epoch) for header in headers}) == 1
    assert headers[0].producer_id >= 0


def test_a_partition_that_is_not_there_is_an_error(cluster: Cluster, tps: list[TopicPartition]) -> None:
    with pytest.raises(BrokerError, match="but no 9"):
        produce_batches(cluster, tps[0]._replace(partition=9), [batch(0)])


def test_a_stamp_that_does_not_follow_is_replaced(cluster: Cluster, tps: list[TopicPartition]) -> None:
    with BatchProducer(cluster) as producer:
        for n in range(3):
            stamp = producer.stamp(tps[0])
            producer.send(tps[0], batch(2 * n))  # without a stamp: gets its number when it is sent
            value = pa.array([b"%d" % (2 * n + 1)], pa.binary())
            producer.send(tps[0], encode_columns(None, value, 1000, **stamp._asdict())[0])
        producer.flush()
    assert read(cluster, tps[0]) == list(range(6))


def test_the_time_between_two_calls_is_no_delay(
    cluster: Cluster, tps: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    monotonic = time.monotonic
    with BatchProducer(cluster) as producer:
        send(producer, tps[0], 0)
        producer.flush()
        for n in range(1, 4):
            send(producer, tps[0], n)
            producer._run(lambda: producer._accumulator.all_sent)
            send(producer, tps[0], 10 * n)
            monkeypatch.setattr(time, "monotonic", lambda later=1000 * n: monotonic() + later)
        producer.flush()
    assert read(cluster, tps[0]) == [0, 1, 10, 2, 20, 3, 30]


def test_a_topic_that_is_deleted_meanwhile_is_named(cluster: Cluster, tps: list[TopicPartition]) -> None:
    with BatchProducer(cluster) as producer:
        send(producer, tps[0], 0)
        producer.flush()
        Admin(cluster).delete_topics([tps[0].topic])
        send(producer, tps[0], 1)
        with pytest.raises(UnknownTopic, match=tps[0].topic):
            producer.flush()
