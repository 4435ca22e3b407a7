"""The members of a consumer group (KIP-848) as they are stored, and drafts of what they become. Pure.

`Membership` is what the log has. A `Draft` is a copy that an event changes; the records to append are where the two
differ, and once they are stored the draft is the membership. So nobody sees a state that is not stored, and a replay of
the records gives the same state. Used by `ConsumerGroup` and the rules of its requests only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any
from uuid import UUID

from broker.coordinator.group_assignors import ASSIGNORS, AssignedMember
from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition, Topics
from broker.coordinator.modern_group_records import (
    ConsumerGroupKey,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    MemberSubscription,
    RecordKind,
    ResolvedRegex,
    TargetEpoch,
    encode_key,
    encode_value,
)
from broker.coordinator.record_reader import KeyValue


@dataclass(frozen=True, slots=True)
class Member:
    """One member: what it said of itself, where it is, and what it shall have."""

    member_id: str
    subscription: MemberSubscription = field(default_factory=MemberSubscription)
    current: CurrentAssignment = field(default_factory=lambda: CurrentAssignment(previous_epoch=-1))
    target: Partitions = frozenset()

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_unfinished(self) -> bool:
        """Of its join or its removal only the first records are in the log: the leader was lost meanwhile."""
        return self.current.previous_epoch < 0


class Membership:
    """The stored state of one group, and what is derived from it."""

    __slots__ = ("epoch", "instances", "members", "owners", "regexes", "target_epoch", "unsettled")

    def __init__(self) -> None:
        # Kafka's first epochs are 1, and 2 with the first subscription.
        self.epoch = GroupEpoch(1)
        self.target_epoch = TargetEpoch(1)
        self.members: dict[str, Member] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        # Who has a partition, or may have it still because it has not said that it gave it up.
        self.owners: dict[TopicIdPartition, str] = {}
        # Group instance id → member id.
        self.instances: dict[str, str] = {}
        # Members that have not reached their target.
        self.unsettled: set[str] = set()

    def put(self, member: Member) -> None:
        """Add a member, or replace the one of that id."""
        self._forget(self.members.get(member.member_id))
        self.members[member.member_id] = member
        for partitions in (member.current.assigned, member.current.revoking):
            self.owners.update(dict.fromkeys(partitions, member.member_id))
        if member.subscription.instance_id is not None:
            self.instances[member.subscription.instance_id] = member.member_id
        (self.unsettled.discard if self.is_settled(member) else self.unsettled.add)(member.member_id)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._forget(member)
        self.unsettled.discard(member_id)

    def _forget(self, member: Member | None) -> None:
        """What it owned, and its instance id: it may come back with another one."""
        if member is not None:
            for partition in (*member.current.assigned, *member.current.revoking):
                if self.owners.get(partition) == member.member_id:
                    del self.owners[partition]
            if self.instances.get(member.subscription.instance_id or "") == member.member_id:
                del self.instances[member.subscription.instance_id or ""]

    def is_settled(self, member: Member) -> bool:
        """Whether it has all of its target, as of the last one, and nothing else."""
        return member.current.state is MemberState.STABLE and member.epoch == self.target_epoch.epoch

    @property
    def is_reconciling(self) -> bool:
        """Whether a member that is here has not reached its target."""
        return any(self.members[member_id].epoch >= 0 for member_id in self.unsettled)

    def set_target_epoch(self, target_epoch: TargetEpoch) -> None:
        self.target_epoch = target_epoch
        self.unsettled = set(self.members)

    def replay(self, kind: RecordKind, name: str, value: Any) -> None:
        """Apply a stored record. Those of a group come in the order of their kinds."""
        if kind is RecordKind.GROUP_EPOCH:
            self.epoch = value
        elif kind is RecordKind.TARGET_EPOCH:
            self.set_target_epoch(value)
        elif kind is RecordKind.REGEX:
            self.regexes[name] = value
        elif kind is RecordKind.MEMBER:
            self.put(Member(name, value))
        elif name in self.members:
            self.put(replace(self.members[name], **{"target" if kind is RecordKind.TARGET else "current": value}))

    # --- subscriptions

    def topic_names(self, members: Iterable[Member] | None = None) -> frozenset[str]:
        """The topics that members subscribe to, by name or by a pattern whose topics are known."""
        names: set[str] = set()
        for member in self.members.values() if members is None else members:
            names |= member.subscription.topic_names
            if (resolved := self.regexes.get(member.subscription.topic_regex)) is not None:
                names |= resolved.topics
        return frozenset(names)

    def topic_ids(self, member: Member, topics: Topics) -> frozenset[UUID]:
        """Those that exist of the topics that a member subscribes to."""
        return frozenset(topics[name].topic_id for name in self.topic_names([member]) if name in topics)

    def used_regexes(self) -> frozenset[str]:
        return frozenset(m.subscription.topic_regex for m in self.members.values() if m.subscription.topic_regex)

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

    def assignor_name(self, default: str) -> str:
        """The assignor that most members name."""
        names = (member.subscription.server_assignor for member in self.members.values())
        chosen = Counter(name for name in names if name is not None).most_common(1)
        return chosen[0][0] if chosen else default


class Draft(Membership):
    """What a membership becomes by the events of one batch."""

    __slots__ = ("_base", "_moved", "bumps_epoch")

    def __init__(self, base: Membership) -> None:
        self._base = base
        self.epoch, self.target_epoch = base.epoch, base.target_epoch
        self.members, self.regexes, self.owners = base.members, base.regexes, base.owners
        self.instances, self.unsettled = base.instances, base.unsettled
        # Changed members, in the order in which they took and gave partitions.
        self._moved: dict[str, None] = {}
        self.bumps_epoch = False

    def put(self, member: Member) -> None:
        self._touch(member.member_id)
        super().put(member)

    def remove(self, member_id: str) -> None:
        self._touch(member_id)
        super().remove(member_id)

    def _touch(self, member_id: str) -> None:
        if self.members is self._base.members:
            self.members, self.owners = dict(self.members), dict(self.owners)
            self.instances, self.unsettled = dict(self.instances), set(self.unsettled)
        self._moved.pop(member_id, None)
        self._moved[member_id] = None

    @property
    def changed(self) -> Mapping[str, None]:
        """The ids of the members that are new, changed or removed."""
        return self._moved

    def set_regexes(self, regexes: Mapping[str, ResolvedRegex]) -> None:
        """Replace the topics of all patterns; those of patterns that no member uses are forgotten."""
        used = self.used_regexes()
        kept = {regex: resolved for regex, resolved in regexes.items() if regex in used}
        if kept != self.regexes:
            self.regexes = kept

    def finished(self) -> Membership:
        """The membership when the records are stored."""
        membership = Membership()
        for name in Membership.__slots__:
            setattr(membership, name, getattr(self, name))
        return membership

    def bump_epoch(self, topics: Topics) -> None:
        self.epoch = GroupEpoch(self.epoch.epoch + 1, self.metadata_hash(topics))

    def update_targets(self, topics: Topics, default_assignor: str, now_ms: int) -> None:
        """Compute what each member shall have, if the group epoch says that it may be something else."""
        if self.target_epoch.epoch >= self.epoch.epoch:
            return
        subscribed = [topics[name] for name in self.topic_names() if name in topics]
        assignable = {topic.topic_id: range(len(topic.partitions)) for topic in subscribed}
        topic_ids: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        members = {}
        for member_id, member in self.members.items():
            wants = member.subscription.topic_names, member.subscription.topic_regex
            if wants not in topic_ids:
                topic_ids[wants] = self.topic_ids(member, topics)
            members[member_id] = AssignedMember(topic_ids[wants], member.target, member.subscription.instance_id)
        targets = ASSIGNORS[self.assignor_name(default_assignor)](members, assignable)
        for member_id, target in targets.items():
            if target != self.members[member_id].target:
                self.put(replace(self.members[member_id], target=target))
        self.set_target_epoch(TargetEpoch(self.epoch.epoch, now_ms))

    def records(self, group_id: str) -> list[KeyValue]:
        """The records that make the stored state this one. Kafka can replay them in this order.

        The first of them alone are a state, too, if the others are lost with the leader: targets are computed again
        when the group epoch is newer, and who gets a partition comes after who gave it up. Raises MalformedRecord.
        """
        return [
            (encode_key(ConsumerGroupKey(kind, group_id, name)), None if value is None else encode_value(value))
            for kind, name, value in self.changes()
        ]

    def changes(self) -> Sequence[tuple[RecordKind, str, Any]]:
        """What differs from the stored state: kind of record, member or pattern, and value."""
        removed, subscriptions, targets, moves = [], [], [], []
        for member_id in self._moved:
            before, after = self._base.members.get(member_id), self.members.get(member_id)
            if after is None:
                if before is not None:
                    kinds = (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER)
                    removed += [(kind, member_id, None) for kind in kinds]
                continue
            if before is None or before.subscription != after.subscription:
                subscriptions.append((RecordKind.MEMBER, member_id, after.subscription))
            if before is None or before.target != after.target:
                targets.append((RecordKind.TARGET, member_id, after.target))
            if before is None or before.current != after.current:
                moves.append((RecordKind.CURRENT, member_id, after.current))
        regexes = [
            (RecordKind.REGEX, regex, self.regexes.get(regex))
            for regex in self._base.regexes.keys() | self.regexes.keys()
            if self._base.regexes.get(regex) != self.regexes.get(regex)
        ]
        epoch = [(RecordKind.GROUP_EPOCH, "", self.epoch)] if self.epoch != self._base.epoch else []
        is_new_target = self.target_epoch != self._base.target_epoch
        target_epoch = [(RecordKind.TARGET_EPOCH, "", self.target_epoch)] if is_new_target else []
        return [*epoch, *removed, *subscriptions, *regexes, *targets, *target_epoch, *moves]
