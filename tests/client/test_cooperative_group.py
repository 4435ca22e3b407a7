"""Cooperative rebalances (KIP-429): what need not move goes on being read, alone and beside librdkafka."""

from __future__ import annotations

from contextlib import ExitStack

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.client.test_consumer_group import EAGER, Member, member, partitions, produce
from tests.support.kafka import Kafka
from tests.support.waiting import eventually

COOPERATIVE = {**EAGER, "partition.assignment.strategy": "cooperative-sticky"}

Seen = list[tuple[str, list[TopicPartition]]]


def cooperative(broker: Kafka, group: str, topic: str, seen: Seen, **properties: object) -> Consumer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    consumer = Consumer(broker.bootstrap, {**COOPERATIVE, "group.id": group, **named})
    consumer.subscribe(
        [topic],
        on_assign=lambda came: seen.append(("+", came)),
        on_revoke=lambda going: seen.append(("-", going)),
    )
    return consumer


def test_only_what_moves_is_revoked_and_the_rest_is_read_on(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic, seen, seen_second = make_topic(4), Seen(), Seen()
    with ExitStack() as stack:
        first = Member(stack.enter_context(cooperative(broker, group, topic, seen)))
        stack.callback(first.stop)
        eventually(lambda: first.share == partitions(topic, 0, 1, 2, 3))
        second = Member(stack.enter_context(cooperative(broker, group, topic, seen_second)))
        stack.callback(second.stop)
        eventually(lambda: len(first.share) == len(second.share) == 2)
        assert seen[:2] == [("+", partitions(topic, 0, 1, 2, 3)), ("-", second.share)]
        assert [tp for sign, tps in seen[2:] for tp in tps if sign == "+"] == [], "what stayed was never named"
        assert sorted(tp for _, tps in seen_second for tp in tps) == second.share
        produce(broker.bootstrap, topic, 400)
        eventually(lambda: len(first.records) + len(second.records) == 400)
        assert first.error is second.error is None
        # A member that leaves while another rebalance is under way has its last commit refused, as Java's has.
        with Cluster(broker.bootstrap) as cluster:
            eventually(lambda: sum(Admin(cluster).group_offsets(group).values()) == 400)
    with member(broker.bootstrap, group, [topic]) as later:
        produce(broker.bootstrap, topic, 20)
        eventually(lambda: len(later.records) == 20)  # everything before was committed


def test_records_come_while_the_group_waits_for_another_member(
    broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic, seen = make_topic(2), Seen()
    with cooperative(broker, group, topic, seen) as first, cooperative(broker, group, topic, Seen()) as silent:
        eventually(lambda: not first.poll(0.05) and len(first.assignment()) == 2)
        running = Member(first)
        try:
            eventually(lambda: not silent.poll(0.05) and len(silent.assignment()) == 1)
            # From here on `silent` does not poll: a rebalance waits for it.
            with cooperative(broker, group, topic, Seen()) as third:
                third.poll(0.3)
                produce(broker.bootstrap, topic, 50)
                kept = first.assignment()[0].partition
                eventually(lambda: any(record.partition == kept for record in running.records))
                assert third.assignment() == []
        finally:
            running.stop()
        assert running.error is None, running.error


def test_a_member_that_was_put_out_gives_everything_up(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic, seen = make_topic(2), Seen()
    with cooperative(broker, group, topic, seen, max_poll_interval_ms=3000) as consumer:
        eventually(lambda: not consumer.poll(0.05) and len(consumer.assignment()) == 2)
        with member(broker.bootstrap, group, [topic], partition_assignment_strategy="cooperative-sticky") as other:
            eventually(lambda: len(other.share) == 2)  # the first does not poll
        eventually(lambda: not consumer.poll(0.05) and len(consumer.assignment()) == 2)
    both = partitions(topic, 0, 1)
    assert [(sign, tps) for sign, tps in seen if tps] == [("+", both), ("-", both), ("+", both), ("-", both)]


def test_a_group_of_ours_and_librdkafkas_cooperative_members(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(6)
    theirs = LibrdkafkaConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": 100,
        }
    )
    came: list[LibrdkafkaPartition] = []
    went: list[LibrdkafkaPartition] = []
    theirs.subscribe([topic], on_assign=lambda _, tps: came.extend(tps), on_revoke=lambda _, tps: went.extend(tps))

    def split(ours: list[TopicPartition]) -> bool:
        theirs.poll(0.02)
        taken = [tp.partition for tp in theirs.assignment()] + [tp.partition for tp in ours]
        return len(ours) == 3 and sorted(taken) == list(range(6))

    def all_theirs() -> bool:
        theirs.poll(0.02)
        return len(theirs.assignment()) == 6

    eventually(all_theirs)  # they lead the group
    with member(broker.bootstrap, group, [topic], partition_assignment_strategy="cooperative-sticky") as ours:
        eventually(lambda: split(ours.share))
        assert len(went) == 3, "they kept the other three"
    eventually(all_theirs)
    with member(broker.bootstrap, group, [topic], partition_assignment_strategy="cooperative-sticky") as ours:
        eventually(lambda: split(ours.share))
        theirs.close()
        eventually(lambda: len(ours.share) == 6)  # now we lead it
        again = LibrdkafkaConsumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "heartbeat.interval.ms": 100,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        again.subscribe([topic])
        theirs = again
        eventually(lambda: split(ours.share))
        theirs.close()
