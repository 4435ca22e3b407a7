"""How many replicas a topic gets on two brokers: as asked, by default, and fewer for internal topics."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch
from tests.support.waiting import eventually

UNCOUNTED = {"num_partitions": -1, "replication_factor": -1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[list[BrokerProcess]]:
    """Two brokers with the replication factors of most Kafka configuration files."""
    where = tmp_path_factory.mktemp("two-brokers")
    settings = {
        "default.replication.factor": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
    }
    brokers = [
        BrokerProcess(where / f"{i}", {**settings, "broker.id": f"{i}"}, zookeeper=f"{zookeeper}/two") for i in (0, 1)
    ]
    for broker in brokers:
        broker.start()
    with Requests(brokers[0].bootstrap) as ask:
        eventually(lambda: len(ask.metadata().brokers) == 2)
    yield brokers
    for broker in brokers:
        broker.kill()


@pytest.fixture
def ask(cluster: list[BrokerProcess]) -> Iterator[Requests]:
    with Requests(cluster[0].bootstrap) as made:
        yield made


def replicas_of(ask: Requests, topic: str) -> list[list[int]]:
    (found,) = ask.metadata(topic).topics
    return [sorted(one.replica_nodes) for one in found.partitions]


def test_a_topic_has_the_replicas_that_were_asked_for_or_the_default(ask: Requests, topic: str) -> None:
    ask.create_topics(
        {"name": f"{topic}-1", "replication_factor": 1},
        {"name": f"{topic}-2", "replication_factor": 2},
        {"name": f"{topic}-3", **UNCOUNTED, "assignments": [{"partition_index": 0, "broker_ids": [1, 0]}]},
        {"name": f"{topic}-4", **UNCOUNTED},
    )
    assert [len(replicas_of(ask, f"{topic}-{i}")[0]) for i in (1, 2, 3, 4)] == [1, 2, 2, 2]
    (automatic,) = ask.metadata(f"{topic}-5", create=True).topics
    assert automatic.error_code in (ErrorCode.none, ErrorCode.leader_not_available)
    assert [len(each) for each in replicas_of(ask, f"{topic}-5")] == [2]


def test_more_replicas_than_brokers_are_refused(ask: Requests, topic: str) -> None:
    (answer,) = ask.create_topics({"name": topic, "replication_factor": 3})
    assert answer.error_code is ErrorCode.invalid_replication_factor
    assert "larger than the number of available brokers, 2" in answer.error_message


def test_added_partitions_have_as_many_replicas_as_the_first(ask: Requests, topic: str) -> None:
    ask.create_topics({"name": topic, "replication_factor": 2})

    def add(count: int, brokers: list[int] | None) -> Any:
        assignments = None if brokers is None else [{"broker_ids": brokers}]
        topics = [{"name": topic, "count": count, "assignments": assignments}]
        body = {"topics": topics, "timeout": 30_000, "validate_only": False}
        return ask.ask(ApiKey.CREATE_PARTITIONS, body).results[0]

    assert add(2, [0]).error_code is ErrorCode.invalid_replica_assignment
    assert [add(2, [1, 0]).error_code, add(3, None).error_code] == [ErrorCode.none] * 2
    assert replicas_of(ask, topic) == [[0, 1]] * 3


def test_internal_topics_have_fewer_replicas_than_their_setting_while_fewer_brokers_are_there(
    cluster: list[BrokerProcess], ask: Requests
) -> None:
    def has_coordinator(key_type: int) -> bool:
        body = {"key": "any", "key_type": key_type, "coordinator_keys": ["any"]}
        return ask.ask(ApiKey.FIND_COORDINATOR, body).coordinators[0].error_code is ErrorCode.none

    for key_type, name in enumerate(("__consumer_offsets", "__transaction_state")):
        eventually(functools.partial(has_coordinator, key_type))
        assert replicas_of(ask, name)[0] == [0, 1]
        assert f"{name} gets replication factor 2, not 3" in cluster[0].output + cluster[1].output


def test_min_insync_replicas_asks_for_no_more_replicas_than_there_are(ask: Requests, topic: str) -> None:
    ask.create(topic, min_insync_replicas="2")
    produced = ask.produce({(topic, 0): batch(b"a")})[topic, 0]
    assert produced.error_code in (ErrorCode.none, ErrorCode.not_leader_or_follower)
