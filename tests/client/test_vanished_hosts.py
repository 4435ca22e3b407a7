"""A broker that is silent is given up as soon as another one says that it is gone, and not before.

The time after which an answer is overdue is shortened. tests/hosts cuts real links, and measures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.client import broker_connection, dialling, leader_fetches, live_brokers, sender
from broker.client import cluster as cluster_module
from broker.client.batch_producer import BatchProducer
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.consumer import Consumer
from broker.client.coordinator import Coordinator
from broker.client.dialling import Connecting, abandon, dial, first_connected
from broker.client.fetcher import Fetcher
from broker.client.live_brokers import LiveBrokers
from broker.errors import ConnectionFailed, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.support.silent_brokers import TOPIC, SilentBrokers
from tests.support.waiting import eventually

TP = TopicPartition(TOPIC, 0)
PATIENT = {"request.timeout.ms": "100000", "default.api.timeout.ms": "100000", "delivery.timeout.ms": "100000"}
"""A test that waits for one of these has failed by its own time-out."""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (broker_connection, cluster_module, leader_fetches, sender):
        monkeypatch.setattr(module, "OVERDUE_S", 0.05)
    for module in (broker_connection, leader_fetches, live_brokers, sender):
        monkeypatch.setattr(module, "WATCH_EVERY_S", 0.05)
    monkeypatch.setattr(dialling, "PATIENCE_S", 0.05)


@pytest.fixture
def three(soon: None) -> Iterator[SilentBrokers]:
    with SilentBrokers(3, {0: 1, 1: 2}) as brokers:
        yield brokers


@pytest.fixture
def cluster(three: SilentBrokers) -> Iterator[Cluster]:
    with Cluster(three.bootstrap, PATIENT) as made:
        made.partitions(TOPIC)
        yield made


def node(cluster: Cluster, id_: int) -> Node:
    return next(found for found in cluster.brokers() if found.id == id_)


def last_asked(brokers: SilentBrokers, api: ApiKey) -> int:
    """Who got the last request of an API. One of another may come later, over a connection that took long to make."""
    return [who for who, what in brokers.asked if what is api][-1]


def overdue(brokers: SilentBrokers, id_: int, api: ApiKey) -> None:
    """Wait until the broker has got such a request, and others were asked about it."""
    eventually(lambda: (id_, api) in brokers.asked)
    begun = len(brokers.asked)
    eventually(lambda: any(who != id_ and what is ApiKey.METADATA for who, what in brokers.asked[begun:]))


def test_a_request_fails_when_its_broker_has_gone(three: SilentBrokers, cluster: Cluster) -> None:
    connection = cluster.connection(node(cluster, 1))
    three.vanish(1, successor=2)
    with pytest.raises(ConnectionFailed, match=r"has not answered, and .* says that it is gone"):
        connection.request(ApiKey.LIST_GROUPS, {})
    assert connection.closed


def test_a_request_to_a_slow_broker_is_waited_for(three: SilentBrokers, cluster: Cluster) -> None:
    connection = cluster.connection(node(cluster, 1))
    three.slow.add(1)
    begun = len(three.asked)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connection.request, ApiKey.LIST_GROUPS, {})
        # Others were asked again and again, and knew it: the next question comes after the answer to the one before.
        eventually(lambda: [what for who, what in three.asked[begun:] if who != 1].count(ApiKey.METADATA) > 2)
        assert not waiting.done()
        connection.close()
        assert "gone" not in str(waiting.exception(60))


def test_nobody_is_asked_about_an_address_that_no_broker_has(three: SilentBrokers) -> None:
    """A load balancer's, for instance: it is in no answer, and may work."""
    live = LiveBrokers(BrokerConnection)
    live.check("127.0.0.1", three.ports[1])
    assert three.asked == []


def test_a_question_under_way_when_the_client_is_closed_leaves_no_connection(
    three: SilentBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "PATIENCE_S", 60.0)
    made: list[BrokerConnection] = []
    connecting, may_go = threading.Event(), threading.Event()

    def connect(host: str, port: int) -> BrokerConnection:
        made.append(BrokerConnection(host, port))
        connecting.set()
        assert may_go.wait(60)
        return made[-1]

    live = LiveBrokers(connect)
    live.learn(Node(id_, "127.0.0.1", port) for id_, port in three.ports.items())
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(live.check, "127.0.0.1", three.ports[1])
        assert connecting.wait(60)
        live.close()
        may_go.set()
        asking.result(60)
    assert [one.closed for one in made] == [True]
    live.check("127.0.0.1", three.ports[1])
    assert len(made) == 1, "a client that is closed asks nobody"


def test_a_broker_that_came_back_is_not_gone(three: SilentBrokers, cluster: Cluster) -> None:
    first = node(cluster, 1)
    three.bury(1, successor=2)
    with pytest.raises(ConnectionFailed):
        cluster.check(first)
    three.alive.add(1)
    eventually(lambda: _is_alive(cluster, first))


def _is_alive(cluster: Cluster, checked: Node) -> bool:
    try:
        cluster.check(checked)
    except ConnectionFailed:
        return False
    return True


def test_another_witness_is_asked_where_one_is_silent_too(
    three: SilentBrokers, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_brokers, "PATIENCE_S", 0.1)
    first = node(cluster, 1)
    three.silent.add(2)
    three.vanish(1, successor=3)
    eventually(lambda: not _is_alive(cluster, first))
    assert last_asked(three, ApiKey.METADATA) == 3


def test_metadata_come_from_another_broker_where_one_is_silent(three: SilentBrokers, cluster: Cluster) -> None:
    (source,) = {who for who, what in three.asked if what is ApiKey.METADATA}
    three.silent.add(source)
    cluster.expire()
    assert cluster.partitions(TOPIC) == [0, 1]


def test_a_batch_goes_to_the_new_leader_with_its_old_number(three: SilentBrokers, cluster: Cluster) -> None:
    with BatchProducer(cluster) as producer:
        producer.send(TP, _batch(producer))
        producer.flush()
        three.silent.add(1)
        producer.send(TP, _batch(producer))

        def vanish() -> None:
            overdue(three, 1, ApiKey.PRODUCE)
            three.bury(1, successor=2)

        vanishing = threading.Thread(target=vanish)
        vanishing.start()
        producer.flush()
        vanishing.join()
    assert three.produced == [(1, 0, 0), (2, 0, 1)]  # a silent broker notes nothing


def test_a_batch_goes_to_the_new_leader_while_the_old_one_is_still_in_the_cluster(
    three: SilentBrokers, cluster: Cluster
) -> None:
    with BatchProducer(cluster) as producer:
        producer.send(TP, _batch(producer))
        producer.flush()
        three.slow.add(1)
        producer.send(TP, _batch(producer))
        three.leaders[0], three.epoch = 3, 1
        producer.flush()
    assert three.produced == [(1, 0, 0), (1, 0, 1), (3, 0, 1)]


def test_a_batch_for_a_slow_leader_is_not_sent_twice(three: SilentBrokers, cluster: Cluster) -> None:
    with BatchProducer(cluster) as producer:
        producer.send(TP, _batch(producer))
        producer.flush()
        three.slow.add(1)
        producer.send(TP, _batch(producer))
        begun = len(three.asked)

        def answer_after_a_while() -> None:
            others = lambda: [who for who, what in three.asked[begun:] if who != 1 and what is ApiKey.METADATA]  # noqa: E731
            eventually(lambda: len(others()) > 3)
            three.leaders[0], three.epoch = 2, 1  # the test ends by this

        ending = threading.Thread(target=answer_after_a_while)
        ending.start()
        producer.flush()
        ending.join()
    assert three.produced == [(1, 0, 0), (1, 0, 1), (2, 0, 1)]


def _batch(producer: BatchProducer) -> bytes:
    import pyarrow as pa

    from broker.records.columns import encode_columns

    (batch,) = encode_columns(None, pa.array([b"v"], pa.binary()), 1000, max_bytes=1000, **producer.stamp(TP)._asdict())
    return batch


def test_a_fetch_goes_to_the_new_leader(three: SilentBrokers, cluster: Cluster) -> None:
    with Fetcher(cluster, TP) as fetcher:
        fetcher.fetch(0)
        three.vanish(1, successor=3)
        assert fetcher.fetch(0).high_watermark == 5
    assert last_asked(three, ApiKey.FETCH) == 3


def test_a_fetch_goes_to_the_new_leader_while_the_old_one_is_still_in_the_cluster(
    three: SilentBrokers, cluster: Cluster
) -> None:
    with Fetcher(cluster, TP) as fetcher:
        fetcher.fetch(0)
        three.slow.add(1)
        three.leaders[0], three.epoch = 3, 1
        assert fetcher.fetch(0).high_watermark == 5
    assert last_asked(three, ApiKey.FETCH) == 3


def test_a_fetch_that_may_wait_at_the_broker_is_not_overdue(three: SilentBrokers, cluster: Cluster) -> None:
    with Fetcher(cluster, TP, max_wait_ms=600) as fetcher:
        fetcher.fetch(0)
        begun = len(three.asked)
        three.slow.add(1)
        fetcher.prefetch(0)
        connection = fetcher._connection
        assert connection is not None
        assert not connection.wait_readable(0.3)
        with pytest.raises(RequestTimedOut):
            connection.receive_reply(timeout_s=0.5)
    assert [api for _, api in three.asked[begun:]] == [ApiKey.FETCH]


def test_a_consumer_goes_to_the_new_leader(three: SilentBrokers) -> None:
    with Consumer(three.bootstrap, {**PATIENT, "fetch.max.wait.ms": "10"}) as consumer:
        consumer.assign({TP: 0})
        eventually(lambda: consumer.poll(0.05) == [] and (1, ApiKey.FETCH) in three.asked)
        three.vanish(1, successor=3)
        eventually(lambda: consumer.poll(0.05) == [] and (3, ApiKey.FETCH) in three.asked)
    fetched_from = [who for who, what in three.asked if what is ApiKey.FETCH]
    assert fetched_from == sorted(fetched_from)  # never again from the one that is gone


def test_a_coordinator_that_has_gone_is_found_anew(three: SilentBrokers, cluster: Cluster) -> None:
    coordinator = Coordinator(cluster, "g")
    assert coordinator.request(ApiKey.HEARTBEAT, {"generation_id": 1, "member_id": "m"}).error_code == 0
    three.coordinator = 2
    three.vanish(1, successor=2)
    answer = cluster.retrying(lambda: coordinator.request(ApiKey.HEARTBEAT, {"generation_id": 1, "member_id": "m"}))
    assert answer.error_code == 0
    assert last_asked(three, ApiKey.HEARTBEAT) == 2


def test_a_member_joins_at_the_new_coordinator(three: SilentBrokers) -> None:
    """It waits for the answer to JoinGroup, which others may delay for minutes."""
    three.slow.add(1)
    with Consumer(three.bootstrap, {**PATIENT, "group.id": "g", "enable.auto.commit": "false"}) as consumer:
        consumer.subscribe([TOPIC])
        eventually(lambda: consumer.poll(0.05) == [] and (1, ApiKey.JOIN_GROUP) in three.asked)
        three.coordinator = 2
        three.vanish(1, successor=2)
        three.slow.add(2)
        eventually(lambda: consumer.poll(0.05) == [] and (2, ApiKey.JOIN_GROUP) in three.asked)
        three.silent.add(2)
    joined_at = [who for who, what in three.asked if what is ApiKey.JOIN_GROUP]
    assert joined_at == sorted(joined_at)


def test_a_first_address_that_is_silent_does_not_hold_up_the_others(three: SilentBrokers) -> None:
    three.silent.add(1)
    with Cluster(three.bootstrap, PATIENT) as cluster:
        assert cluster.partitions(TOPIC) == [0, 1]


def test_partitions_of_other_brokers_go_on_while_one_is_connected_to(three: SilentBrokers) -> None:
    with Cluster(three.bootstrap.partition(",")[2], PATIENT) as cluster, BatchProducer(cluster) as producer:
        cluster.partitions(TOPIC)
        three.silent.add(1)
        other = TopicPartition(TOPIC, 1)
        held = producer.send(TP, _batch(producer))
        written = producer.send(other, _batch(producer))
        producer._run(written.done.is_set)
        assert not held.done.is_set()


def test_a_connection_that_is_made_late_is_closed_if_nobody_wants_it(three: SilentBrokers) -> None:
    begin = threading.Event()

    def connect() -> BrokerConnection:
        begin.wait(60)
        return BrokerConnection("127.0.0.1", three.ports[1])

    dialled = dial(connect)
    abandon(dialled)
    begin.set()
    assert dialled.exception(60) is None
    eventually(lambda: dialled.result().closed)


def test_the_next_is_tried_at_once_where_one_fails(three: SilentBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "PATIENCE_S", 1000.0)
    refused = ConnectionFailed("nobody listens")

    def fail() -> BrokerConnection:
        raise refused

    found, failures = first_connected(
        [fail, lambda: BrokerConnection("127.0.0.1", three.ports[2])], (ConnectionFailed,), late=abandon
    )
    assert found is not None
    assert failures == [refused]
    found.close()


def test_a_loop_gets_the_error_of_a_connection_that_failed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "PATIENCE_S", 0.01)
    begin = threading.Event()

    def fail() -> BrokerConnection:
        begin.wait(60)
        raise ConnectionFailed("late")

    connecting = Connecting()
    assert connecting.get("a", fail) is None
    assert connecting.get("a", fail) is None
    begin.set()

    def has_failed() -> bool:
        try:
            connecting.get("a", fail)
        except ConnectionFailed as error:
            return str(error) == "late"
        return False

    eventually(has_failed)
