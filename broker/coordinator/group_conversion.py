"""A classic group as a consumer group (KIP-848), and back. Pure; `ConsumerGroup` and group_migration use it."""

from __future__ import annotations

from collections.abc import Iterable

from broker.coordinator import group_members
from broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, Now
from broker.coordinator.group_state import ClassicGroup, GroupState
from broker.coordinator.modern_group_members import ConsumerMembership, Member
from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition, Topics
from broker.coordinator.modern_group_records import (
    ClassicMembership,
    CurrentAssignment,
    GroupEpoch,
    MemberSubscription,
    TargetEpoch,
)
from broker.errors import ProtocolError
from broker.protocol.consumer_protocol import (
    assignment_user_data,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from broker.protocol.topic_partition import TopicPartition


def with_ids(partitions: Iterable[TopicPartition], topics: Topics) -> Partitions:
    """Partitions by topic id. Those of topics that do not exist are left out."""
    return frozenset(TopicIdPartition(topics[name].topic_id, n) for name, n in partitions if name in topics)


def with_names(partitions: Iterable[TopicIdPartition], topics: Topics) -> list[TopicPartition]:
    """Partitions by topic name. Those of topics that do not exist are left out."""
    names = {topic.topic_id: name for name, topic in topics.items()}
    return [TopicPartition(names[topic_id], n) for topic_id, n in partitions if topic_id in names]


def members_of(classic: ClassicGroup, topics: Topics) -> list[Member]:
    """The members of a classic group as members of a consumer group, with what they have.

    That is their assignment, or during a rebalance what they said in JoinGroup that they still have (KIP-429): until
    they give it up nobody else may get it. Raises ProtocolError if they cannot be members of a consumer group: their
    bytes are not those of consumers, an assignor of their own keeps data in the assignments, or two have one partition.
    """
    subscriptions = {m.member_id: decode_subscription(_first(m)[1]) for m in classic.roster.members.values()}
    owners: dict[TopicIdPartition, str] = {}
    for each in classic.roster.members.values():
        if assignment_user_data(each.assignment):
            raise ProtocolError("an assignor of its clients keeps data in the assignments")
        for partition in with_ids(decode_assignment(each.assignment), topics):
            if owners.setdefault(partition, each.member_id) != each.member_id:
                raise ProtocolError("two members have the same partition")
    # Of two that say that they have a partition, the one with the newer generation does (KIP-792).
    for member_id, said in sorted(subscriptions.items(), key=lambda item: -item[1].generation_id):
        if not classic.roster.members[member_id].assignment:
            for partition in with_ids(said.owned, topics):
                owners.setdefault(partition, member_id)
    members, epoch = [], max(classic.generation_id, 1)
    for each in classic.roster.members.values():
        partitions = frozenset(partition for partition, owner in owners.items() if owner == each.member_id)
        subscription = MemberSubscription(
            each.group_instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            topic_names=frozenset(subscriptions[each.member_id].topics),
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            classic=ClassicMembership(each.session_timeout_ms, tuple(each.protocols.items())),
        )
        current = CurrentAssignment(epoch, epoch, assigned=dict.fromkeys(partitions, epoch))
        members.append(Member(each.member_id, subscription, current, partitions))
    return members


def _first(member: group_members.Member) -> tuple[str, bytes]:
    """The protocol that a member prefers."""
    return next(iter(member.protocols.items()))


def install_members(draft: ConsumerMembership, members: Iterable[Member], generation_id: int, topics: Topics) -> None:
    """Make members of a classic group the members of an empty consumer group."""
    for member in members:
        draft.put(member)
    if draft.changed:
        draft.epoch = GroupEpoch(max(generation_id, 1), draft.metadata_hash(topics))
        draft.set_target_epoch(TargetEpoch(draft.epoch.epoch))
        draft.unsettled.clear()


def has_left_for_classic(before: ConsumerMembership, after: ConsumerMembership) -> bool:
    """Whether the last member of the consumer protocol is gone, and members of the classic one are left."""
    if not after.members or any(member.subscription.classic is None for member in after.members.values()):
        return False
    return any(member.subscription.classic is None for member in before.members.values())


def as_classic(before: Group, membership: ConsumerMembership, topics: Topics, now: Now) -> ClassicGroup | None:
    """The classic group of members that all use the classic protocol. None if they have no assignor in common."""
    group = ClassicGroup(before.group_id, before.config, now.wall_ms, before.offsets)
    for member in membership.members.values():
        said = member.subscription
        assert said.classic is not None
        # It may still have what it was told to give up. Should the group be upgraded again, that is not free.
        partitions = with_names((*member.current.assigned, *member.current.revoking), topics)
        each = group_members.Member(
            member.member_id,
            said.instance_id,
            said.client_id,
            said.client_host,
            said.rebalance_timeout_ms,
            said.classic.session_timeout_ms,
            dict(said.classic.protocols),
            encode_assignment(partitions),
        )
        group.roster.add(each, CONSUMER_PROTOCOL_TYPE)
        group.touch(each, now)
    if not any(group.roster.accepts(CONSUMER_PROTOCOL_TYPE, m.protocols) for m in group.roster.members.values()):
        return None
    group.generation_id = membership.epoch.epoch
    group.protocol_name = group.roster.select_protocol()
    group.state = GroupState.STABLE
    return group
