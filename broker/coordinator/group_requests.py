"""The rules of each request on one classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and the check of a
commit. Pure; called by the runtime only.

JoinGroup (`GroupCoordinator.doJoinGroup`): a new dynamic member first gets an id (KIP-394). When it joins with that id,
the group rebalances and the member waits. A member that repeats its join in the same generation is answered at once. A
static member that comes back (KIP-345) takes its old place, without a rebalance if the group is stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from broker.coordinator.group import Effects, Now, Waiter
from broker.coordinator.group_members import Member
from broker.coordinator.group_messages import (
    GroupDescription,
    JoinReply,
    JoinRequest,
    LeavingMember,
    SyncReply,
    SyncRequest,
    quoted,
)
from broker.coordinator.group_state import ClassicGroup, GroupState, StaticRejoin
from broker.errors import ErrorCode

# --- JoinGroup -----------------------------------------------------------------------------------


def join(group: ClassicGroup, request: JoinRequest, new_member_id: str, waiter: Waiter, now: Now) -> Effects:
    """JoinGroup. `new_member_id` is for a member that has none yet. Answers `waiter` now or lets it wait."""
    error = _refusal(group, request)
    if error is ErrorCode.group_max_size_reached:
        group.remove_member(request.member_id, now, f"group.max.size is {group.config.group_max_size}")
        group.waiters.reply(waiter, JoinReply(error))
    elif error is not ErrorCode.none:
        group.waiters.reply(waiter, JoinReply(error, request.member_id))
    elif not request.member_id:
        _join_as_new(group, request, new_member_id, waiter, now)
    elif request.member_id in group.roster.pending:
        _add(group, request, request.member_id, waiter, now)
    else:
        _join_again(group, request, waiter, now)
    group.maybe_complete_join(now)
    return group.drain()


def _refusal(group: ClassicGroup, request: JoinRequest) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if not _has_room(group, request.member_id):
        return ErrorCode.group_max_size_reached
    names = [name for name, _ in request.protocols]
    if not names or not group.roster.accepts(request.protocol_type, names):
        return ErrorCode.inconsistent_group_protocol
    if not request.member_id or (request.member_id in group.roster.pending and request.group_instance_id is None):
        return ErrorCode.none
    return group.roster.check_member(request.member_id, request.group_instance_id)


def _has_room(group: ClassicGroup, member_id: str) -> bool:
    """Kafka's `acceptJoiningMember`: a rebalance being prepared counts the members that have joined it already."""
    limit = group.config.group_max_size
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        return member_id in group.waiters.joining or len(group.waiters.joining) < limit
    return member_id in group.roster.members or len(group.roster) < limit


def _join_as_new(group: ClassicGroup, request: JoinRequest, new_member_id: str, waiter: Waiter, now: Now) -> None:
    instance_id = request.group_instance_id
    old_member_id = group.roster.static_ids.get(instance_id) if instance_id is not None else None
    if old_member_id is not None:
        _rejoin_as_static(group, request, old_member_id, new_member_id, waiter, now)
    elif request.require_known_member_id and instance_id is None:
        group.add_pending(new_member_id, request.session_timeout_ms, now)
        group.waiters.reply(waiter, JoinReply(ErrorCode.member_id_required, new_member_id))
    else:
        _add(group, request, new_member_id, waiter, now)


def _add(group: ClassicGroup, request: JoinRequest, member_id: str, waiter: Waiter, now: Now) -> None:
    group.add_member(Member.from_request(request, member_id), request.protocol_type, waiter, now)
    group.prepare_rebalance(now, f"member {member_id} joins{quoted(request.reason)}")


def _join_again(group: ClassicGroup, request: JoinRequest, waiter: Waiter, now: Now) -> None:
    member = group.roster.members[request.member_id]
    unchanged = member.supports(request.protocols)
    if (group.state is GroupState.COMPLETING_REBALANCE and unchanged) or (
        group.state is GroupState.STABLE and unchanged and group.roster.leader != member.member_id
    ):
        # It may have missed the answer to its last JoinGroup.
        group.waiters.reply(waiter, group.generation_reply(member.member_id))
        return
    _update(group, member, request)
    group.waiters.park_join(member.member_id, waiter)
    what = "the leader joins again" if group.roster.leader == member.member_id else "its protocols have changed"
    group.prepare_rebalance(now, f"member {member.member_id}: {what}{quoted(request.reason)}")


def _rejoin_as_static(
    group: ClassicGroup, request: JoinRequest, old_member_id: str, new_member_id: str, waiter: Waiter, now: Now
) -> None:
    leader_before = group.roster.leader or ""
    before = group.roster.members[old_member_id]
    member = replace(before, member_id=new_member_id)
    group.replace_static(old_member_id, member, now)
    _update(group, member, request)
    if group.state is not GroupState.STABLE or group.roster.select_protocol() != group.protocol_name:
        group.waiters.park_join(new_member_id, waiter)
        group.prepare_rebalance(now, f"static member {request.group_instance_id} is back{quoted(request.reason)}")
        return
    reply = group.generation_reply(new_member_id)
    is_leader = group.roster.leader == new_member_id
    if request.can_skip_assignment:
        reply = reply._replace(skip_assignment=is_leader)
    else:
        # Before KIP-814 a client that sees itself as leader assigns again, and a stable group would not pass its new
        # assignment on. So the reply names its old id as leader.
        reply = reply._replace(leader=leader_before, members=())
    group.store(group.snapshot(now), StaticRejoin(waiter, reply, before))


def _update(group: ClassicGroup, member: Member, request: JoinRequest) -> None:
    group.roster.update_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.effective_rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms


# --- the other requests --------------------------------------------------------------------------


def sync(group: ClassicGroup, request: SyncRequest, waiter: Waiter, now: Now) -> Effects:
    """SyncGroup. The leader's assignment is stored first, then every member gets its part."""
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
    for given, current in (
        (request.protocol_type, group.roster.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if given is not None and given != current:
            return ErrorCode.inconsistent_group_protocol
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def heartbeat(
    group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int, now: Now
) -> ErrorCode:
    """Heartbeat. REBALANCE_IN_PROGRESS tells the member to join again."""
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
    """LeaveGroup: a result for each member, in the order of the request."""
    results = tuple((member, _leave_one(group, member, now)) for member in leaving)
    return group.drain(), results


def _leave_one(group: ClassicGroup, leaving: LeavingMember, now: Now) -> ErrorCode:
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if not member_id:
        # An operator may remove a static member by its instance id alone.
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
    """Whether an OffsetCommit may be stored (`validateOffsetCommit`). From a member it counts as a heartbeat.

    A commit without a generation comes from a consumer that assigns its own partitions, or from an admin tool. It is
    valid while the group has no members. TxnOffsetCommit before version 3 has no member fields (KIP-447).
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
    """The connection of a waiting request was closed. A member that knows its id has one session time-out to come back.
    A member that never learned its id cannot come back (`can_return` is False), so it is removed at once."""
    member_id = group.waiters.abandon(waiter)
    if member_id is not None:
        if can_return:
            group.touch(group.roster.members[member_id], now)
        else:
            group.remove_member(member_id, now, "its connection is gone before it learned its id")
    return group.drain()


def describe(group: ClassicGroup) -> GroupDescription:
    """DescribeGroups. Assignments are shown only while the group is stable."""
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    members = group.roster.records(protocol, None)
    if protocol is None:
        members = tuple(replace(member, subscription=b"", assignment=b"") for member in members)
    kind = group.roster.protocol_type or ""
    return GroupDescription(ErrorCode.none, group.group_id, group.state.value, kind, protocol or "", members)
