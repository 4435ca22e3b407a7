"""A broker whose groups miss a dead member within a second, and members that are closed after their test."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.group_members import Member
from tests.support.kafka import Kafka, broker_ids
from tests.support.kafka_java import KafkaJava, java_or_give_up


@pytest.fixture(scope="session")
def groups_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, foreign_kafka: Kafka | None
) -> Iterator[Kafka]:
    if foreign_kafka is not None:
        yield foreign_kafka
        return
    settings = {
        **SESSION_SETTINGS,
        "group.min.session.timeout.ms": "500",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "3000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "500",
        "transaction.state.log.num.partitions": "4",
    }
    directory = tmp_path_factory.mktemp("groups") / "data"
    zookeeper = request.getfixturevalue("zookeeper")
    with BrokerProcess(directory, settings, zookeeper=f"{zookeeper}/compat-groups") as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4_000:]


@pytest.fixture
def member(groups_broker: Kafka) -> Iterator[Callable[..., Member]]:
    """`member(group, topic, **settings)`; each is closed after the test."""
    made: list[Member] = []

    def make(group: str, topic: str, **settings: Any) -> Member:
        made.append(Member(groups_broker, group, topic, **settings))
        return made[-1]

    yield make
    for one in made:
        one.consumer.close()


@pytest.fixture(scope="session")
def java_client() -> Iterator[KafkaJava]:
    with java_or_give_up() as started:
        yield started


@pytest.fixture
def java(java_client: KafkaJava) -> Iterator[KafkaJava]:
    """Kafka's own client for Java; what a test opens is closed after it."""
    with java_client.closing():
        yield java_client


@pytest.fixture
def broker_id(broker: Kafka) -> int:
    """One of the cluster's brokers."""
    return broker_ids(broker.bootstrap)[0]


@pytest.fixture
def clients_leftovers() -> Iterator[None]:
    """aiokafka and kafka-python leave sockets unclosed: the collector's complaint is no later test's fault."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
