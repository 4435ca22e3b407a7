"""Fetches of pages that are not in the page cache: the answers are the same, with a retry after each miss."""

from __future__ import annotations

import os
from pathlib import Path

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from tests.conftest import BrokerFactory
from tests.support.randomness import noise


def test_a_log_larger_than_the_memory_is_read_whole(broker_factory: BrokerFactory, tmp_path: Path, topic: str) -> None:
    broker = broker_factory({"log.segment.bytes": "1000000"})
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    values = [noise(10_000) for _ in range(500)]
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value)
    tp = TopicPartition(topic, 0)
    read: list[bytes | None] = []
    with Consumer(broker.bootstrap, {"max.partition.fetch.bytes": 300_000}) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning()
        while len(read) < len(values):
            for path in tmp_path.rglob(f"{topic}-0/*.log"):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            read += [record.value for record in consumer.poll(10)]
    assert read == values
