"""Ready-made batches to one partition: in order, once, over failures of the broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetcher, FetchStream
from broker.client.partition_offsets import LATEST, list_offsets
from broker.client.partition_writer import PartitionWriter, produce_batches
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.builder import BatchBuilder
from broker.records.record import decode_records
from tests.client.conftest import TopicMaker
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka, await_end


def batch(*values: int) -> bytes:
    builder = BatchBuilder(max_bytes=1 << 20)
    for value in values:
        builder.append(1000, None, b"%d" % value)
    return builder.build()


def read(cluster: Cluster, tp: TopicPartition) -> list[int]:
    end = list_offsets(cluster, {tp: LATEST})[tp].offset
    with Fetcher(cluster, tp) as fetcher:
        return [
            int(r.value or b"") for fetched in FetchStream(fetcher, 0, end) for r in decode_records(fetched.records)
        ]


@pytest.fixture
def tp(make_topic: TopicMaker) -> TopicPartition:
    return TopicPartition(make_topic(), 0)


@pytest.mark.parametrize("acks", [-1, 1])
def test_batches_are_appended_in_order_and_say_where(
    broker: Kafka, cluster: Cluster, tp: TopicPartition, acks: int
) -> None:
    with PartitionWriter(cluster, tp, acks=acks) as writer:
        assert writer.write(batch(3 * n, 3 * n + 1, 3 * n + 2) for n in range(20)) == list(range(0, 60, 3))
        assert writer.write([batch(60)]) == [60]
        assert writer.write([]) == []
    await_end(broker.bootstrap, tp, 61)
    assert read(cluster, tp) == list(range(61))


def test_without_acknowledgement_nothing_is_known_and_all_is_sent(cluster: Cluster, tp: TopicPartition) -> None:
    assert produce_batches(cluster, tp, [batch(0), batch(1)], acks=0) == [-1, -1]
    produce_batches(cluster, tp, [batch(2)])
    assert sorted(read(cluster, tp)) == [0, 1, 2]


def test_with_all_acks_every_batch_bears_a_sequence_number(cluster: Cluster, tp: TopicPartition) -> None:
    produce_batches(cluster, tp, [batch(0, 1), batch(2), batch(3)])
    with Fetcher(cluster, tp) as fetcher:
        headers = [header for _, header in walk_batches(fetcher.fetch(0).records)]
    assert [header.base_sequence for header in headers] == [0, 2, 3]
    assert len({(header.producer_id, header.producer_epoch) for header in headers}) == 1
    assert headers[0].producer_id >= 0


def test_a_batch_the_broker_refuses_is_named_and_the_writer_goes_on(cluster: Cluster, make_topic: TopicMaker) -> None:
    tp = TopicPartition(make_topic(max_message_bytes="500"), 0)
    with PartitionWriter(cluster, tp) as writer:
        with pytest.raises(BrokerError, match=f"producing to {tp}") as raised:
            writer.write([batch(0), batch(*range(500)), batch(1)])
        assert raised.value.code is ErrorCode.message_too_large
        writer.write([batch(2)])
    assert read(cluster, tp) == [0, 2]


def test_a_partition_that_is_not_there_is_an_error(cluster: Cluster, tp: TopicPartition) -> None:
    with pytest.raises(BrokerError, match="but no 9"):
        produce_batches(cluster, tp._replace(partition=9), [batch(0)])


def test_nothing_is_lost_or_doubled_over_crashes_of_the_broker(broker_factory: Callable[..., BrokerProcess]) -> None:
    process, tp = broker_factory(), TopicPartition("t", 0)
    crashing = threading.Thread(target=crash_twice, args=(process,))
    numbers = iter(range(10**9))

    def endless() -> Iterator[bytes]:
        crashing.start()
        while crashing.is_alive():
            yield batch(next(numbers), next(numbers))

    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("t")
        offsets = produce_batches(cluster, tp, endless())
        crashing.join()
        assert offsets == list(range(0, 2 * len(offsets), 2))
        assert read(cluster, tp) == list(range(2 * len(offsets)))


def crash_twice(process: BrokerProcess) -> None:
    for _ in range(2):
        process.kill()
        process.start()
