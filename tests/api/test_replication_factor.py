"""Partitions have one replica: more are refused, on one broker and on two, and no answer claims more."""

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
REFUSED = ErrorCode.invalid_replication_factor


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


@pytest.mark.parametrize(
    "wanted",
    [
        {"replication_factor": 2},
        {**UNCOUNTED, "assignments": [{"partition_index": 0, "broker_ids": [0, 1]}]},
    ],
    ids=["a factor", "an assignment"],
)
def test_a_topic_of_two_replicas_is_refused_though_there_are_two_brokers(
    ask: Requests, topic: str, wanted: dict[str, Any]
) -> None:
    (answer,) = ask.create_topics({"name": topic, **wanted})
    assert answer.error_code is REFUSED
    assert "use replication factor 1" in answer.error_message


def test_the_default_factor_of_the_file_is_named_when_it_is_the_reason(ask: Requests, topic: str) -> None:
    (answer,) = ask.create_topics({"name": topic, **UNCOUNTED})
    assert answer.error_code is REFUSED
    assert "default.replication.factor=2" in answer.error_message
    (automatic,) = ask.metadata(topic, create=True).topics
    assert automatic.error_code is REFUSED


def test_partitions_are_added_on_one_broker_each(ask: Requests, topic: str) -> None:
    ask.create(topic)

    def add(count: int, brokers: list[int] | None) -> Any:
        assignments = None if brokers is None else [{"broker_ids": brokers}]
        topics = [{"name": topic, "count": count, "assignments": assignments}]
        body = {"topics": topics, "timeout": 30_000, "validate_only": False}
        return ask.ask(ApiKey.CREATE_PARTITIONS, body).results[0]

    refused = add(2, [0, 1])
    assert (refused.error_code, "use replication factor 1" in refused.error_message) == (REFUSED, True)
    assert [add(2, [1]).error_code, add(3, None).error_code] == [ErrorCode.none] * 2
    assert [len(p.replica_nodes) for p in ask.metadata(topic).topics[0].partitions] == [1, 1, 1]


def test_a_partition_is_not_reassigned_to_two(ask: Requests, topic: str) -> None:
    ask.create(topic)
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [0, 1]}]}]
    answer = ask.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"timeout": 1000, "topics": topics})
    (partition,) = answer.responses[0].partitions
    assert partition.error_code is REFUSED
    assert "use replication factor 1" in partition.error_message


def test_the_internal_topics_have_one_replica_whatever_the_file_says(
    cluster: list[BrokerProcess], ask: Requests
) -> None:
    def has_coordinator(key_type: int) -> bool:
        body = {"key": "any", "key_type": key_type, "coordinator_keys": ["any"]}
        return ask.ask(ApiKey.FIND_COORDINATOR, body).coordinators[0].error_code is ErrorCode.none

    for key_type, name in enumerate(("__consumer_offsets", "__transaction_state")):
        eventually(functools.partial(has_coordinator, key_type))
        (found,) = ask.metadata(name).topics
        assert {len(partition.replica_nodes) for partition in found.partitions} == {1}
    for name in ("default", "offsets.topic", "transaction.state.log"):
        assert f"{name}.replication.factor=" in cluster[0].output


def test_min_insync_replicas_asks_for_no_more_replicas_than_there_are(ask: Requests, topic: str) -> None:
    ask.create(topic, min_insync_replicas="2")
    produced = ask.produce({(topic, 0): batch(b"a")})[topic, 0]
    assert produced.error_code in (ErrorCode.none, ErrorCode.not_leader_or_follower)
