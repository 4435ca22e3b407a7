"""Brokers that have yet to hear of a topic, a partition or a leader: others are asked, nothing known is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from broker.client import dialling
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node, UnknownTopic
from broker.client.consumer import Consumer
from broker.client.node_pool import NodePool
from broker.client.producer import Producer
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

# --- Brokers that have yet to hear of what others know: their Metadata answers are changed on their way to the client.

Change = Callable[[Any], Any]


class LaggingBrokers:
    """Nobody lags until `lag` says so. `asked`: the ports of those that were asked for metadata, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self._changes: dict[int, Change] = {}
        request = BrokerConnection.request

        def changed(connection: BrokerConnection, api: ApiKey, body: Mapping[str, Any], **options: Any) -> Any:
            answer = request(connection, api, body, **options)
            if api is not ApiKey.METADATA:
                return answer
            self.asked.append(connection.port)
            change = self._changes.get(connection.port, lambda topic: topic)
            return answer._replace(topics=tuple(map(change, answer.topics)))

        monkeypatch.setattr(BrokerConnection, "request", changed)

    def lag(self, *nodes: Node, topic: str, change: Change) -> None:
        """These brokers say `change(what they know)` about the topic."""
        for node in nodes:
            self._changes[node.port] = lambda found: change(found) if found.name == topic else found

    def catch_up(self, *nodes: Node) -> None:
        """These say what they know again."""
        for node in nodes:
            del self._changes[node.port]


def without_it(topic: Any) -> Any:
    """A broker that has not heard of the topic."""
    return topic._replace(error_code=ErrorCode.unknown_topic_or_partition, partitions=())


def without_leaders(topic: Any) -> Any:
    """One that knows of no live leader for it."""
    lost = tuple(partition._replace(leader_id=-1) for partition in topic.partitions)
    return topic._replace(partitions=lost)


def smaller(partitions: int) -> Change:
    """One that has not heard that the topic has grown beyond so many partitions."""

    def change(topic: Any) -> Any:
        kept = tuple(one for one in topic.partitions if one.partition_index < partitions)
        return topic._replace(partitions=kept)

    return change


# --- the tests

QUICK = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> LaggingBrokers:
    return LaggingBrokers(monkeypatch)


@pytest.fixture
def filled(mock_cluster: str, topic: str) -> str:
    """A topic of four partitions with a record in each."""
    with Producer(mock_cluster) as producer:
        for partition in range(4):
            producer.send(topic, b"%d" % partition, partition=partition)
        producer.flush(30)
    return topic


@pytest.fixture
def cluster(mock_cluster: str, filled: str, brokers: LaggingBrokers) -> Iterator[Cluster]:
    """A client that knows the three brokers, but not the topic."""
    with Cluster(mock_cluster, QUICK) as cluster:
        assert len(connected(cluster)) == 3
        yield cluster


def connected(cluster: Cluster) -> list[Node]:
    """The brokers, with a connection to each: one that takes longer than a second is not asked."""
    brokers = cluster.brokers()
    for node in brokers:
        cluster.connection(node)
    return brokers


def asked_first(cluster: Cluster, brokers: LaggingBrokers) -> Node:
    (first,) = (node for node in cluster.brokers() if node.port == brokers.asked[-1])
    return first


def test_a_topic_of_which_one_broker_has_not_heard_is_found(
    cluster: Cluster, brokers: LaggingBrokers, filled: str
) -> None:
    first = asked_first(cluster, brokers)
    brokers.lag(first, topic=filled, change=without_it)
    assert cluster.partitions(filled) == [0, 1, 2, 3]
    assert brokers.asked[-1] != first.port


def test_a_partition_of_which_two_of_three_brokers_have_not_heard_is_found(
    cluster: Cluster, brokers: LaggingBrokers, filled: str
) -> None:
    first = asked_first(cluster, brokers)
    second = next(node for node in cluster.brokers() if node != first)
    brokers.lag(first, second, topic=filled, change=smaller(2))
    assert cluster.partitions(filled) == [0, 1]
    assert cluster.leader(TopicPartition(filled, 3)).port
    assert cluster.partitions(filled) == [0, 1, 2, 3]


def test_a_partition_that_no_broker_knows_is_told_after_all_were_asked(
    cluster: Cluster, brokers: LaggingBrokers, filled: str
) -> None:
    with pytest.raises(UnknownTopic, match="has 4 partitions, but no 7"):
        cluster.leader(TopicPartition(filled, 7))
    assert len(set(brokers.asked[-3:])) == 3


def test_brokers_that_connect_slowly_are_waited_for_before_a_partition_is_refused(
    mock_cluster: str, brokers: LaggingBrokers, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one that is connected has not heard of it, and is asked three times meanwhile."""
    monkeypatch.setattr(dialling, "PATIENCE_S", 0.02)
    has_asked = threading.Event()
    connect = NodePool.open

    def slowly(pool: NodePool, host: str, port: int) -> BrokerConnection:
        has_asked.wait(30)
        return connect(pool, host, port)

    with Cluster(mock_cluster.split(",")[0], QUICK) as cluster:
        nodes = cluster.brokers()
        (first,) = (node for node in nodes if node.port == brokers.asked[-1])
        begun = len(brokers.asked)

        def change(topic: Any) -> Any:
            if len(brokers.asked) - begun >= 3:
                has_asked.set()
            return smaller(2)(topic)

        brokers.lag(first, topic=filled, change=change)
        monkeypatch.setattr(NodePool, "open", slowly)
        assert cluster.leader(TopicPartition(filled, 3)).port


def test_a_broker_is_asked_again_until_something_does_not_agree(
    cluster: Cluster, brokers: LaggingBrokers, filled: str
) -> None:
    for _ in range(5):
        cluster.expire()
        cluster.partitions(filled)
    assert len(set(brokers.asked)) == 1, "what one broker says does not go back"
    for _ in range(2):
        cluster.invalidate()
        cluster.partitions(filled)
    assert len(set(brokers.asked)) == 3


def test_partitions_once_known_are_not_forgotten(cluster: Cluster, brokers: LaggingBrokers, filled: str) -> None:
    assert cluster.partitions(filled) == [0, 1, 2, 3]
    brokers.lag(*cluster.brokers(), topic=filled, change=smaller(2))
    cluster.invalidate()
    assert cluster.partitions(filled) == [0, 1, 2, 3]
    assert len(cluster.topics()[filled].partitions) == 4


def test_a_record_goes_to_a_partition_of_which_one_broker_has_not_heard(
    mock_cluster: str, brokers: LaggingBrokers, filled: str
) -> None:
    with Producer(mock_cluster, QUICK) as producer, Cluster(mock_cluster) as other:
        lagging = other.brokers()[:2]
        brokers.lag(*lagging, topic=filled, change=smaller(2))
        connected(producer._cluster)
        producer.partitions(filled)
        assert producer.send(filled, b"late", partition=3).result(30).partition == 3


def test_a_consumer_goes_on_when_a_partition_has_a_leader_again(
    mock_cluster: str, brokers: LaggingBrokers, filled: str
) -> None:
    with Consumer(mock_cluster, {**QUICK, "auto.offset.reset": "earliest"}) as consumer:
        tps = [TopicPartition(filled, index) for index in range(4)]
        nodes = consumer.cluster.brokers()
        brokers.lag(*nodes, topic=filled, change=without_leaders)
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)
        assert consumer.poll(0.2) == []
        asked = len(brokers.asked)
        assert consumer.poll(0.2) == []
        assert len(brokers.asked) - asked < 80, "it asks for a leader at retry.backoff.ms, not without end"
        brokers.catch_up(*nodes)
        found: list[bytes | None] = []
        deadline = time.monotonic() + 60
        while len(found) < 4 and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(0.2)]
        assert sorted(map(bytes, filter(None, found))) == [b"0", b"1", b"2", b"3"]
