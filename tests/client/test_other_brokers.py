"""Brokers that are not ours: librdkafka's mock cluster of three, where leaders and coordinators differ.

Groups are left out: the mock takes no flexible JoinGroup, though it says it does.
"""

from __future__ import annotations

import time

import pytest

from broker.client.batch_producer import produce_batches
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind, Node
from broker.client.committed_offsets import GroupMetadata
from broker.client.consumer import Consumer
from broker.client.fetcher import fetch_together
from broker.client.producer import Producer
from broker.client.transaction_requests import add_partitions, end_transaction, init_transactional_id
from broker.errors import ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from tests.client.test_transaction_requests import batch
from tests.support.waiting import eventually

TOPIC = "mocked"


def read(bootstrap: str, topic: str, count: int, **properties: object) -> list[bytes | None]:
    with Consumer(bootstrap, {"auto.offset.reset": "earliest", **properties}) as consumer:
        consumer.assign(TopicPartition(topic, index) for index in consumer.cluster.partitions(topic))
        values: list[bytes | None] = []
        deadline = time.monotonic() + 60
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


def test_a_joint_fetch_goes_on_without_a_leader_that_is_unreachable(
    mock_cluster: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The mock draws leaders by lot. With this many partitions one broker does not get all.
    tps = [TopicPartition(f"{topic}-{number}", partition) for number in range(4) for partition in range(4)]
    with Producer(mock_cluster) as producer:
        for tp in tps:
            producer.send(tp.topic, b"record", partition=tp.partition)
        producer.flush(30)
    with Cluster(mock_cluster) as cluster:
        leaders = cluster.by_leader(tps)
        first, down, *_ = leaders
        connect = Cluster.connection

        def refuse(self: Cluster, node: Node) -> BrokerConnection:
            if node == down:
                raise ConnectionFailed("it was killed")
            return connect(self, node)

        monkeypatch.setattr(Cluster, "connection", refuse)
        monkeypatch.setattr(Cluster, "known_connection", lambda self, node: None)  # none is open yet
        # Metadata would come over a connection with a Fetch in flight.
        monkeypatch.setattr(Cluster, "_any_connection", lambda self: connect(self, first))
        reachable = set(tps) - leaders[down].keys()
        assert reachable
        # A joint fetch leaves out a broker whose connection takes long, and finds it connected the next time.
        eventually(lambda: fetch_together(cluster, dict.fromkeys(tps, 0), max_bytes=1 << 20).keys() == reachable)
