"""Groups whose members the coordinator assigns (KIP-848), by our own consumer: `group.protocol=consumer`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.client.test_consumer_group import Member, partitions, produce
from tests.support.kafka import Kafka, need
from tests.support.waiting import eventually

QUICK = {
    "group.protocol": "consumer",
    "auto.offset.reset": "earliest",
    "fetch.max.wait.ms": 50,
    "auto.commit.interval.ms": 100,
}

Seen = list[tuple[str, list[TopicPartition]]]


@pytest.fixture(autouse=True)
def served(broker: Kafka) -> None:
    need(broker.bootstrap, ApiKey.CONSUMER_GROUP_HEARTBEAT)


def opened(broker: Kafka, group: str, topic: str, seen: Seen | None = None, **properties: object) -> Consumer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    consumer = Consumer(broker.bootstrap, {**QUICK, "group.id": group, **named})
    moves = [] if seen is None else seen
    consumer.subscribe(
        [topic], on_assign=lambda came: moves.append(("+", came)), on_revoke=lambda going: moves.append(("-", going))
    )
    return consumer


@contextmanager
def member(broker: Kafka, group: str, topic: str, seen: Seen | None = None, **properties: object) -> Iterator[Member]:
    with opened(broker, group, topic, seen, **properties) as consumer:
        running = Member(consumer)
        try:
            yield running
        finally:
            running.stop()
        assert running.error is None, running.error


def test_members_share_partitions_and_only_what_moves_is_revoked(
    broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic, seen, seen_second = make_topic(4), Seen(), Seen()
    with member(broker, group, topic, seen) as first:
        eventually(lambda: first.share == partitions(topic, 0, 1, 2, 3))
        with member(broker, group, topic, seen_second) as second:
            eventually(lambda: len(first.share) == len(second.share) == 2)
            assert sorted(first.share + second.share) == partitions(topic, 0, 1, 2, 3)
            assert [move for move in seen if move[1]] == [("+", partitions(topic, 0, 1, 2, 3)), ("-", second.share)]
            produce(broker.bootstrap, topic, 400)
            eventually(lambda: len(first.records) + len(second.records) == 400)
            assert first.records
            assert second.records
        eventually(lambda: first.share == partitions(topic, 0, 1, 2, 3))
        produce(broker.bootstrap, topic, 100)
        eventually(lambda: len(first.records) + len(second.records) == 500)
        with Cluster(broker.bootstrap) as cluster:
            eventually(lambda: sum(Admin(cluster).group_offsets(group).values()) == 500)


def test_a_topic_that_comes_later_and_one_that_grows(
    broker: Kafka, make_topic: TopicMaker, group: str, topic: str
) -> None:
    with member(broker, group, topic, metadata_max_age_ms=200) as reader:
        make_topic(2)
        eventually(lambda: reader.share == partitions(topic, 0, 1))
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_partitions(topic, 3)
        eventually(lambda: reader.share == partitions(topic, 0, 1, 2))
        produce(broker.bootstrap, topic, 30)
        eventually(lambda: len(reader.records) == 30)


def test_a_member_that_does_not_poll_leaves_and_comes_back(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic, seen = make_topic(2), Seen()
    with opened(broker, group, topic, seen, max_poll_interval_ms=3000) as consumer:
        eventually(lambda: not consumer.poll(0.05) and len(consumer.assignment()) == 2)
        with member(broker, group, topic) as other:
            eventually(lambda: len(other.share) == 2)  # the first does not poll
        eventually(lambda: not consumer.poll(0.05) and len(consumer.assignment()) == 2)
    both = partitions(topic, 0, 1)
    assert [(sign, tps) for sign, tps in seen if tps] == [("+", both), ("-", both), ("+", both), ("-", both)]


def test_a_group_of_ours_and_librdkafkas_members(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(6)
    theirs = LibrdkafkaConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    theirs.subscribe([topic])
    with member(broker, group, topic) as ours:

        def split() -> bool:
            theirs.poll(0.02)
            taken = [tp.partition for tp in theirs.assignment()] + [tp.partition for tp in ours.share]
            return len(ours.share) == 3 and sorted(taken) == list(range(6))

        eventually(split)
        theirs.close()
        eventually(lambda: len(ours.share) == 6)


def test_a_static_member_comes_back_to_its_partitions(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic, seen = make_topic(4), Seen()
    with member(broker, group, topic, seen) as other:
        eventually(lambda: len(other.share) == 4)
        with member(broker, group, topic, group_instance_id="one") as first:
            eventually(lambda: len(first.share) == len(other.share) == 2)
            had = first.share
        with member(broker, group, topic, group_instance_id="one") as again:
            eventually(lambda: again.share == had)
            with opened(broker, group, topic, group_instance_id="one") as twin, pytest.raises(BrokerError) as refused:
                eventually(lambda: bool(twin.poll(0.05)))
            assert refused.value.code is ErrorCode.unreleased_instance_id
        assert [tps for sign, tps in seen if sign == "-" and tps] == [had], "it was never given the other's partitions"


def test_what_the_coordinator_refuses_is_raised_in_its_words(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic()
    with opened(broker, group, topic, group_remote_assignor="best") as consumer, pytest.raises(BrokerError) as refused:
        eventually(lambda: bool(consumer.poll(0.05)))
    assert refused.value.code is ErrorCode.unsupported_assignor
    assert "best" in str(refused.value)
    assert "range" in str(refused.value)


def test_offsets_of_a_transaction_are_committed_with_the_members_epoch(
    broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic = make_topic(2)
    with ExitStack() as stack:
        consumer = stack.enter_context(opened(broker, group, topic, enable_auto_commit="false"))
        producer = stack.enter_context(Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": group}))
        eventually(lambda: not consumer.poll(0.05) and len(consumer.assignment()) == 2)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, consumer.group_metadata())
        producer.commit_transaction()
        eventually(lambda: consumer.committed(consumer.assignment()) == {TopicPartition(topic, 0): 7})
        stale = consumer.group_metadata()
        consumer.unsubscribe()
        producer.begin_transaction()
        with pytest.raises(BrokerError):
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 9}, stale)
        producer.abort_transaction()
        assert consumer.committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 7}
