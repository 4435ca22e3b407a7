"""Brokers that are not ours: librdkafka's mock cluster of three, where leaders and coordinators differ.

Groups are left out: the mock takes no flexible JoinGroup, though it says it does.
"""

from __future__ import annotations

import time

from broker.client.batch_producer import produce_batches
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind
from broker.client.committed_offsets import GroupMetadata
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.client.transaction_requests import add_partitions, end_transaction, init_transactional_id
from broker.protocol.topic_partition import TopicPartition
from tests.client.test_transaction_requests import batch

TOPIC = "mocked"


def read(bootstrap: str, topic: str, count: int, **properties: object) -> list[bytes | None]:
    with Consumer(bootstrap, {"auto.offset.reset": "earliest", **properties}) as consumer:
        consumer.assign(TopicPartition(topic, index) for index in consumer.cluster.partitions(topic))
        values: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while len(values) < count and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(0.1)]
    return values


def test_records_go_to_leaders_and_come_back(mock_cluster: str) -> None:
    with Producer(mock_cluster, {"compression.type": "lz4"}) as producer:
        futures = [producer.send(TOPIC, b"%d" % n, key=b"%d" % n) for n in range(300)]
        producer.flush(30)
        assert producer.stats().brokers
    assert all(future.exception(0) is None for future in futures)
    assert sorted(read(mock_cluster, TOPIC, 300), key=lambda v: int(v or b"")) == [b"%d" % n for n in range(300)]


def test_transactions_are_asked_for_at_their_coordinators(mock_cluster: str) -> None:
    with Producer(mock_cluster, {"transactional.id": "tx"}) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            futures = [producer.send("tx", b"%d" % n, partition=n % 4) for n in range(40)]
            producer.flush(30)
            producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 3}, GroupMetadata("g"))
            end()
            assert all(future.exception(0) is None for future in futures)
    with Cluster(mock_cluster) as cluster:
        handle = init_transactional_id(cluster, "handle")
        tp = TopicPartition("tx", 0)
        add_partitions(cluster, handle, [tp])
        produce_batches(cluster, tp, [batch(1, 2), batch(3)], transaction=handle)
        end_transaction(cluster, handle, commit=True)
        assert cluster.coordinator("handle", CoordinatorKind.TRANSACTION) in cluster.brokers()
