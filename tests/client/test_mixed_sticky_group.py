"""Sticky groups of ours and kafka-python's members: each side's leader reads what the other side's members had.

Cooperative ones only: kafka-python 3.0 puts a version before the user data of "sticky", which Java does not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.client.test_consumer_group import member
from tests.support.kafka import Kafka
from tests.support.waiting import eventually

STRATEGY = "cooperative-sticky"


class Theirs:
    """A member of kafka-python, polled by a thread."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.share: list[TopicPartition] = []
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=100,
            partition_assignment_strategy=[CooperativeStickyAssignor],
        )
        self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe([topic])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._consumer.poll(500)  # also its time for the commit before it joins: with 20 ms it may never join
            self.share = sorted(TopicPartition(*tp) for tp in self._consumer.assignment())


@contextmanager
def theirs(bootstrap: str, group: str, topic: str) -> Iterator[Theirs]:
    running = Theirs(bootstrap, group, topic)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("we_lead", [True, False])
def test_the_second_member_keeps_its_share_when_a_third_joins(
    broker: Kafka, make_topic: TopicMaker, group: str, we_lead: bool
) -> None:
    topic = make_topic(6)
    with ExitStack() as stack:

        def join(ours: bool) -> object:
            if not ours:
                return stack.enter_context(theirs(broker.bootstrap, group, topic))
            one = member(broker.bootstrap, group, [topic], partition_assignment_strategy=STRATEGY)
            return stack.enter_context(one)

        members: list[object] = []

        def shares() -> list[list[TopicPartition]]:
            return [one.share for one in members]  # type: ignore[attr-defined]

        def shared(each: int) -> bool:
            found = shares()
            return [len(share) for share in found] == [each] * len(found) and len(set().union(*found)) == 6

        members.append(join(ours=we_lead))  # it leads as long as it stays
        eventually(lambda: shared(6))
        members.append(join(ours=not we_lead))
        eventually(lambda: shared(3))
        before = shares()[1]
        members.append(join(ours=we_lead))
        eventually(lambda: shared(2))
        assert set(shares()[1]) < set(before), "what the leader was told by the other side"
