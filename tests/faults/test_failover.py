"""Clients hardly notice when a broker stops or dies: the brokers act on broken connections, not on the session's end.

The limits of the fast test are far below the ZooKeeper session of 30 s. The slow one has those that users get, which
need a quiet machine; bench/failover_bench.py measures them.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.embedded import EmbeddedCluster
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.support.cluster import ZOOKEEPER, LinkedCluster, StateWatch
from tests.support.history import History
from tests.support.raw_requests import Requests, batch
from tests.support.replica_audit import partition_directories, replica_anomalies
from tests.support.steady_load import SteadyLoad
from tests.support.waiting import eventually

SETTINGS = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "30000",
}
OFFSETS = "__consumer_offsets"
CLIENT = {"reconnect.backoff.max.ms": 200}
"""librdkafka waits longer the longer a broker was away, and it starts slowly on a busy machine."""


@pytest.mark.parametrize("limit_s", [10, pytest.param(3, marks=pytest.mark.slow)])
def test_clients_are_not_held_up_when_brokers_restart_or_die(limit_s: float) -> None:
    with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **CLIENT})
        load = SteadyLoad(cluster.bootstrap, settings=CLIENT).start()
        for broker in cluster.brokers.values():
            broker.restart()
            eventually(lambda: are_in_sync(admin, load.topic, 3) and are_in_sync(admin, OFFSETS, 3))
        victims = {-1}

        def are_known() -> bool:
            nonlocal victims
            victims = those_that_matter(admin)
            return min(victims) >= 0

        eventually(are_known)
        for victim in victims:
            cluster.brokers[victim].kill()
            eventually(lambda: are_in_sync(admin, load.topic, 2))
            cluster.brokers[victim].start()
            eventually(lambda: are_in_sync(admin, load.topic, 3) and are_in_sync(admin, OFFSETS, 3))
        load.stop()
    assert load.failed == []
    assert load.unread == set()
    assert load.longest_write < limit_s
    assert load.longest_read < limit_s


@pytest.mark.slow
def test_a_broker_that_was_cut_off_from_zookeeper_comes_back_without_a_restart(tmp_path: Path) -> None:
    """Longer than its session (P8). It is the controller, and leads a partition. A client that still produces to it
    gets an error soon after the session's end, and not after the request's time-out (P4)."""
    settings = {**SETTINGS, "zookeeper.session.timeout.ms": "2000", "auto.leader.rebalance.enable": "false"}
    with LinkedCluster(3, tmp_path, settings) as cluster, StateWatch(cluster.zookeeper, History()) as states:
        cut_off = states.controller()
        others = [broker for broker in cluster.brokers if broker != cut_off]
        admin, tp = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}), TopicPartition("t", 0)
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[cut_off, *others]])])["t"].result(60)
        write(cluster.bootstrap, 100)
        pid = cluster.brokers[cut_off].pid
        with Requests(cluster.brokers[cut_off].bootstrap) as client:
            cluster.links.cut(cut_off, ZOOKEEPER)
            started = time.monotonic()
            while (code := client.produce({tp: batch(b"a")})[tp].error_code) is ErrorCode.none:
                pass
            assert code is ErrorCode.not_leader_or_follower
            assert time.monotonic() - started < 15  # the session ends after 2 to 4 s, the request after 30 s
        eventually(lambda: states.state(tp).leader == others[0] and states.controller() in others)
        assert set(states.state(tp).isr) == set(others)
        write(",".join(cluster.brokers[other].bootstrap for other in others), 100)
        cluster.links.heal()
        states.wait_for_isr([tp], 3)
        write(cluster.bootstrap, 100)
        assert cluster.brokers[cut_off].pid == pid
        cluster.brokers[others[0]].stop()  # it leads again
        eventually(lambda: states.state(tp).leader in (cut_off, others[1]))
        cluster.brokers[others[0]].start()
        states.wait_for_isr([tp], 3)
        directories = partition_directories(cluster.brokers, tp)
        assert len(directories) == 3
        eventually(lambda: replica_anomalies(tp, directories) == [])


def write(bootstrap: str, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, **CLIENT})
    for number in range(count):
        producer.produce("t", b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failed == []


def are_in_sync(admin: AdminClient, topic: str, replicas: int) -> bool:
    try:
        partitions = admin.list_topics(topic, timeout=2).topics[topic].partitions.values()
    except KafkaException:  # the broker that it asked died
        return False
    return bool(partitions) and all(len(one.isrs) == replicas and one.leader in one.isrs for one in partitions)


def those_that_matter(admin: AdminClient) -> set[int]:
    """The controller and the coordinator of the group; -1 for one that is not known."""
    try:
        metadata = admin.list_topics(OFFSETS, timeout=2)
    except KafkaException:
        return {-1}
    partition = metadata.topics[OFFSETS].partitions.get(0)
    return {metadata.controller_id, -1 if partition is None else partition.leader}
