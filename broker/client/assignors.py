"""How the leader of a consumer group shares out partitions; pure functions.

Called through assignor_table.py. Every member must come to the same result as Kafka's assignors of these names, since
any member of a mixed group may be its leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.protocol.topic_partition import TopicPartition

__all__ = ["Assignment", "Member", "assign_range", "assign_round_robin"]


class Member(NamedTuple):
    """Who takes part, and in which topics."""

    member_id: str
    topics: Sequence[str]
    group_instance_id: str | None = None
    owned: Sequence[TopicPartition] = ()
    """What it had, which only the sticky assignors ask, and in which generation."""
    generation: int = -1

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members first, so that a restarted one, with another member id, gets what it had (KIP-345)."""
        return self.group_instance_id is None, self.group_instance_id or self.member_id


Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id; every member is in it."""


def assign_range(members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
    """Each topic by itself: consecutive partitions to the members in order, the first ones get the odd ones.

    `partitions`: how many each topic has; a topic that is not in it is not assigned. Kafka's `RangeAssignor`.
    """
    assignment: Assignment = {member.member_id: [] for member in members}
    for topic in sorted(partitions):
        takers = sorted((m for m in members if topic in m.topics), key=lambda m: m.rank)
        if not takers:
            continue
        each, odd = divmod(partitions[topic], len(takers))
        start = 0
        for position, member in enumerate(takers):
            end = start + each + (position < odd)
            assignment[member.member_id] += (TopicPartition(topic, index) for index in range(start, end))
            start = end
    return assignment


def assign_round_robin(members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
    """All partitions of all topics in turn, each to the next member that wants it. Kafka's `RoundRobinAssignor`."""
    assignment: Assignment = {member.member_id: [] for member in members}
    ring = sorted(members, key=lambda m: m.rank)
    position = 0
    for topic in sorted(partitions):
        if not any(topic in member.topics for member in ring):
            continue
        for index in range(partitions[topic]):
            while topic not in ring[position % len(ring)].topics:
                position += 1
            assignment[ring[position % len(ring)].member_id].append(TopicPartition(topic, index))
            position += 1
    return assignment
