"""Reading the source of a mirror: what a throttle of the source does."""

from __future__ import annotations

import time
from pathlib import Path

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.partition_offsets import Position
from broker.mirror.source_fetcher import SourceFetcher
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.quota_entity import QuotaEntity
from tests.support.broker_process import BrokerProcess
from tests.support.randomness import noise
from tests.support.scrape import Scrape
from tests.support.topics import Topic


def test_a_throttle_longer_than_the_request_timeout_is_waited_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"metrics.listener": "HTTP://127.0.0.1:0"}, standalone=True) as broker:
        topic = Topic(broker.bootstrap, "t")
        for _ in range(2):
            topic.produce([noise(50_000)])
        settings = {"bootstrap.servers": broker.bootstrap, "request.timeout.ms": "3000", "fetch.max.wait.ms": "100"}
        with Cluster(ClientSettings.from_properties(settings)) as cluster, SourceFetcher(cluster) as source:
            Admin(cluster).alter_client_quotas(QuotaEntity(user=""), {"consumer_byte_rate": 12_500.0})
            tp = TopicPartition("t", 0)
            source.seek(tp, Position(0, -1))
            before = None
            begin = time.monotonic()
            while source.positions[tp].offset < 2:
                source.poll(0.1)
                if before is None and source.positions[tp].offset == 1:
                    before = created(broker)
            assert time.monotonic() - begin > 3
            assert created(broker) == before, "no connection was given up"


def created(broker: BrokerProcess) -> float:
    return Scrape(broker.metrics_url).total("kafka_server_socketservermetrics_connection_creation_total")
