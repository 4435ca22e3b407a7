"""The members of a group to which the coordinator assigns partitions, as they are stored, and drafts of them. Pure.

A `Membership` is what the log has. A draft of it is what an event changes; the records to append are where the two
differ, and once they are stored the draft is the membership. So nobody sees a state that is not stored, and a replay of
the records gives the same state. A kind of group derives its own from it: `ConsumerMembership`, `ShareMembership`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self
from uuid import UUID

from broker.coordinator import modern_group_records
from broker.coordinator.group_assignors import Assignable, AssignedMember, Assignor
from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition, Topics
from broker.coordinator.modern_group_records import (
    ConsumerGroupKey,
    CurrentAssignment,
    MemberState,
    MemberSubscription,
    RecordKind,
    TargetEpoch,
)
from broker.coordinator.record_format import KeyValue


class Member(NamedTuple):
    """One member: what it said of itself, where it is, and what it shall have."""

    member_id: str
    subscription: Any
    """MemberSubscription or ShareSubscription."""
    current: Any
    """CurrentAssignment or ShareAssignment."""
    target: Partitions = frozenset()

    @property
    def epoch(self) -> int:
        epoch: int = self.current.epoch
        return epoch

    @property
    def is_unfinished(self) -> bool:
        """Of its join or its removal only the first records are in the log: the leader was lost meanwhile."""
        return bool(self.current.previous_epoch < 0)


class Membership:
    """The stored state of one group and what is derived from it, or a draft of it."""

    records: ModuleType
    """Encodes and decodes the kind's records; `key` makes a key of a version, a group and a name."""
    key: Any
    kinds: Any
    """The versions of keys. Their order is that of a replay."""
    extra: IntEnum
    """The version of what is neither of the whole group nor of a member."""
    first: ClassVar[Member]
    """A member that has said nothing yet."""
    copied: ClassVar[tuple[str, ...]] = ("members", "unsettled", "_wants")
    """What a draft copies before the first change of a member."""

    def __init__(self) -> None:
        # Kafka's first epochs are 1, and 2 with the first subscription.
        self.epoch = self.records.GroupEpoch(1)
        self.target_epoch = TargetEpoch(1)
        self.members: dict[str, Member] = {}
        # What else is stored, by name.
        self.extras: dict[str, Any] = {}
        # Members that have not reached their target.
        self.unsettled: set[str] = set()
        # How many members have the same topic names, pattern and assignor.
        self._wants: dict[tuple[frozenset[str], str, str | None], int] = {}
        # Of a draft: what it began with, and changed members in the order in which they took and gave partitions.
        self.base: Membership = self
        self.changed: dict[str, None] = {}
        self.bumps_epoch = False

    # --- changes

    def draft(self) -> Self:
        """A copy to change."""
        draft = self.__new__(type(self))
        draft.__dict__.update(self.__dict__)
        draft.base, draft.changed, draft.bumps_epoch = self, {}, False
        return draft

    def finish(self) -> None:
        """The records of the draft are stored."""
        self.base = self

    def new_member(self, member_id: str) -> Member:
        return self.first._replace(member_id=member_id)

    def put(self, member: Member) -> None:
        """Add a member, or replace the one of that id."""
        self._touch(member.member_id)
        before = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._replaced(before, member)
        (self.unsettled.discard if self.is_settled(member) else self.unsettled.add)(member.member_id)

    def remove(self, member_id: str) -> None:
        self._touch(member_id)
        self._replaced(self.members.pop(member_id), None)
        self.unsettled.discard(member_id)

    def _touch(self, member_id: str) -> None:
        if self.base is not self:
            if self.members is self.base.members:
                for name in self.copied:
                    setattr(self, name, getattr(self, name).copy())
            self.changed.pop(member_id, None)
            self.changed[member_id] = None

    def _replaced(self, before: Member | None, after: Member | None) -> None:
        said, says = before and before.subscription, after and after.subscription
        if said is not says:
            for subscription, count in ((said, -1), (says, 1)):
                if subscription is not None:
                    wants = self._wanted(subscription)
                    self._wants[wants] = self._wants.get(wants, 0) + count
                    if not self._wants[wants]:
                        del self._wants[wants]

    def set_target_epoch(self, target_epoch: TargetEpoch) -> None:
        self.target_epoch = target_epoch
        self.unsettled = set(self.members)

    def replay(self, kind: IntEnum, name: str, value: Any) -> None:
        """Apply a stored record. Those of a group come in the order of their kinds."""
        kinds = self.kinds
        if kind is kinds.GROUP_EPOCH:
            self.epoch = value
        elif kind is kinds.TARGET_EPOCH:
            self.set_target_epoch(value)
        elif kind is kinds.MEMBER:
            self.put(self.new_member(name)._replace(subscription=value))
        elif kind is self.extra:
            self.extras[name] = value
        elif name in self.members:
            self.put(self.members[name]._replace(**{"target" if kind is kinds.TARGET else "current": value}))

    # --- subscriptions

    @staticmethod
    def _wanted(said: Any) -> tuple[frozenset[str], str, str | None]:
        return said.topic_names, getattr(said, "topic_regex", ""), getattr(said, "server_assignor", None)

    def _matches(self, regex: str) -> frozenset[str]:
        """The topics of a pattern, if they are known."""
        return self.extras[regex].topics if regex and regex in self.extras else frozenset()

    def topic_names(self) -> frozenset[str]:
        """The topics that members subscribe to, by name or by a pattern whose topics are known."""
        return frozenset[str]().union(*(names | self._matches(regex) for names, regex, _ in self._wants))

    def topic_ids(self, subscription: Any, topics: Topics) -> frozenset[UUID]:
        """Those that exist of the topics that a member subscribes to."""
        names, regex, _ = self._wanted(subscription)
        return frozenset(topics[name].topic_id for name in names | self._matches(regex) if name in topics)

    def used_regexes(self) -> frozenset[str]:
        return frozenset(regex for _, regex, _ in self._wants if regex)

    def assignor_name(self, default: str) -> str:
        """The assignor that most members name."""
        votes = Counter[str]()
        for (_, _, assignor), count in self._wants.items():
            if assignor is not None:
                votes[assignor] += count
        return votes.most_common(1)[0][0] if votes else default

    def metadata_hash(self, topics: Topics) -> int:
        """A hash of the subscribed topics that exist. Another hash means other partitions to assign.

        Kafka's hash is XXH3 over the same and the racks; where a group moves between the two, it rebalances once.
        """
        known = sorted(self.topic_names() & topics.keys())
        if not known:
            return 0
        digest = blake2b(digest_size=8)
        for name in known:
            digest.update(topics[name].topic_id.bytes + len(topics[name].partitions).to_bytes(4) + name.encode())
        return int.from_bytes(digest.digest(), signed=True)

    # --- targets

    def is_settled(self, member: Member) -> bool:
        """Whether it has all of its target, as of the last one, and nothing else."""
        return bool(member.current.epoch == self.target_epoch.epoch)

    def bump_epoch(self, topics: Topics) -> None:
        self.epoch = self.records.GroupEpoch(self.epoch.epoch + 1, self.metadata_hash(topics))

    def assign(self, topics: Topics, assignor: Assignor, assignable: Assignable, now_ms: int) -> None:
        """Compute what each member shall have as of the group epoch."""
        topic_ids: dict[tuple[frozenset[str], str, str | None], frozenset[UUID]] = {}
        members = {}
        for member_id, (_, said, _, target) in self.members.items():
            wants = self._wanted(said)
            if wants not in topic_ids:
                topic_ids[wants] = self.topic_ids(said, topics)
            members[member_id] = AssignedMember(topic_ids[wants], target, getattr(said, "instance_id", None))
        for member_id, target in assignor(members, assignable).items():
            if target != members[member_id].target:
                self.put(self.members[member_id]._replace(target=target))
        self.set_target_epoch(TargetEpoch(self.epoch.epoch, now_ms))

    # --- records

    def changes(self) -> Sequence[tuple[IntEnum, str, Any]]:
        """What differs from the stored state: kind of record, name, and value.

        Kafka can replay them in this order. The first of them alone are a state, too, if the others are lost with the
        leader: targets are computed again when the group epoch is newer, and who gets a partition comes after who gave
        it up.
        """
        kinds, base = self.kinds, self.base
        removed, subscriptions, targets, moves = [], [], [], []
        for member_id in self.changed:
            before, after = base.members.get(member_id), self.members.get(member_id)
            if after is None:
                if before is not None:
                    removed += [(kind, member_id, None) for kind in (kinds.CURRENT, kinds.TARGET, kinds.MEMBER)]
                continue
            if before is None or before.subscription != after.subscription:
                subscriptions.append((kinds.MEMBER, member_id, after.subscription))
            if before is None or before.target != after.target:
                targets.append((kinds.TARGET, member_id, after.target))
            if before is None or before.current != after.current:
                moves.append((kinds.CURRENT, member_id, after.current))
        others = []
        if self.extras is not base.extras:
            names = base.extras.keys() | self.extras.keys()
            others = [(self.extra, n, self.extras.get(n)) for n in names if base.extras.get(n) != self.extras.get(n)]
        epoch = [(kinds.GROUP_EPOCH, "", self.epoch)] if self.epoch != base.epoch else []
        is_new_target = self.target_epoch != base.target_epoch
        target_epoch = [(kinds.TARGET_EPOCH, "", self.target_epoch)] if is_new_target else []
        return [*epoch, *removed, *subscriptions, *others, *targets, *target_epoch, *moves]

    def encoded(self, group_id: str, changes: Iterable[tuple[IntEnum, str, Any]]) -> list[KeyValue]:
        """The records of changes. Raises MalformedRecord."""
        encode_key, encode_value = self.records.encode_key, self.records.encode_value
        return [
            (encode_key(self.key(kind, group_id, name)), None if value is None else encode_value(value))
            for kind, name, value in changes
        ]

    def keys(self, group_id: str) -> list[bytes]:
        """The keys of all records, in the order in which they are deleted. Raises MalformedRecord."""
        kinds, members = self.kinds, [*self.members]
        rows = {kinds.CURRENT: members, kinds.TARGET: members, kinds.TARGET_EPOCH: [""], kinds.MEMBER: members}
        rows |= {self.extra: [*self.extras], kinds.GROUP_EPOCH: [""]}
        return [
            key for kind, names in rows.items() for key, _ in self.encoded(group_id, ((kind, n, None) for n in names))
        ]


class ConsumerMembership(Membership):
    """That of a consumer group (KIP-848): a partition has one owner. The extras are the topics of patterns."""

    records, key, kinds, extra = modern_group_records, ConsumerGroupKey, RecordKind, RecordKind.REGEX
    first = Member("", MemberSubscription(), CurrentAssignment(previous_epoch=-1))
    copied = (*Membership.copied, "owners", "instances")

    def __init__(self) -> None:
        super().__init__()
        # Who has a partition, or may have it still because it has not said that it gave it up.
        self.owners: dict[TopicIdPartition, str] = {}
        # Group instance id → member id.
        self.instances: dict[str, str] = {}

    def _replaced(self, before: Member | None, after: Member | None) -> None:
        super()._replaced(before, after)
        if before is not None and (after is None or before.current is not after.current):
            for partition in (*before.current.assigned, *before.current.revoking):
                if self.owners.get(partition) == before.member_id:
                    del self.owners[partition]
        if after is not None and (before is None or before.current is not after.current):
            for partitions in (after.current.assigned, after.current.revoking):
                self.owners.update(dict.fromkeys(partitions, after.member_id))
        said, says = before and before.subscription.instance_id, after and after.subscription.instance_id
        if before is not None and said is not None and said != says and self.instances.get(said) == before.member_id:
            del self.instances[said]
        if after is not None and says is not None:
            self.instances[says] = after.member_id

    def is_settled(self, member: Member) -> bool:
        current: CurrentAssignment = member.current
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch.epoch

    @property
    def is_reconciling(self) -> bool:
        """Whether a member that is here has not reached its target."""
        return bool(self.unsettled) and any(self.members[member_id].epoch >= 0 for member_id in self.unsettled)

    def set_regexes(self, regexes: dict[str, Any]) -> None:
        """Replace the topics of all patterns; those of patterns that no member uses are forgotten."""
        used = self.used_regexes()
        kept = {regex: resolved for regex, resolved in regexes.items() if regex in used}
        if kept != self.extras:
            self.extras = kept
