"""The rules of the other requests on one group: SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, and of
what befalls it from outside: a lost connection, expiry. Pure; called by the runtime only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.coordinator.group_effects import Effects, GroupState, Now, Waiter
from broker.coordinator.group_messages import GroupDescription, LeavingMember, SyncReply, SyncRequest, quoted
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

__all__ = [
    "abandon",
    "check_commit",
    "deletable_offsets",
    "describe",
    "expired_offsets",
    "heartbeat",
    "leave",
    "sync",
    "topics_in_use",
]


def sync(group: ClassicGroup, request: SyncRequest, waiter: Waiter, now: Now) -> Effects:
    """One SyncGroup. The leader's assignment is stored first and then answers everybody."""
    error = _sync_refusal(group, request)
    if error is not ErrorCode.none:
        group.waiters.reply(waiter, SyncReply(error))
        return group.drain()
    member = group.roster.members[request.member_id]
    group.pending_sync.discard(member.member_id)
    if group.state is GroupState.STABLE:
        group.waiters.reply(waiter, group.assignment_of(member))
        group.touch(member, now)
    else:
        group.waiters.park_sync(member.member_id, waiter)
        if group.roster.leader == member.member_id and group.storing is None:
            group.storing = group.snapshot(now, request.assignments)
            group.store(group.storing)
    return group.drain()


def _sync_refusal(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    error = _check_generation(group, request.member_id, request.group_instance_id, request.generation_id)
    if error is not ErrorCode.none:
        return error
    for given, ours in (
        (request.protocol_type, group.roster.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if given is not None and given != ours:
            return ErrorCode.inconsistent_group_protocol
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def heartbeat(
    group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int, now: Now
) -> ErrorCode:
    """One Heartbeat; while a rebalance is prepared it tells the member to join again."""
    error = _check_generation(group, member_id, group_instance_id, generation_id)
    if error is not ErrorCode.none:
        return error
    group.touch(group.roster.members[member_id], now)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def leave(
    group: ClassicGroup, leaving: Sequence[LeavingMember], now: Now
) -> tuple[Effects, tuple[tuple[LeavingMember, ErrorCode], ...]]:
    """One LeaveGroup: the result of each member, in the order asked."""
    results = tuple((member, _leave_one(group, member, now)) for member in leaving)
    return group.drain(), results


def _leave_one(group: ClassicGroup, leaving: LeavingMember, now: Now) -> ErrorCode:
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if not member_id:
        # An operator names a static member by its instance alone.
        member_id = group.roster.static_ids.get(instance_id, "") if instance_id is not None else ""
        if not member_id:
            return ErrorCode.unknown_member_id
    elif member_id not in group.roster.pending:
        error = group.roster.check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
    group.remove_member(member_id, now, f"it leaves{quoted(leaving.reason)}")
    return ErrorCode.none


def check_commit(
    group: ClassicGroup,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
    now: Now,
    *,
    transactional: bool = False,
) -> ErrorCode:
    """Whether an OffsetCommit may be stored; from a member it counts as a heartbeat (`validateOffsetCommit`).

    A commit without a generation comes from a consumer that assigns itself, or from an admin tool: it
    is taken when the group has no members. TxnOffsetCommit before version 3 knows no members at all (KIP-447).
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.none
    if generation_id < 0 and not member_id and group_instance_id is None:
        return ErrorCode.none if transactional else ErrorCode.unknown_member_id
    error = _check_generation(group, member_id, group_instance_id, generation_id)
    if error is not ErrorCode.none:
        return error
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        return ErrorCode.rebalance_in_progress
    group.touch(group.roster.members[member_id], now)
    return ErrorCode.none


def _check_generation(
    group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    error = group.roster.check_member(member_id, group_instance_id)
    if error is ErrorCode.none and generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    return error


def abandon(group: ClassicGroup, waiter: Waiter, *, can_return: bool, now: Now) -> Effects:
    """The connection that waited is gone. A member that knows its id has one session time-out to come
    back; one that was never told its id cannot, and is dropped at once."""
    member_id = group.waiters.abandon(waiter)
    if member_id is not None:
        if can_return:
            group.touch(group.roster.members[member_id], now)
        else:
            group.remove_member(member_id, now, "its connection is gone before it learned its id")
    return group.drain()


def describe(group: ClassicGroup) -> GroupDescription:
    """DescribeGroups: what the members do is shown only while the group is stable."""
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    return GroupDescription(
        ErrorCode.none,
        group.group_id,
        group.state.value,
        group.roster.protocol_type or "",
        protocol or "",
        tuple(member.described(protocol) for member in group.roster.members.values()),
    )


def topics_in_use(group: ClassicGroup) -> frozenset[str] | None:
    """The topics its consumers subscribe to; None when that cannot be known."""
    if group.roster.protocol_type != CONSUMER_PROTOCOL_TYPE or group.protocol_name is None:
        return None
    topics: set[str] = set()
    for member in group.roster.members.values():
        subscribed = subscribed_topics(member.protocols.get(group.protocol_name, b""))
        if subscribed is None:
            return None
        topics |= subscribed
    return frozenset(topics)


def expired_offsets(group: ClassicGroup, now: Now) -> list[TopicPartition]:
    """Which offsets are due (KIP-211): of an empty group once it has been empty for the retention, of a
    simple consumer by their age, of a stable group by their age where nobody subscribes to the topic."""
    retention_ms = group.config.offsets_retention_minutes * 60_000
    empty_since: int | None = None
    in_use: frozenset[str] = frozenset()
    if group.roster.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            empty_since = group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None
        else:
            topics = topics_in_use(group)
            if group.state is not GroupState.STABLE or topics is None:
                return []
            in_use = topics
    return group.offsets.expired(now.wall_ms, retention_ms, empty_since_ms=empty_since, in_use=in_use)


def deletable_offsets(
    group: ClassicGroup, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode] | None:
    """OffsetDelete (KIP-496): the result per partition, with topics in use refused; None when the group
    has members that are no consumers."""
    in_use: frozenset[str] | None = frozenset()
    if group.state is not GroupState.EMPTY:
        if group.roster.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        in_use = topics_in_use(group)
    refused, allowed = ErrorCode.group_subscribed_to_topic, ErrorCode.none
    return {tp: refused if in_use is None or tp.topic in in_use else allowed for tp in partitions}
