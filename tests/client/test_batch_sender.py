"""Batches to many partitions at once: all of them, in order, once; what is refused, and what a dying broker costs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.client.admin import Admin
from broker.client.batch_sender import BatchSender, split_batch
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.connection import Connection
from broker.client.fetcher import Fetcher, FetchStream
from broker.client.partition_offsets import LATEST, list_offsets
from broker.client.transaction_errors import TransactionError
from broker.client.transaction_requests import add_partitions, end_transaction, init_transactional_id
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header
from broker.records.columns import HEADERS_TYPE, decode_columns, encode_columns
from broker.records.compression import Codec
from broker.records.record import decode_records
from tests.client.conftest import TopicMaker
from tests.conftest import BrokerFactory
from tests.support.kafka import Kafka, await_end

PARTITIONS = 4


@pytest.fixture
def tps(cluster: Cluster, make_topic: TopicMaker) -> list[TopicPartition]:
    topic = make_topic(PARTITIONS)
    found = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    list_offsets(cluster, dict.fromkeys(found, LATEST))  # every leader knows by then that it is one
    return found


def send(sender: BatchSender, tp: TopicPartition, *values: int, transactional: bool = False, pad: int = 0) -> None:
    """One batch of records."""
    stamp = sender.stamp(tp)
    value = pa.array([b"%d" % number + b" " * pad for number in values], pa.binary())
    (batch,) = encode_columns(None, value, 1000, max_bytes=1 << 24, transactional=transactional, **stamp._asdict())
    sender.send(tp, batch, len(values))


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
    with BatchSender(cluster, acks=acks) as sender:
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
    with BatchSender(cluster, acks=0) as sender:
        send(sender, tps[0], 1)
        send(sender, tps[0], 2)
        sender.flush()
    with BatchSender(cluster) as sender:
        send(sender, tps[0], 3)
        sender.flush()
    assert set(read(cluster, tps[0])) == {1, 2, 3}


def test_connections_are_kept_for_the_next(cluster: Cluster, tps: list[TopicPartition]) -> None:
    with BatchSender(cluster) as first:  # which may find a leader that does not know yet that it is one
        send(first, tps[0], -1)
        first.flush()
    idle: dict[Node, Connection] = {}
    for n in range(3):
        with BatchSender(cluster, idle=idle) as sender:
            send(sender, tps[0], n)
            sender.flush()
            assert not idle
        (connection,) = idle.values()
        assert connection.usable
    with BatchSender(cluster, idle=idle) as sender:
        send(sender, tps[0], 3)  # under way when it is let go
    assert not idle
    connection.close()


def test_a_connection_that_was_cut_is_made_anew_and_nothing_is_twice(
    cluster: Cluster, tps: list[TopicPartition]
) -> None:
    with BatchSender(cluster) as sender:
        for n in range(40):
            for tp in tps:
                send(sender, tp, n)
            if n % 10 == 5:
                for lane in sender._lanes.values():
                    lane.connection._open_socket().shutdown(2)
        sender.flush()
    assert [read(cluster, tp) for tp in tps] == [list(range(40))] * PARTITIONS


def test_a_broker_that_is_killed_and_comes_back_costs_and_doubles_nothing(
    broker_factory: BrokerFactory, topic: str
) -> None:
    broker = broker_factory()
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 2)
        tps = [TopicPartition(topic, partition) for partition in range(2)]
        with BatchSender(cluster) as sender:
            for n in range(60):
                for tp in tps:
                    send(sender, tp, n)
                if n == 30:
                    sender._push(next(iter(sender._lanes.values())))
                    broker.kill()
                    broker.start()
            sender.flush()
        assert [read(cluster, tp) for tp in tps] == [list(range(60))] * 2


def test_what_the_topic_calls_too_large_goes_in_halves(cluster: Cluster, make_topic: TopicMaker) -> None:
    tp = TopicPartition(make_topic(max_message_bytes="2000"), 0)
    with BatchSender(cluster) as sender:
        assert sender.largest_batch(tp.topic) == cluster.settings.max_request_size
        for n in range(3):
            send(sender, tp, *range(20 * n, 20 * n + 20), pad=300)
        sender.flush()
        assert sender.largest_batch(tp.topic) < 2000
    assert read(cluster, tp) == list(range(60))
    with BatchSender(cluster) as sender:
        send(sender, tp, 1, pad=3000)
        with pytest.raises(BrokerError) as refused:
            sender.flush()
    assert refused.value.code is ErrorCode.message_too_large


def test_a_transaction_is_written_and_a_fenced_one_is_refused(cluster: Cluster, tps: list[TopicPartition]) -> None:
    handle = init_transactional_id(cluster, tps[0].topic)
    add_partitions(cluster, handle, tps)
    with BatchSender(cluster, transaction=handle) as sender:
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
        BatchSender(cluster, acks=1, transaction=handle)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_halves_hold_the_same_records_numbered_on(codec: Codec) -> None:
    value = pa.array([b"a", None, b"c", b"d", b"e"], pa.binary())
    headers = pa.array([None, [{"key": "k", "value": b"v"}], None, None, None], HEADERS_TYPE)
    (batch,) = encode_columns(
        value, value, pa.array([5, 4, 3, 2, 1]), headers, codec=codec, producer_id=7, producer_epoch=1,
        base_sequence=2**31 - 2, transactional=True,
    )  # fmt: skip
    halves = split_batch(batch)
    assert halves is not None
    whole, parts = decode_columns(batch, headers=True), [decode_columns(half, headers=True) for half in halves]
    for name in ("key", "value", "timestamp", "headers"):
        assert pa.concat_arrays([getattr(part, name) for part in parts]).equals(getattr(whole, name))
    first, second = (parse_header(half) for half in halves)
    assert (first.codec, first.producer_id, first.producer_epoch, first.is_transactional) == (codec, 7, 1, True)
    assert (first.base_sequence, first.record_count) == (2**31 - 2, 2)
    assert (second.base_sequence, second.record_count) == (0, 3)
    (single,) = encode_columns(None, value[:1], 1)
    assert split_batch(single) is None
