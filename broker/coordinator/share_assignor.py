"""Kafka's assignor `simple` of share groups (KIP-932): partitions are shared by as many members as there are. Pure.

Each partition goes to the same number of members, enough for every member to have some, and the members have equally
many, give or take one. Who has a partition keeps it as far as that allows. Where members subscribe to different topics,
each topic is assigned alone, as in Kafka's `SimpleHeterogeneousAssignmentBuilder`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from uuid import UUID

from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition

SIMPLE = "simple"


def assign(
    subscriptions: Mapping[str, frozenset[UUID]], assignable: Partitions, current: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """Member id → the partitions that it shall have, of the topics it subscribes to."""
    topics = frozenset(one.topic_id for one in assignable)
    wanted = {member: topic_ids & topics for member, topic_ids in sorted(subscriptions.items())}
    if len(set(wanted.values())) == 1:
        (of_all,) = set(wanted.values())
        return _shared(sorted(one for one in assignable if one.topic_id in of_all), list(wanted), current)
    targets: dict[str, Partitions] = dict.fromkeys(wanted, frozenset())
    for topic in sorted(topics):
        members = [member for member, topic_ids in wanted.items() if topic in topic_ids]
        partitions = sorted(one for one in assignable if one.topic_id == topic)
        for member, found in _shared(partitions, members, current).items():
            targets[member] |= found
    return targets


def _shared(
    partitions: Iterable[TopicIdPartition], members: list[str], current: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """All of `partitions` for `members`, which all want all of them."""
    holders: dict[TopicIdPartition, int] = dict.fromkeys(partitions, 0)
    if not holders or not members:
        return dict.fromkeys(members, frozenset())
    sharing = -(-len(members) // len(holders))
    total, count = sharing * len(holders), len(members)
    found: dict[str, set[TopicIdPartition]] = {}
    unfilled: deque[tuple[str, int]] = deque()
    for index, member in enumerate(members):
        wanted = -(-total * (index + 1) // count) + (-total * index // count)
        kept: set[TopicIdPartition] = set()
        found[member] = kept
        for one in sorted(current.get(member, ())):
            if len(kept) < wanted and holders.get(one, sharing) < sharing:
                kept.add(one)
                holders[one] += 1
        if len(kept) < wanted:
            unfilled.append((member, wanted))
    for one, held in holders.items():
        for _ in range(len(unfilled)):
            if held >= sharing:
                break
            member, wanted = unfilled.popleft()
            if one not in found[member]:
                found[member].add(one)
                held += 1
            if len(found[member]) < wanted:
                unfilled.append((member, wanted))
    return {member: frozenset(kept) for member, kept in found.items()}
