"""Kills of the leader and of the share coordinator lose no acknowledgement that was answered, and no record."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from broker.client.consumer import Consumer
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.share.persister import SharePartitionKey
from tests.support.raw_requests import Requests
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.share_members import ACCEPT, REJECT, ShareMember, acquired, configure
from tests.support.share_worker import ShareWorker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEP = 600
SHARE = 2
"""The key type of FindCoordinator."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    settings = {
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
        "share.coordinator.state.topic.num.partitions": "3",
    }
    with ReplicatedCluster(tmp_path_factory.mktemp("share-failover"), settings) as cluster:
        yield cluster


class Reader:
    """Reads the first partition as members of a share group, one connection after the other, and accepts everything,
    or rejects it."""

    def __init__(self, cluster: ReplicatedCluster, group: str, topic: str, kind: int = ACCEPT) -> None:
        self._kind = kind
        self._cluster = cluster
        self._group = group
        self._topic = topic
        self.answered: set[int] = set()
        """Offsets whose acknowledgement was answered without an error."""
        self.lost: set[int] = set()
        """Those of them that came again."""
        self.seen: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            try:
                leader = self._cluster.leader(TopicPartition(self._topic, 0))
                with Requests(self._cluster.brokers[leader].bootstrap, timeout_s=15) as ask:
                    member = ShareMember(ask, self._group, self._topic, str(uuid.uuid4()))
                    while not self._ended.is_set() and self._read(member):
                        pass
            except (OSError, PykafkaError):
                continue  # a broker is dead, or knows its leader no more

    def _read(self, member: ShareMember) -> bool:
        """Whether the connection is of further use."""
        answer = member.fetch(max_records=10, max_wait=500)
        if answer.error_code is not ErrorCode.none or has_error(answer):
            return False
        ranges = [(first, last) for first, last, _ in acquired(answer)]
        offsets = {offset for first, last in ranges for offset in range(first, last + 1)}
        self.seen |= offsets
        self.lost |= offsets & self.answered
        if not ranges:
            return True
        answer = member.acknowledge({0: [(first, last, [self._kind]) for first, last in ranges]})
        if answer.error_code is not ErrorCode.none or has_error(answer):
            return False
        self.answered |= offsets
        return True

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def has_error(answer: Any) -> bool:
    return any(partition.error_code for topic in answer.responses for partition in topic.partitions)


def share_coordinator(cluster: ReplicatedCluster, key: SharePartitionKey) -> int:
    """The id of the broker that has the state of a share partition."""
    found: list[int] = []

    def is_found() -> bool:
        body = {"key_type": SHARE, "coordinator_keys": [key.coordinator_key]}
        with Requests(cluster.bootstrap.split(",")[0]) as ask:
            (coordinator,) = ask.ask(ApiKey.FIND_COORDINATOR, body, 6).coordinators
        found[:] = [coordinator.node_id] * (coordinator.error_code is ErrorCode.none)
        return bool(found)

    eventually(is_found)
    return found[0]


def test_kills_of_leader_and_share_coordinator(cluster: ReplicatedCluster, topic: str) -> None:
    group, tp = f"share-{topic}", TopicPartition(topic, 0)
    cluster.create(topic)
    with Requests(cluster.brokers[cluster.coordinator(group)].bootstrap) as ask:
        configure(ask, group, share_auto_offset_reset="earliest")
        topic_id = ShareMember(ask, group, topic).join().topic_id
    key = SharePartitionKey(group, topic_id, 0)
    reader, written = Reader(cluster, group, topic), 0
    try:
        for victim in (
            lambda: cluster.leader(tp),
            lambda: share_coordinator(cluster, key),
            lambda: cluster.leader(tp),
            lambda: share_coordinator(cluster, key),
        ):
            produce(cluster.bootstrap, topic, STEP)
            written += STEP
            wait_until_answered(reader, written - STEP // 2)
            with cluster.without(victim()):
                produce(cluster.bootstrap, topic, STEP)
                written += STEP
                wait_until_answered(reader, written - STEP // 2)
        eventually(lambda: start_offset(cluster, group, topic) == written, timeout=120)
    finally:
        reader.close()
    print(f"{len(reader.answered)} of {written} acknowledgements were answered; {len(reader.lost)} of them lost")
    assert reader.lost == set()
    assert reader.seen == set(range(written))


def test_kills_of_the_leader_of_their_topic_lose_no_dead_letter(cluster: ReplicatedCluster, topic: str) -> None:
    group, dlq, written = f"share-{topic}", f"dlq.{topic}", 0
    cluster.create(topic)
    cluster.create(dlq, errors_deadletterqueue_group_enable="true")
    with Requests(cluster.brokers[cluster.coordinator(group)].bootstrap) as ask:
        configure(ask, group, share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=dlq)
        ShareMember(ask, group, topic).join()
    reader = Reader(cluster, group, topic, REJECT)
    try:
        for _ in range(2):
            produce(cluster.bootstrap, topic, STEP)
            written += STEP
            wait_until_answered(reader, written - STEP // 2)
            with cluster.without(cluster.leader(TopicPartition(dlq, 0))):
                produce(cluster.bootstrap, topic, STEP)
                written += STEP
                wait_until_answered(reader, written - STEP // 2)
        eventually(lambda: start_offset(cluster, group, topic) == written, timeout=120)
    finally:
        reader.close()
    tp, found = TopicPartition(dlq, 0), []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning()
        while consumer.lag()[tp]:
            found += [dict(one.headers)["__dlq.errors.offset"] or b"" for one in consumer.poll(1.0)]
    print(f"{len(found)} dead letters of {written} records")
    assert set(map(int, found)) == set(range(written))


def test_consumers_go_on_when_the_group_coordinator_is_killed(cluster: ReplicatedCluster, topic: str) -> None:
    group = f"share-{topic}"
    cluster.create(topic)
    with Requests(cluster.brokers[cluster.coordinator(group)].bootstrap) as ask:
        configure(ask, group, share_auto_offset_reset="earliest")
    with (
        ShareWorker(cluster.bootstrap, group, topic) as one,
        ShareWorker(cluster.bootstrap, group, topic) as two,
    ):
        produce(cluster.bootstrap, topic, STEP)
        eventually(lambda: len(one.done | two.done) >= STEP // 2)
        with cluster.without(cluster.coordinator(group)):
            produce(cluster.bootstrap, topic, STEP)
            eventually(lambda: start_offset(cluster, group, topic) == 2 * STEP, timeout=120)
        produce(cluster.bootstrap, topic, STEP)
        eventually(lambda: start_offset(cluster, group, topic) == 3 * STEP, timeout=120)
        assert one.got.total() + two.got.total() >= 3 * STEP
        assert max(one.counts + two.counts) <= 5


def produce(bootstrap: str, topic: str, count: int) -> None:
    """In batches of ten."""
    settings = {"bootstrap.servers": bootstrap, "batch.num.messages": 10, "enable.idempotence": True}
    producer = Producer(settings)
    for value in range(count):
        producer.produce(topic, str(value).encode())
    assert producer.flush(60) == 0


def wait_until_answered(reader: Reader, count: int) -> None:
    """Some answers may have been lost with a broker, so `count` is less than all."""
    eventually(lambda: len(reader.answered) >= count, timeout=90)


def start_offset(cluster: ReplicatedCluster, group: str, topic: str) -> int:
    """As any broker that lives tells it."""
    asked = {"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]}
    for address in cluster.bootstrap.split(","):
        try:
            with Requests(address) as ask:
                (found,) = ask.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [asked]}).groups
        except (OSError, BrokerError):
            continue
        return int(found.topics[0].partitions[0].start_offset)
    return -1
