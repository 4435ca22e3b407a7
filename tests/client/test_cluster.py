"""A client's view of a cluster: what it finds out, what it says when it cannot, when it asks again."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable

import pytest

from broker.client.admin import Admin, NewTopic
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.partition_offsets import LATEST, list_offsets
from broker.errors import BrokerError, ConfigError, ConnectionFailed, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.support.broker_process import BrokerProcess
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka, await_topics
from tests.support.metadata_requests import record_metadata_requests
from tests.support.waiting import eventually

QUICK = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20}


def failing(error: Exception, times: int) -> Callable[[], int]:
    """A call that fails `times` times, then says how often it was made."""
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error
        return calls

    return call


def test_a_topic_is_described_with_its_partitions_and_leaders(cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(3)
    assert cluster.partitions(topic) == [0, 1, 2]
    found = cluster.topics()[topic]
    assert found.topic_id is not None
    assert not found.internal
    assert cluster.leader(TopicPartition(topic, 2)) in cluster.brokers()
    assert cluster.controller() in cluster.brokers()
    assert cluster.cluster_id()
    assert cluster.leader_epoch(TopicPartition(topic, 0)) >= 0


def test_a_name_that_no_topic_can_have_is_told_by_its_rule(cluster: Cluster) -> None:
    with pytest.raises(BrokerError, match=r"topic name 'a;b' has a character other than a-z, A-Z, 0-9"):
        cluster.partitions("a;b")


def test_a_missing_topic_is_named_and_not_waited_for(cluster: Cluster, broker: Kafka, topic: str) -> None:
    started = time.monotonic()
    with pytest.raises(UnknownTopic, match=f"there is no topic '{topic}' on {broker.bootstrap}"):
        cluster.partitions(topic)
    assert time.monotonic() - started < 10
    assert topic not in cluster.topics(), "asking must not create it"


def test_a_missing_partition_is_named(cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(2)
    with pytest.raises(UnknownTopic, match=f"topic '{topic}' has 2 partitions, but no 7"):
        cluster.leader(TopicPartition(topic, 7))


def test_an_impossible_topic_name_is_an_error_that_names_it(cluster: Cluster) -> None:
    with pytest.raises(BrokerError, match="'no spaces allowed'") as raised:
        cluster.partitions("no spaces allowed")
    assert not raised.value.retriable


def test_a_producers_view_creates_the_topic_it_asks_for(own_broker: BrokerProcess, topic: str) -> None:
    with Cluster(own_broker.bootstrap, create_topics=True) as cluster:
        assert cluster.partitions(topic) == [0]


def test_partitions_added_later_are_found(broker: Kafka, cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(1)
    assert cluster.partitions(topic) == [0]
    with Cluster(cluster.settings) as other:
        Admin(other).create_partitions(topic, 3)
    await_topics(broker.bootstrap, topic, partitions=3)
    assert cluster.leader(TopicPartition(topic, 2)).port


def test_metadata_is_asked_for_again_when_it_is_old(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic(1)
    with Cluster(broker.bootstrap, {"metadata.max.age.ms": 0}) as cluster:
        assert cluster.partitions(topic) == [0]
        Admin(cluster).create_partitions(topic, 2)
        eventually(lambda: cluster.partitions(topic) == [0, 1])


def test_bootstrapping_goes_on_to_the_next_address(broker: Kafka) -> None:
    with refused_port() as port, Cluster(f"127.0.0.1:{port},{broker.bootstrap}") as cluster:
        assert cluster.brokers()


def test_the_error_of_a_failed_bootstrap_lists_every_address_and_why() -> None:
    properties = {**QUICK, "socket.connection.setup.timeout.ms": 200}
    with (
        refused_port() as first,
        refused_port() as second,
        Cluster([f"127.0.0.1:{first}", f"localhost:{second}"], properties) as cluster,
    ):
        started = time.monotonic()
        with pytest.raises(ConnectionFailed) as raised:
            cluster.topics()
    assert time.monotonic() - started < 10, "a cluster never reached is given up soon"
    for part in (f"127.0.0.1:{first}", f"localhost:{second}", "refused"):
        assert part in str(raised.value)


@pytest.fixture
def metadata_requests(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    return record_metadata_requests(monkeypatch)


@pytest.fixture
def five_topics(broker: Kafka, topic: str) -> list[str]:
    """Of two partitions each."""
    names = [f"{topic}-{number}" for number in range(5)]
    with Cluster(broker.bootstrap) as other:
        Admin(other).create_topics([NewTopic(name, 2, 1, {}) for name in names])
        await_topics(broker.bootstrap, *names, partitions=2)
        partitions = [TopicPartition(name, index) for name in names for index in range(2)]
        list_offsets(other, dict.fromkeys(partitions, LATEST))  # every leader knows by then that it is one
    return names


def test_many_topics_are_asked_about_in_one_request(
    cluster: Cluster, five_topics: list[str], metadata_requests: list[set[str]]
) -> None:
    """One by one, each would ask anew about all those before it."""
    cluster.include(five_topics)
    assert [cluster.partitions(topic) for topic in five_topics] == [[0, 1]] * 5
    assert metadata_requests == [set(five_topics)]
    cluster.include(five_topics)
    assert not cluster.stale, "what is known is not asked for again"


def test_offsets_of_many_topics_cost_one_metadata_request(
    cluster: Cluster, five_topics: list[str], metadata_requests: list[set[str]]
) -> None:
    partitions = [TopicPartition(topic, index) for topic in five_topics for index in range(2)]
    assert list_offsets(cluster, dict.fromkeys(partitions, LATEST)) == dict.fromkeys(partitions, (0, -1, 0))
    assert metadata_requests == [set(five_topics)]


def test_partitions_are_grouped_by_leader(broker: Kafka, cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(2)
    partitions = [TopicPartition(topic, index) for index in range(2)]
    grouped = cluster.by_leader(partitions)
    assert sum(map(len, grouped.values())) == 2
    assert all(grouped[cluster.leader(tp)][tp] == cluster.leader_epoch(tp) for tp in partitions)
    with pytest.raises(UnknownTopic, match=f"topic '{topic}' has 2 partitions, but no 7"):
        cluster.by_leader([*partitions, TopicPartition(topic, 7)])
    with Cluster(cluster.settings) as other:
        Admin(other).create_partitions(topic, 3)
    await_topics(broker.bootstrap, topic, partitions=3)
    added = TopicPartition(topic, 2)
    assert added in cluster.by_leader([added])[cluster.leader(added)], "partitions added later are found"


def test_one_connection_per_broker_is_shared(cluster: Cluster) -> None:
    node = cluster.brokers()[0]
    assert cluster.connection(node) is cluster.connection(node)
    assert cluster.any_connection() is cluster.connection(node)
    with cluster.open_connection(node) as own:
        assert own is not cluster.connection(node)


def test_a_shared_connection_that_broke_is_made_anew(cluster: Cluster) -> None:
    node = cluster.brokers()[0]
    broken = cluster.connection(node)
    broken.close()
    assert cluster.connection(node) is not broken


def test_the_coordinator_of_a_group_is_found_and_remembered(cluster: Cluster, group: str) -> None:
    node = cluster.coordinator(group)
    assert node == cluster.coordinator(group)
    cluster.forget_coordinator(group)
    assert cluster.connection(cluster.coordinator(group)).port == node.port


def test_what_is_known_can_be_read_without_asking(cluster: Cluster, make_topic: TopicMaker) -> None:
    tp = TopicPartition(make_topic(2), 1)
    assert cluster.known_leader(tp) is None
    assert cluster.known_partitions(tp.topic) == 0
    leader = cluster.leader(tp)
    assert cluster.known_leader(tp) == leader
    assert cluster.known_partitions(tp.topic) == 2


def test_retriable_errors_are_tried_again(broker: Kafka) -> None:
    with Cluster(broker.bootstrap, QUICK) as cluster:
        cluster.brokers()
        assert cluster.retrying(failing(BrokerError(ErrorCode.not_leader_or_follower), 3)) == 4


def test_other_errors_are_not(broker: Kafka) -> None:
    with Cluster(broker.bootstrap, QUICK) as cluster, pytest.raises(BrokerError, match="INVALID_REQUEST"):
        cluster.retrying(failing(BrokerError(ErrorCode.invalid_request), 1))


def test_retrying_ends_with_the_last_error_when_time_is_up(broker: Kafka) -> None:
    with Cluster(broker.bootstrap, QUICK) as cluster:
        cluster.brokers()
        started = time.monotonic()
        with pytest.raises(ConnectionFailed):
            cluster.retrying(failing(ConnectionFailed("always"), 10**6), timeout_s=0.1)
        assert time.monotonic() - started < 10


def test_retrying_ends_after_so_many_retries(broker: Kafka) -> None:
    with Cluster(broker.bootstrap, {**QUICK, "retries": 2}) as cluster:
        cluster.brokers()
        assert cluster.retrying(failing(ConnectionFailed("twice"), 2)) == 3
        with pytest.raises(ConnectionFailed):
            cluster.retrying(failing(ConnectionFailed("thrice"), 3))


def test_retrying_inside_retrying_tries_once(broker: Kafka) -> None:
    with Cluster(broker.bootstrap, QUICK) as cluster:
        cluster.brokers()
        inner = failing(ConnectionFailed("inner"), 2)
        outer_attempts = []

        def outer() -> int:
            outer_attempts.append(1)
            return cluster.retrying(inner)

        assert cluster.retrying(outer) == 3
        assert len(outer_attempts) == 3


def test_every_retry_asks_for_metadata_anew(broker: Kafka) -> None:
    with Cluster(broker.bootstrap, QUICK) as cluster:
        cluster.brokers()
        assert not cluster.stale
        assert cluster.retrying(failing(ConnectionFailed("x"), 1)) == 2
        assert cluster.stale
        cluster.renew()
        assert not cluster.stale


def test_close_ends_a_wait_and_may_be_repeated(broker: Kafka) -> None:
    cluster = Cluster(broker.bootstrap, {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000})
    cluster.brokers()
    closer = threading.Timer(0.1, cluster.close)
    closer.start()
    with pytest.raises(ConnectionFailed):
        cluster.retrying(failing(ConnectionFailed("x"), 99), timeout_s=300)
    closer.join()
    cluster.close()
    with pytest.raises(PykafkaError, match="this client was closed"):
        cluster.topics()


def test_it_cannot_be_pickled_but_its_settings_can(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match=r"pickle cluster\.settings"):
        pickle.dumps(cluster)
    with Cluster(pickle.loads(pickle.dumps(cluster.settings))) as elsewhere:
        assert elsewhere.brokers() == cluster.brokers()


def test_a_missing_address_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        Cluster("")


def test_a_broker_that_restarts_is_found_again(broker_factory: Callable[..., BrokerProcess]) -> None:
    process = broker_factory()
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("t", 2)
        process.kill()
        restarting = threading.Thread(target=process.start)
        restarting.start()
        cluster.invalidate()
        assert cluster.partitions("t") == [0, 1]
        restarting.join()
