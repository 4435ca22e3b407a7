"""Sharing out partitions so that few move: Kafka's sticky and cooperative-sticky assignors (KIP-54, KIP-429); pure.

Called by the leader of a group through assignor_table.py. Balance comes first: no other assignment has a smaller
spread of partitions over the members that may have them. Then as few partitions as are needed leave their owner.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from broker.client.assignors import Assignment, Member
from broker.protocol.topic_partition import TopicPartition

__all__ = ["assign_cooperative_sticky", "assign_sticky"]


def assign_sticky(members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
    """Every partition of a topic that somebody wants to one member who does; `partitions`: how many a topic has."""
    members = sorted(members, key=lambda member: member.rank)
    if not members:
        return {}
    topics = sorted({topic for member in members for topic in member.topics} & partitions.keys())
    every = [TopicPartition(topic, index) for topic in topics for index in range(partitions[topic])]
    kept = _valid_claims(members, partitions)
    if len({frozenset(member.topics) for member in members}) == 1:
        shares = _share_alike(kept, every)
    else:
        shares = _Balancer(members, kept, every).balanced()
    return {member_id: sorted(share) for member_id, share in shares.items()}


def assign_cooperative_sticky(members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
    """The same, but a partition that changes hands is given to nobody yet: its owner must let go of it first.

    The owner then joins once more, and the partition is free in the rebalance that follows.
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
    """What each member had and may keep. Of two that claim a partition the newer generation is right, or nobody."""
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


def _share_alike(kept: Assignment, every: Sequence[TopicPartition]) -> Assignment:
    """All members want the same topics: each gets the quotient, and as many as the remainder says one more."""
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
    """Members that want different topics: begin with what they had, then move along chains of members.

    A partition goes from a member to one with at least two fewer, through members in between that give one and get
    one; the shortest such chain moves fewest. When there is none the spread cannot be made smaller.
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
        """The shares once nothing more can be gained."""
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
        """The moves (giver, topic, taker), last one first, that take one partition away from `start`."""
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
                        return self._way_back(came, taker, start)
                    waiting.append(taker)
        return []

    def _way_back(self, came: Mapping[str, tuple[str, str]], taker: str, start: str) -> list[tuple[str, str, str]]:
        chain = []
        while taker != start:
            giver, topic = came[taker]
            chain.append((giver, topic, taker))
            taker = giver
        return chain

    def _move(self, giver: str, topic: str, taker: str) -> None:
        """Give one partition of `topic`, best one that was the taker's before, or else not the giver's."""
        mine = [tp for tp in self._shares[giver] if tp.topic == topic]
        tp = max(mine, key=lambda tp: (self._had.get(tp) == taker, self._had.get(tp) != giver, tp))
        self._shares[giver].remove(tp)
        self._shares[taker].append(tp)
        self._topics[giver][topic] -= 1
        if not self._topics[giver][topic]:
            del self._topics[giver][topic]
        self._topics[taker][topic] += 1
