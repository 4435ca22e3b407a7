"""Fixtures of the client's tests: a view of the session's broker, and quick topics on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer as LibrdkafkaProducer

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from tests.support.kafka import Kafka, await_topics

TopicMaker = Callable[..., str]


@pytest.fixture
def cluster(broker: Kafka) -> Iterator[Cluster]:
    """A client of the session's broker."""
    with Cluster(broker.bootstrap) as view:
        yield view


@pytest.fixture
def make_topic(broker: Kafka, cluster: Cluster, topic: str) -> TopicMaker:
    """`make_topic(partitions=…, **configs)` creates this test's topic and returns its name."""

    def make(partitions: int = 1, **configs: str) -> str:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        Admin(cluster).create_topic(topic, partitions, configs=named)
        await_topics(broker.bootstrap, topic, partitions=partitions)
        return topic

    return make


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """librdkafka's mock of three brokers: its bootstrap address. It lives as long as the client it belongs to."""
    owner = LibrdkafkaProducer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 3, "log_level": 2})
    brokers = owner.list_topics(timeout=60).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    owner.flush(1)
