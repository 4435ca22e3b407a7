"""Subscribing: members share partitions, come and go, and get along with librdkafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer, ConsumerRecord
from broker.client.consumer_coordinator import GroupMember
from broker.client.producer import Producer
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka, await_topics
from tests.support.waiting import eventually

EAGER = {
    "auto.offset.reset": "earliest",
    "heartbeat.interval.ms": 100,
    "session.timeout.ms": 6000,
    "fetch.max.wait.ms": 50,
    "auto.commit.interval.ms": 100,
}


class Member:
    """A consumer that polls in a thread of its own; stop it before looking at what it read."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.records: list[ConsumerRecord] = []
        self.error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def share(self) -> list[TopicPartition]:
        if self.error is not None:
            raise self.error
        return self.consumer.assignment()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.records += self.consumer.poll(0.05)
        except Exception as error:
            self.error = error


@contextmanager
def member(bootstrap: str, group: str, topics: list[str], **properties: object) -> Iterator[Member]:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    with Consumer(bootstrap, {**EAGER, "group.id": group, **named}) as consumer:
        consumer.subscribe(topics)
        running = Member(consumer)
        try:
            yield running
        finally:
            running.stop()
        assert running.error is None, running.error


def partitions(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def produce(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_partitions_and_take_over_from_one_that_leaves(
    broker: Kafka, make_topic: TopicMaker, group: str, strategy: str
) -> None:
    topic = make_topic(4)
    with member(broker.bootstrap, group, [topic], partition_assignment_strategy=strategy) as first:
        eventually(lambda: first.share == partitions(topic, 0, 1, 2, 3))
        with member(broker.bootstrap, group, [topic], partition_assignment_strategy=strategy) as second:
            eventually(lambda: len(first.share) == len(second.share) == 2)
            assert sorted(first.share + second.share) == partitions(topic, 0, 1, 2, 3)
            produce(broker.bootstrap, topic, 1000)
            eventually(lambda: len(first.records) + len(second.records) == 1000)
            assert first.records
            assert second.records
        eventually(lambda: first.share == partitions(topic, 0, 1, 2, 3))
        produce(broker.bootstrap, topic, 100)
        eventually(lambda: len(first.records) + len(second.records) == 1100)


def test_what_one_member_committed_the_next_does_not_read(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(2)
    produce(broker.bootstrap, topic, 200)
    with member(broker.bootstrap, group, [topic]) as first:
        eventually(lambda: len(first.records) == 200)
    produce(broker.bootstrap, topic, 50)
    with member(broker.bootstrap, group, [topic]) as second:
        eventually(lambda: len(second.records) == 50)
        eventually(lambda: sum(second.consumer.committed(second.share).values()) == 250)


def test_a_group_of_ours_and_librdkafkas_members(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(4)
    theirs = LibrdkafkaConsumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    theirs.subscribe([topic])
    with member(broker.bootstrap, group, [topic]) as ours:

        def shared() -> bool:
            theirs.poll(0.02)
            taken = [tp.partition for tp in theirs.assignment()] + [tp.partition for tp in ours.share]
            return len(ours.share) == 2 and sorted(taken) == [0, 1, 2, 3]

        eventually(shared)
        theirs.close()
        eventually(lambda: len(ours.share) == 4)


def test_callbacks_tell_what_comes_and_what_goes_while_it_can_be_committed(
    broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic, seen = make_topic(2), list[tuple[str, list[TopicPartition]]]()
    produce(broker.bootstrap, topic, 10)
    with Consumer(broker.bootstrap, {**EAGER, "group.id": group, "enable.auto.commit": False}) as consumer:

        def revoked(going: list[TopicPartition]) -> None:
            seen.append(("-", going))
            consumer.commit()

        consumer.subscribe([topic], on_assign=lambda coming: seen.append(("+", coming)), on_revoke=revoked)
        read = 0
        while read < 10:
            read += len(consumer.poll(10))
    assert seen == [("+", partitions(topic, 0, 1)), ("-", partitions(topic, 0, 1))]
    with Consumer(broker.bootstrap, {"group.id": group}) as after:
        assert sum(after.committed(partitions(topic, 0, 1)).values()) == 10


def test_a_pattern_takes_topics_that_appear_later(broker: Kafka, cluster: Cluster, topic: str, group: str) -> None:
    admin = Admin(cluster)
    admin.create_topic(f"{topic}-a")
    properties = {**EAGER, "group.id": group, "metadata.max.age.ms": 100}
    with Consumer(broker.bootstrap, properties) as consumer:
        consumer.subscribe(pattern=f"{topic}-[ab]")

        def has(*names: str) -> bool:
            consumer.poll(0.05)
            return [tp.topic for tp in consumer.assignment()] == [f"{topic}-{name}" for name in names]

        eventually(lambda: has("a"))
        admin.create_topic(f"{topic}-b")
        admin.create_topic(f"{topic}-c")
        eventually(lambda: has("a", "b"))


def test_a_black_list_takes_all_other_topics(broker: Kafka, cluster: Cluster, topic: str, group: str) -> None:
    admin = Admin(cluster)
    for name in "abc":
        admin.create_topic(f"{topic}-{name}")
    await_topics(broker.bootstrap, *(f"{topic}-{name}" for name in "abc"))
    with Consumer(broker.bootstrap, {**EAGER, "group.id": group}) as consumer:
        consumer.subscribe(pattern=f"{topic}-.", exclude=".*-b")
        eventually(lambda: not consumer.poll(0.05) and bool(consumer.assignment()))
        assert [tp.topic for tp in consumer.assignment()] == [f"{topic}-a", f"{topic}-c"]
        consumer.subscribe(exclude=f"(?!{topic}).*|.*-[ab]")
        eventually(lambda: not consumer.poll(0.05) and [tp.topic for tp in consumer.assignment()] == [f"{topic}-c"])


def test_a_topic_that_is_created_after_the_subscription_is_read(
    broker: Kafka, cluster: Cluster, topic: str, group: str
) -> None:
    with member(broker.bootstrap, group, [topic]) as waiting:
        eventually(lambda: waiting.consumer._subscription is not None)
        Admin(cluster).create_topic(topic, 2)
        eventually(lambda: waiting.share == partitions(topic, 0, 1))


def test_added_partitions_are_shared_out(broker: Kafka, cluster: Cluster, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(1)
    with member(broker.bootstrap, group, [topic], metadata_max_age_ms=100) as growing:
        eventually(lambda: growing.share == partitions(topic, 0))
        Admin(cluster).create_partitions(topic, 3)
        eventually(lambda: growing.share == partitions(topic, 0, 1, 2))


def test_a_heartbeat_that_is_answered_late_takes_no_member_out_of_the_generation_that_it_joins(
    broker: Kafka, make_topic: TopicMaker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told ILLEGAL_GENERATION. The thread that polls then took JoinGroup's answer for that of SyncGroup."""
    topic = make_topic(2)
    with Cluster(broker.bootstrap) as cluster:
        one = GroupMember(cluster, group, lambda: {topic: 2})
        eventually(lambda: one.advance([topic], 0.1))
        before, request = one.membership, one._shared.request

        def rejoin_first(api: ApiKey, body: Mapping[str, Any]) -> Any:
            one._send_join([topic])
            assert one._connection is not None
            assert one._connection.wait_readable(30)
            return request(api, body)

        monkeypatch.setattr(one._shared, "request", rejoin_first)
        one.heartbeat()
        monkeypatch.undo()
        eventually(lambda: one.advance([topic], 0.1))
        assert one.losses == 0
        assert one.membership == before._replace(generation_id=before.generation_id + 1)
        assert one.assignment == partitions(topic, 0, 1)
        one.leave()
        one.close()


def test_a_member_that_does_not_poll_loses_its_partitions_and_comes_back(
    broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic = make_topic(2)
    properties = {**EAGER, "group.id": group, "max.poll.interval.ms": 1500}
    with Consumer(broker.bootstrap, properties) as sleepy:
        sleepy.subscribe([topic])
        eventually(lambda: not sleepy.poll(0.05) and len(sleepy.assignment()) == 2)
        with member(broker.bootstrap, group, [topic]) as awake:
            eventually(lambda: len(awake.share) == 2)  # sleepy does not poll
            eventually(lambda: not sleepy.poll(0.05) and len(sleepy.assignment()) == 1)


def test_a_static_member_keeps_its_share_over_a_restart(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(2)
    with member(broker.bootstrap, group, [topic], group_instance_id="one") as first:
        with member(broker.bootstrap, group, [topic], group_instance_id="two") as second:
            eventually(lambda: len(first.share) == len(second.share) == 1)
            share = second.share
        with member(broker.bootstrap, group, [topic], group_instance_id="two") as again:
            eventually(lambda: again.share == share)
        assert len(first.share) == 1, "nobody else was disturbed"


def test_a_static_member_that_was_replaced_is_told(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(1)
    properties = {**EAGER, "group.id": group, "group.instance.id": "only"}
    with Consumer(broker.bootstrap, properties) as old:
        old.subscribe([topic])
        eventually(lambda: not old.poll(0.05) and len(old.assignment()) == 1)
        with member(broker.bootstrap, group, [topic], group_instance_id="only") as new:
            eventually(lambda: len(new.share) == 1)
            with pytest.raises(BrokerError) as raised:
                eventually(lambda: bool(old.poll(0.05)))
            assert raised.value.code is ErrorCode.fenced_instance_id


def test_members_without_a_common_strategy_are_refused(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(1)
    with member(broker.bootstrap, group, [topic], partition_assignment_strategy="range") as first:
        eventually(lambda: len(first.share) == 1)
        properties = {**EAGER, "group.id": group, "partition.assignment.strategy": "roundrobin"}
        with Consumer(broker.bootstrap, properties) as odd:
            odd.subscribe([topic])
            with pytest.raises(BrokerError) as raised:
                eventually(lambda: bool(odd.poll(0.05)))
            assert raised.value.code is ErrorCode.inconsistent_group_protocol


def test_a_poll_that_waits_for_the_group_ends_in_time(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(1)
    with Consumer(broker.bootstrap, {**EAGER, "group.id": group}) as silent:
        silent.subscribe([topic])
        eventually(lambda: not silent.poll(0.05) and len(silent.assignment()) == 1)
        with Consumer(broker.bootstrap, {**EAGER, "group.id": group}) as newcomer:
            newcomer.subscribe([topic])
            started = time.monotonic()
            assert newcomer.poll(0.2) == []  # the other one does not poll, so nobody can be let in
            assert time.monotonic() - started < 10


def test_a_group_goes_on_after_the_broker_crashed(broker_factory: Callable[..., BrokerProcess]) -> None:
    process = broker_factory({"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"})
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("t", 2)
    produce(process.bootstrap, "t", 100)
    with member(process.bootstrap, "g", ["t"]) as reader:
        eventually(lambda: len(reader.records) == 100)
        process.kill()
        process.start()
        produce(process.bootstrap, "t", 100)
        eventually(lambda: len({(r.partition, r.offset) for r in reader.records}) == 200)
