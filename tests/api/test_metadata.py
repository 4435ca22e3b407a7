"""Metadata: every version, which topics are in the answer, and topics that are created because a request names them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.api.metadata import describe_topic
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.replica.cluster_metadata import BrokerInfo, ClusterMetadata, PartitionInfo, Topic
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import NO_ID, Requests, versions


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_every_version_names_the_broker_and_the_leaders(
    ask: Requests, broker: BrokerProcess, topic: str, version: int
) -> None:
    ask.create(topic, 2)
    answer = ask.metadata(topic, version=version)
    (found,) = answer.topics
    (node,) = answer.brokers
    assert f"{node.host}:{node.port}" == broker.bootstrap
    assert (found.name, found.error_code) == (topic, ErrorCode.none)
    assert [(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes)) for p in found.partitions] == [
        (index, node.node_id, (node.node_id,), (node.node_id,)) for index in (0, 1)
    ]


def names(answer: Any) -> set[str]:
    return {topic.name for topic in answer.topics}


def test_null_means_all_topics_and_no_names_mean_none(ask: Requests, topic: str) -> None:
    ask.create(topic)
    assert topic in names(ask.ask(ApiKey.METADATA, {"topics": None}))
    assert names(ask.ask(ApiKey.METADATA, {"topics": ()})) == set()
    assert topic in names(ask.ask(ApiKey.METADATA, {"topics": ()}, 0))


def test_a_topic_is_found_by_its_id(ask: Requests, topic: str) -> None:
    topic_id = ask.create(topic)
    unknown = uuid.uuid4()
    wanted = [{"topic_id": topic_id, "name": None}, {"topic_id": unknown, "name": None}]
    known, absent = ask.ask(ApiKey.METADATA, {"topics": wanted}).topics
    assert (known.name, known.error_code) == (topic, ErrorCode.none)
    assert (absent.error_code, absent.topic_id) == (ErrorCode.unknown_topic_id, unknown)
    by_java = [{"topic_id": topic_id, "name": ""}]
    (same,) = ask.ask(ApiKey.METADATA, {"topics": by_java}).topics
    assert (same.name, same.error_code) == (topic, ErrorCode.none), "a name beside an id means nothing"


def test_an_unknown_topic_is_created_when_the_client_allows_it(ask: Requests, topic: str) -> None:
    (refused,) = ask.metadata(topic).topics
    assert refused.error_code is ErrorCode.unknown_topic_or_partition
    (made,) = ask.metadata(topic, create=True).topics
    assert (made.error_code, len(made.partitions)) == (ErrorCode.none, 1)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "ü"])
def test_a_name_that_cannot_be_is_invalid(ask: Requests, name: str) -> None:
    (found,) = ask.metadata(name, create=True).topics
    assert found.error_code is ErrorCode.invalid_topic_exception


def test_the_transaction_log_is_made_by_naming_it_and_is_internal(ask: Requests) -> None:
    (found,) = ask.metadata("__transaction_state", create=True).topics
    assert (found.error_code, found.is_internal) == (ErrorCode.none, True)


def test_what_a_client_may_do_is_told_when_it_asks(ask: Requests, topic: str) -> None:
    ask.create(topic)
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    for version in (8, 9, 10):
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        silent, told = (ask.ask(ApiKey.METADATA, {**body, **more}, version) for more in ({}, asked))
        assert told.topics[0].topic_authorized_operations > 0
        assert told.cluster_authorized_operations > 0
        assert silent.topics[0].topic_authorized_operations == silent.cluster_authorized_operations == -(2**31)


def test_many_clients_that_name_a_new_topic_at_once_all_get_it(broker: BrokerProcess, topic: str) -> None:
    def name_it(_: int) -> tuple[ErrorCode, uuid.UUID]:
        with Requests(broker.bootstrap) as ask:
            (found,) = ask.metadata(topic, create=True).topics
            return found.error_code, found.topic_id

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(name_it, range(8)))
    assert {code for code, _ in found} == {ErrorCode.none}
    assert len(found) == 1
    assert NO_ID not in {topic_id for _, topic_id in found}


def test_without_auto_creation_nothing_is_created(broker_factory: Callable[..., BrokerProcess], topic: str) -> None:
    broker = broker_factory({"auto.create.topics.enable": "false"})
    with Requests(broker.bootstrap) as ask:
        (found,) = ask.metadata(topic, create=True).topics
        assert found.error_code is ErrorCode.unknown_topic_or_partition
        assert ask.ask(ApiKey.METADATA, {"topics": None}).topics == ()


@pytest.mark.parametrize("version", [10, 11])
def test_before_version_12_a_topic_has_to_be_named(ask: Requests, version: int) -> None:
    for wanted in ({"name": None}, {"name": "t", "topic_id": uuid.uuid4()}):
        (found,) = ask.ask(ApiKey.METADATA, {"topics": [wanted]}, version).topics
        assert (found.name, found.error_code) == (wanted["name"] or "", ErrorCode.invalid_request)


@pytest.mark.parametrize(
    ("version", "leader", "error", "replicas"),
    [
        (0, 1, ErrorCode.replica_not_available, (1,)),
        (1, 1, ErrorCode.none, (1, 2, 3)),
        (0, 3, ErrorCode.leader_not_available, (1,)),
        (5, 3, ErrorCode.leader_not_available, (1, 2, 3)),
        (5, 2, ErrorCode.leader_not_available, (1, 2, 3)),
        (6, 2, ErrorCode.listener_not_found, (1, 2, 3)),
        (6, 3, ErrorCode.leader_not_available, (1, 2, 3)),
    ],
)
def test_a_broker_that_a_client_cannot_reach_is_described_as_in_its_version(
    version: int, leader: int, error: ErrorCode, replicas: tuple[int, ...]
) -> None:
    """Broker 2 has no address for the client, broker 3 is dead."""
    info = PartitionInfo(leader, 5, (1, 2, 3), (1, 2, 3))
    brokers = {number: BrokerInfo.plaintext(number, "localhost", number) for number in (1, 2)}
    topic = Topic("t", uuid.UUID(int=1), {0: info})
    metadata = ClusterMetadata("c", brokers=brokers, topics={"t": topic})
    (found,) = describe_topic(metadata, {1}, topic, 0, [0], version=version)["partitions"]
    assert (found["error_code"], found["replica_nodes"], found["isr_nodes"]) == (error, replicas, replicas)
    assert found["leader_id"] == (1 if leader == 1 else -1)
    assert found["offline_replicas"] == [3]
