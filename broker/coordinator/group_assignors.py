"""The assignors of the coordinator: who of a group's members shall have which partitions. Pure.

`uniform` and `range` are for consumer groups (KIP-848), `simple` is for share groups (KIP-932), in which members share
partitions. Members and partitions are taken in the order of the arguments, so the same input gives the same result.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition


class AssignedMember(NamedTuple):
    """What an assignor knows of a member: the topics it wants, what it shall have so far, and its instance id."""

    topic_ids: frozenset[UUID]
    target: Partitions = frozenset()
    instance_id: str | None = None


Members: TypeAlias = Mapping[str, AssignedMember]
Assignable: TypeAlias = Mapping[UUID, range | tuple[int, ...]]
"""The partitions of each topic that may be assigned. Other topics of members are left out."""

Assignor: TypeAlias = Callable[[Members, Assignable], dict[str, Partitions]]

MOST_PASSES: Final = 16
"""How often `uniform` looks again whether a partition can move. Each pass halves the imbalance, or nearly so."""


def uniform(members: Members, assignable: Assignable) -> dict[str, Partitions]:
    """Balances the number of partitions, and moves as few as that takes.

    Topics with the same subscribers are one pool; the numbers of partitions of its members then differ by one at most.
    Where subscriptions overlap, pools are balanced in turn, at most MOST_PASSES times.
    """
    pools = _pools(members, assignable)
    assigned: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    unassigned: list[list[TopicIdPartition]] = []
    for subscribers, pool in pools:
        free = set(pool)  # operations on sets compute no hash again, which is slow for ids
        for member_id in subscribers:
            kept = members[member_id].target & free
            assigned[member_id] |= kept
            free -= kept
        unassigned.append(sorted(free))
    for (subscribers, _), partitions in zip(pools, unassigned, strict=True):
        loads = [(len(assigned[member_id]), index) for index, member_id in enumerate(subscribers)]
        heapify(loads)
        for partition in partitions:
            load, index = loads[0]
            assigned[subscribers[index]].add(partition)
            heapreplace(loads, (load + 1, index))
    for _ in range(MOST_PASSES):
        if not sum(_balance(assigned, *pool) for pool in pools) or len(pools) == 1:
            break
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _balance(
    assigned: dict[str, set[TopicIdPartition]], subscribers: Sequence[str], pool: frozenset[TopicIdPartition]
) -> int:
    """Move partitions of a pool from who has most to who has least, until these differ by one. The number of moves."""
    least = [(len(assigned[member_id]), index) for index, member_id in enumerate(subscribers)]
    if max(least)[0] - min(least)[0] <= 1:
        return 0
    most = [(-load, index) for load, index in least if not assigned[subscribers[index]].isdisjoint(pool)]
    movable: dict[int, list[TopicIdPartition]] = {}
    heapify(least)
    heapify(most)
    moves = 0
    while most:
        giver, (load, taker) = most[0][1], least[0]
        if load != len(assigned[subscribers[taker]]):  # its load has changed since
            heapreplace(least, (len(assigned[subscribers[taker]]), taker))
        elif len(assigned[subscribers[giver]]) - load <= 1:
            break
        else:
            if giver not in movable:
                movable[giver] = sorted(assigned[subscribers[giver]] & pool)
            partition = movable[giver].pop()
            assigned[subscribers[giver]].remove(partition)
            assigned[subscribers[taker]].add(partition)
            heapreplace(least, (load + 1, taker))
            heappop(most)
            if movable[giver]:
                heappush(most, (-len(assigned[subscribers[giver]]), giver))
            moves += 1
    return moves


@lru_cache(64)
def _partitions(topic_id: UUID, numbers: range | tuple[int, ...]) -> Partitions:
    """Those of a topic. They are kept because the hashes of new ones take long."""
    return frozenset(TopicIdPartition(topic_id, number) for number in numbers)


def _pools(members: Members, assignable: Assignable) -> list[tuple[tuple[str, ...], Partitions]]:
    """Topics with the same subscribers together: (members, partitions). First those with most partitions a member."""
    subscribers: dict[UUID, list[str]] = defaultdict(list)
    for member_id, member in members.items():
        for topic_id in member.topic_ids:
            if topic_id in assignable:
                subscribers[topic_id].append(member_id)
    pools: dict[tuple[str, ...], Partitions] = defaultdict(frozenset)
    for topic_id in sorted(subscribers):
        pools[tuple(subscribers[topic_id])] |= _partitions(topic_id, assignable[topic_id])
    return sorted(pools.items(), key=lambda pool: (-len(pool[1]) / len(pool[0]), len(pool[0])))


def ranges(members: Members, assignable: Assignable) -> dict[str, Partitions]:
    """`range`: each member gets consecutive partitions of each topic.

    Topics with as many partitions and the same subscribers are divided in the same way, so a member has the same
    numbers of all of them. Static members come first, by instance id, so that they keep theirs under new member ids.
    """
    in_order = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m))
    subscribers = Counter(topic_id for member in members.values() for topic_id in member.topic_ids)
    turns: Counter[UUID] = Counter()
    assigned: dict[str, Partitions] = {}
    for member_id in in_order:
        mine: list[TopicIdPartition] = []
        for topic_id in members[member_id].topic_ids & assignable.keys():
            quota, extra = divmod(len(assignable[topic_id]), subscribers[topic_id])
            turn = turns[topic_id]
            begin = turn * quota + min(turn, extra)
            numbers = assignable[topic_id][begin : begin + quota + (turn < extra)]
            mine += (TopicIdPartition(topic_id, number) for number in numbers)
            turns[topic_id] += 1
        assigned[member_id] = frozenset(mine)
    return assigned


def simple(members: Members, assignable: Assignable) -> dict[str, Partitions]:
    """For share groups: every partition has a member, every member a partition, and as few share one as that takes.

    Topics with different subscribers are divided apart from each other, so one pool may be unbalanced by another.
    """
    assigned: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for subscribers, partitions in _pools(members, assignable):
        if partitions:
            _share(assigned, members, subscribers, sorted(partitions))
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _share(
    assigned: dict[str, set[TopicIdPartition]],
    members: Members,
    subscribers: Sequence[str],
    partitions: Sequence[TopicIdPartition],
) -> None:
    """Give each partition to `sharing` members. What a member has already it keeps, up to its quota."""
    sharing = -(-len(subscribers) // len(partitions))
    room = dict.fromkeys(partitions, sharing)
    quotas: dict[str, int] = {}
    for turn, member_id in enumerate(subscribers):
        ends = (-(-sharing * len(partitions) * end // len(subscribers)) for end in (turn, turn + 1))
        quotas[member_id] = -next(ends) + next(ends)
        for partition in sorted(members[member_id].target & room.keys()):
            if quotas[member_id] and room[partition]:
                assigned[member_id].add(partition)
                quotas[member_id] -= 1
                room[partition] -= 1
    unfilled = deque(member_id for member_id in subscribers if quotas[member_id])
    for partition in partitions:
        for _ in range(len(unfilled)):
            if not room[partition]:
                break
            member_id = unfilled.popleft()
            if partition not in assigned[member_id]:
                assigned[member_id].add(partition)
                room[partition] -= 1
                quotas[member_id] -= 1
            if quotas[member_id]:
                unfilled.append(member_id)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": ranges}
"""Those of consumer groups, by the name that clients use (group.remote.assignor)."""
