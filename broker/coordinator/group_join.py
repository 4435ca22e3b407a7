"""The rules of JoinGroup on one group. Pure; called by the runtime only.

Behaviour (`GroupCoordinator.doJoinGroup`): a new dynamic member is first given an id (KIP-394), a new
one that may join makes the group rebalance and waits; a member that repeats its join in the same
generation is answered at once; a static member that comes back (KIP-345) takes its old place, without
a rebalance where the group is stable.
"""

from __future__ import annotations

from dataclasses import replace

from broker.coordinator.group_effects import Effects, GroupState, Now, Return, Waiter
from broker.coordinator.group_member import Member
from broker.coordinator.group_messages import JoinReply, JoinRequest, quoted
from broker.coordinator.group_state import ClassicGroup
from broker.errors import ErrorCode

__all__ = ["join"]


def join(group: ClassicGroup, request: JoinRequest, new_member_id: str, waiter: Waiter, now: Now) -> Effects:
    """One JoinGroup; `new_member_id` is used if the member has none yet. Answers now or parks `waiter`."""
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
    """`acceptJoiningMember`: while a rebalance is prepared those who are back count, else those who are in."""
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
        _return_as_static(group, request, old_member_id, new_member_id, waiter, now)
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
        # It may have missed the answer of this very generation.
        group.waiters.reply(waiter, group.generation_reply(member.member_id))
        return
    _update(group, member, request)
    group.waiters.park_join(member.member_id, waiter)
    what = "the leader joins again" if group.roster.leader == member.member_id else "its protocols have changed"
    group.prepare_rebalance(now, f"member {member.member_id}: {what}{quoted(request.reason)}")


def _return_as_static(
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
        reply = _with(reply, reply.leader, skip_assignment=is_leader, keep_members=is_leader)
    else:
        # A leader of before KIP-814 is shown its old id as the leader, so that it does not assign again:
        # a stable group would not spread the new assignment.
        reply = _with(reply, leader_before, skip_assignment=False, keep_members=False)
    group.store(group.snapshot(now), Return(waiter, reply, before))


def _update(group: ClassicGroup, member: Member, request: JoinRequest) -> None:
    group.roster.update_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.patience_ms
    member.session_timeout_ms = request.session_timeout_ms


def _with(reply: JoinReply, leader: str, *, skip_assignment: bool, keep_members: bool) -> JoinReply:
    return JoinReply(
        reply.error,
        reply.member_id,
        reply.generation_id,
        reply.protocol_type,
        reply.protocol_name,
        leader,
        skip_assignment,
        reply.members if keep_members else (),
    )
