"""How the leader of a consumer group assigns partitions to its members; pure functions.

`ASSIGNORS` names them as members name them in JoinGroup and in `partition.assignment.strategy`. In a mixed group any
member may be the leader, so each assignor gives the same result, and reads and writes the same user data, as Kafka's
assignor of that name.

The sticky assignors (KIP-54, KIP-429) balance first: no other assignment has a smaller spread of partitions over the
members. Among the balanced assignments they choose one that moves few partitions.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from broker.protocol.consumer_protocol import Subscription
from broker.protocol.entities import Int32, String, Table, Wire
from broker.protocol.struct_reader import reader
from broker.protocol.struct_writer import encoder
from broker.protocol.topic_partition import TopicPartition, by_topic


class Member(NamedTuple):
    member_id: str
    topics: Sequence[str]
    group_instance_id: str | None = None
    owned: Sequence[TopicPartition] = ()
    """Its partitions in an earlier generation; only the sticky assignors use them."""
    generation: int = -1

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members first, so that a restarted one, with another member id, gets what it had (KIP-345)."""
        return self.group_instance_id is None, self.group_instance_id or self.member_id


Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id, for every member."""


def assign_range(members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
    """Topic by topic, consecutive partitions for each member; the first members may get one more.

    `partitions`: how many each topic has; other topics are not assigned. Kafka's `RangeAssignor`.
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
    """The partitions of all topics in turn, each to the next subscribed member. Kafka's `RoundRobinAssignor`."""
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


def assign_sticky(members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
    """Balanced, and with few partitions moved; `partitions`: how many each topic has. Kafka's `StickyAssignor`."""
    members = sorted(members, key=lambda member: member.rank)
    if not members:
        return {}
    topics = sorted({topic for member in members for topic in member.topics} & partitions.keys())
    every = [TopicPartition(topic, index) for topic in topics for index in range(partitions[topic])]
    kept = _valid_claims(members, partitions)
    if len({frozenset(member.topics) for member in members}) == 1:
        shares = _assign_equally(kept, every)
    else:
        shares = _Balancer(members, kept, every).balanced()
    return {member_id: sorted(share) for member_id, share in shares.items()}


def assign_cooperative_sticky(members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
    """As `assign_sticky`, but a partition that moves is assigned to nobody yet: its owner has to revoke it first.

    The owner then rejoins, and the next rebalance assigns the partition. Kafka's `CooperativeStickyAssignor`.
    """
    shares = assign_sticky(members, partitions)
    owners: dict[TopicPartition, set[str]] = {}
    for member in members:
        for tp in member.owned:
            owners.setdefault(tp, set()).add(member.member_id)
    return {
        member_id: [tp for tp in share if owners.get(tp, set()) <= {member_id}] for member_id, share in shares.items()
    }


def _valid_claims(members: Iterable[Member], partitions: Mapping[str, int]) -> Assignment:
    """What each member had and may keep. Of two owners the newer generation keeps it; of equal ones neither."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for tp in member.owned:
            if tp.topic not in member.topics or tp.partition >= partitions.get(tp.topic, 0):
                continue
            generation = claims.get(tp, (-2, None))[0]
            if member.generation > generation:
                claims[tp] = member.generation, member.member_id
            elif member.generation == generation:
                claims[tp] = generation, None
    kept: Assignment = {member.member_id: [] for member in members}
    for tp, (_, owner) in sorted(claims.items()):
        if owner is not None:
            kept[owner].append(tp)
    return kept


def _assign_equally(kept: Assignment, every: Sequence[TopicPartition]) -> Assignment:
    """All members have the same topics: each gets the quotient, and the first ones, up to the remainder, one more."""
    each, odd = divmod(len(every), len(kept))
    room = {}
    for member_id in sorted(kept, key=lambda id_: -len(kept[id_])):  # stable: ranks decide between equals
        quota = each + (odd > 0)
        odd -= odd > 0
        kept[member_id] = kept[member_id][:quota]
        room[member_id] = quota - len(kept[member_id])
    taken = {tp for share in kept.values() for tp in share}
    takers = deque(member_id for member_id in kept if room[member_id])
    for tp in every:
        if tp in taken:
            continue
        member_id = takers.popleft()
        kept[member_id].append(tp)
        room[member_id] -= 1
        if room[member_id]:
            takers.append(member_id)
    return kept


class _Balancer:
    """For members with different topics: begins with what they had, then moves partitions along chains of members.

    A chain leads from a member to one with at least two partitions fewer. Each member in between gives one partition
    and gets one. The shortest chain moves the fewest partitions. Without any chain the balance is optimal.
    """

    def __init__(self, members: Sequence[Member], kept: Assignment, every: Sequence[TopicPartition]) -> None:
        self._shares = kept
        self._had = {tp: member_id for member_id, share in kept.items() for tp in share}
        self._takers: dict[str, list[str]] = {}
        for member in members:
            for topic in set(member.topics):
                self._takers.setdefault(topic, []).append(member.member_id)
        for tp in sorted(every, key=lambda tp: (len(self._takers[tp.topic]), tp)):
            if tp not in self._had:
                taker = min(self._takers[tp.topic], key=lambda id_: len(kept[id_]))
                kept[taker].append(tp)
        self._topics = {member_id: Counter(tp.topic for tp in share) for member_id, share in kept.items()}

    def balanced(self) -> Assignment:
        while self._improve():
            pass
        return self._shares

    def _improve(self) -> bool:
        for member_id in sorted(self._shares, key=lambda id_: -len(self._shares[id_])):
            chain = self._chain_from(member_id)
            if chain:
                for giver, topic, taker in chain:
                    self._move(giver, topic, taker)
                return True
        return False

    def _chain_from(self, start: str) -> list[tuple[str, str, str]]:
        """The moves (giver, topic, taker), last one first, by which `start` gives one partition away."""
        low_enough = len(self._shares[start]) - 2
        came: dict[str, tuple[str, str]] = {}
        waiting, seen = deque([start]), {start}
        while waiting:
            giver = waiting.popleft()
            for topic in self._topics[giver]:
                for taker in self._takers[topic]:
                    if taker in seen:
                        continue
                    seen.add(taker)
                    came[taker] = giver, topic
                    if len(self._shares[taker]) <= low_enough:
                        return self._chain_to(came, taker, start)
                    waiting.append(taker)
        return []

    def _chain_to(self, came: Mapping[str, tuple[str, str]], taker: str, start: str) -> list[tuple[str, str, str]]:
        chain = []
        while taker != start:
            giver, topic = came[taker]
            chain.append((giver, topic, taker))
            taker = giver
        return chain

    def _move(self, giver: str, topic: str, taker: str) -> None:
        """Move one partition of `topic`: if possible one that the taker had before, or that the giver did not have."""
        movable = [tp for tp in self._shares[giver] if tp.topic == topic]
        tp = max(movable, key=lambda tp: (self._had.get(tp) == taker, self._had.get(tp) != giver, tp))
        self._shares[giver].remove(tp)
        self._shares[taker].append(tp)
        self._topics[giver][topic] -= 1
        if not self._topics[giver][topic]:
            del self._topics[giver][topic]
        self._topics[taker][topic] += 1


_INT32 = struct.Struct(">i")


class Assignor(NamedTuple):
    """The assignment, and the user data to send with JoinGroup: (earlier partitions, generation) → bytes."""

    assign: Callable[[Sequence[Member], Mapping[str, int]], Assignment]
    user_data: Callable[[Sequence[TopicPartition], int], bytes | None] = lambda had, generation: None
    cooperative: bool = False
    """Members keep their partitions while the group rebalances (KIP-429)."""


def member_of(
    member_id: str, subscription: Subscription, group_instance_id: str | None = None, *, had_in_user_data: bool
) -> Member:
    """A member as assignors see it. `had_in_user_data`: its user data has the format of Kafka's "sticky" assignor."""
    owned, generation = subscription.owned, subscription.generation_id
    data = subscription.user_data
    if had_in_user_data and data:
        owned, generation = _read_sticky(data)
    elif generation < 0 and data and len(data) == _INT32.size:
        generation = _INT32.unpack(data)[0]
    return Member(member_id, subscription.topics, group_instance_id, owned, generation)


def is_cooperative(strategies: Iterable[str]) -> bool:
    """Whether a member keeps its partitions during a rebalance: only if every strategy allows it."""
    return all(ASSIGNORS[name].cooperative for name in strategies)


class _StickyTopic(NamedTuple):
    topic: String
    partitions: tuple[Int32, ...]


class _StickyUserData(NamedTuple):
    """`StickyAssignorUserData`, which has no version in front. Version 0 has no generation."""

    topics: tuple[_StickyTopic, ...]
    generation: Annotated[Int32, Wire(versions=(1,))]


def _write_sticky(had: Sequence[TopicPartition], generation: int) -> bytes | None:
    topics = by_topic((tp, tp.partition) for tp in sorted(had)).items()
    return encoder(Table(_StickyUserData, 1, False))((topics, generation)) if topics else None


def _read_sticky(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Version 1, else version 0. Data that cannot be read counts as no partitions."""
    for version in (1, 0):
        try:
            (topics, generation), _ = reader(Table(_StickyUserData, version, False))(data, 0, len(data))
        except (ValueError, LookupError, OverflowError, struct.error):
            continue
        return tuple(TopicPartition(topic, index) for topic, indexes in topics for index in indexes), generation
    return (), -1


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": Assignor(assign_range),
    "roundrobin": Assignor(assign_round_robin),
    "sticky": Assignor(assign_sticky, _write_sticky),
    "cooperative-sticky": Assignor(
        assign_cooperative_sticky, lambda had, generation: _INT32.pack(generation), cooperative=True
    ),
}
