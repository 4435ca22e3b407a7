"""Groups on their way between the classic protocol and that of KIP-848, while members of both are in them. Pure.

    classic group ──a consumer heartbeat joins (upgrade)──▶ consumer group, whose old members go on as classic ones
    consumer group ──its last consumer member is gone, classic ones are left──▶ classic group (`ConsumerGroup`)

For members of the classic protocol in a consumer group the coordinator assigns, too: JoinGroup is answered at once,
without a leader, and with the member's epoch as its generation; SyncGroup gives what it has; Heartbeat tells it to join
again whenever it must give something up or may get something. The rules are those of Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from broker.coordinator.consumer_group_requests import (
    came_back,
    check,
    check_room,
    reconcile,
    static_or_dynamic,
    subscribe,
    succeed,
    unknown,
)
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Effects, Now, Reply, Waiter
from broker.coordinator.group_conversion import members_of, with_ids, with_names
from broker.coordinator.group_messages import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeavingMember,
    SyncReply,
    SyncRequest,
    quoted,
)
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.member_deadlines import DeadlineKind
from broker.coordinator.modern_group import Call, Steps
from broker.coordinator.modern_group_members import ConsumerMembership, Member
from broker.coordinator.modern_group_messages import HeartbeatRequest
from broker.coordinator.modern_group_records import ClassicMembership, MemberState, MemberSubscription
from broker.errors import BrokerError, ErrorCode, ProtocolError
from broker.protocol.consumer_protocol import decode_subscription, encode_assignment

logger = logging.getLogger(__name__)


def upgrade(
    classic: ClassicGroup, request: HeartbeatRequest, group: ConsumerGroup, now: Now
) -> tuple[Effects, Effects]:
    """A consumer joins a classic group by ConsumerGroupHeartbeat: `group`, which is new, takes its place.

    Returns the effects on the classic group, whose JoinGroups and SyncGroups end, and those on the new one. The
    heartbeat is the new group's next event. Raises INVALID_REQUEST, or GROUP_ID_NOT_FOUND if it must stay classic.
    """
    config = group.config
    check(request, config.group_consumer_assignors)
    members: list[Member] = []
    if classic.roster.members:
        try:
            if config.group_consumer_migration_policy not in ("bidirectional", "upgrade"):
                raise ProtocolError("group.consumer.migration.policy does not allow it")
            if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
                raise ProtocolError(f"its members use the protocol {classic.protocol_type!r}")
            if len(classic.roster) > config.group_consumer_max_size:
                raise ProtocolError(f"its {len(classic.roster)} members are more than group.consumer.max.size allows")
            members = members_of(classic, group.topics)
        except ProtocolError as error:
            message = f"Group {classic.group_id} is a classic group and cannot become a consumer group: {error}."
            raise BrokerError(ErrorCode.group_id_not_found, message) from None
    for member_id in list(classic.roster.members):
        classic.waiters.fail(member_id, ErrorCode.rebalance_in_progress, member_id)
    logger.info("Group %s uses the consumer protocol now; %d members are classic", group.group_id, len(members))
    return classic.drain(), group.replace_classic(classic, members, now)


def empty_as_classic(group: ConsumerGroup, now: Now) -> ClassicGroup:
    """A member of the classic protocol joins an empty consumer group: the classic group that takes its place."""
    classic = ClassicGroup(group.group_id, group.config, now.wall_ms, group.offsets)
    classic.obsolete_keys = group.stored_keys() if group.has_records else []
    return classic


# --- members of the classic protocol in a consumer group


def join(group: ConsumerGroup, request: JoinRequest, new_member_id: str, waiter: Waiter, now: Now) -> Effects:
    """JoinGroup. `new_member_id` is for a member that has none yet. Answers `waiter` with a JoinReply, now or later."""
    member_id = request.member_id or new_member_id
    if not request.member_id and request.require_known_member_id and request.group_instance_id is None:
        try:
            _check_protocols(group.membership, request, member_id)
        except BrokerError as error:
            return Effects([Reply(waiter, JoinReply(error.code))])
        return Effects([Reply(waiter, JoinReply(ErrorCode.member_id_required, member_id))])

    def refuse(error: ErrorCode, message: str) -> JoinReply:
        return JoinReply(error, request.member_id)

    return group.submit(Call(waiter, member_id, partial(_join, group, request, member_id), refuse), now)


def _join(group: ConsumerGroup, request: JoinRequest, member_id: str, draft: ConsumerMembership, now: Now) -> Steps:
    check_room(group, draft, member_id)
    _check_protocols(draft, request, member_id)
    try:
        wants = decode_subscription(request.protocols[0][1])
    except ProtocolError as error:
        raise BrokerError(ErrorCode.inconsistent_group_protocol, str(error)) from None
    if wants.owned and member_id not in draft.members:
        # It was removed, and others may have its partitions. Told so, it gives them up and begins again.
        raise unknown(group, member_id)
    member = _joining(group, request, member_id, draft)
    said = MemberSubscription(
        request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=frozenset(wants.topics),
        rebalance_timeout_ms=request.effective_rebalance_timeout_ms,
        classic=ClassicMembership(request.session_timeout_ms, request.protocols),
    )
    is_changed = subscribe(draft, member, said)
    yield
    after = reconcile(group, draft, member_id, with_ids(wants.owned, group.topics), is_changed, now)
    group.deadlines.clear(DeadlineKind.JOIN, member_id)
    group.set_deadline(DeadlineKind.SYNC, member_id, now.monotonic + said.rebalance_timeout_ms / 1000)
    protocol_name = request.protocols[0][0]
    return JoinReply(ErrorCode.none, member_id, after.epoch, CONSUMER_PROTOCOL_TYPE, protocol_name)


def _check_protocols(draft: ConsumerMembership, request: JoinRequest, member_id: str) -> None:
    """It must have an assignor that all other classic members have: the group may become a classic one again."""
    names = {name for name, _ in request.protocols}
    for other in draft.members.values():
        if other.subscription.classic is not None and other.member_id != member_id:
            names &= {name for name, _ in other.subscription.classic.protocols}
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
        raise BrokerError(ErrorCode.inconsistent_group_protocol)


def _joining(group: ConsumerGroup, request: JoinRequest, member_id: str, draft: ConsumerMembership) -> Member:
    holder = draft.instances.get(request.group_instance_id or "")
    if request.group_instance_id is not None and request.member_id:
        static_or_dynamic(group, draft, member_id, request.group_instance_id)
    elif holder is not None:
        return succeed(draft, holder, member_id, is_classic=True)
    return came_back(draft, draft.members.get(member_id) or draft.new_member(member_id))


def sync(group: ConsumerGroup, request: SyncRequest, now: Now) -> SyncReply:
    """SyncGroup. Never waits: what the member has is stored."""
    if group.is_upgrading:
        return SyncReply(ErrorCode.rebalance_in_progress)
    try:
        member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    except BrokerError as error:
        return SyncReply(error.code)
    classic = member.subscription.classic
    assert classic is not None
    names = (request.protocol_type or CONSUMER_PROTOCOL_TYPE, request.protocol_name or classic.protocols[0][0])
    if names != (CONSUMER_PROTOCOL_TYPE, classic.protocols[0][0]):
        return SyncReply(ErrorCode.inconsistent_group_protocol)
    if member.current.state is not MemberState.UNREVOKED and member.epoch < group.membership.target_epoch.epoch:
        _must_join(group, member, now)
        return SyncReply(ErrorCode.rebalance_in_progress)
    group.deadlines.clear(DeadlineKind.SYNC, member.member_id)
    group.touch(member, now)
    assignment = encode_assignment(with_names(member.current.assigned, group.topics))
    return SyncReply(ErrorCode.none, assignment, *names)


def heartbeat(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int, now: Now
) -> ErrorCode:
    """Heartbeat. REBALANCE_IN_PROGRESS makes the member join again."""
    if group.is_upgrading:
        return ErrorCode.none
    try:
        member = _classic_member(group, member_id, group_instance_id, generation_id)
    except BrokerError as error:
        return error.code
    group.touch(member, now)
    state, owners = member.current.state, group.membership.owners
    is_rest_free = not any(tp in owners for tp in member.target - member.current.assigned.keys())
    is_behind = member.epoch < group.membership.target_epoch.epoch or state is MemberState.UNREVOKED
    if is_behind or (state is MemberState.UNRELEASED and is_rest_free):
        _must_join(group, member, now)
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int) -> Member:
    member = static_or_dynamic(group, group.membership, member_id, instance_id)
    if member.subscription.classic is None:
        raise unknown(group, member_id)
    if member.epoch != generation_id:
        raise BrokerError(ErrorCode.illegal_generation)
    return member


def _must_join(group: ConsumerGroup, member: Member, now: Now) -> None:
    """The member must join again within its rebalance time-out."""
    if not group.deadlines.has(DeadlineKind.JOIN, member.member_id):
        deadline = now.monotonic + member.subscription.rebalance_timeout_ms / 1000
        group.set_deadline(DeadlineKind.JOIN, member.member_id, deadline)


def leave(group: ConsumerGroup, members: Sequence[LeavingMember], waiter: Waiter, now: Now) -> Effects:
    """LeaveGroup of members of either protocol. Answers `waiter` with a LeaveReply, now or later."""

    def rule(draft: ConsumerMembership, now: Now) -> Steps:
        results = []
        for leaving in members:
            member_id, instance_id = leaving.member_id, leaving.group_instance_id
            try:
                if not member_id and instance_id is not None:
                    member_id = draft.instances.get(instance_id, "")  # an operator names the instance id alone
                member = static_or_dynamic(group, draft, member_id, instance_id)
            except BrokerError as error:
                results.append((leaving, error.code))
                continue
            logger.info("Member %s leaves group %s%s", member.member_id, group.group_id, quoted(leaving.reason))
            draft.remove(member.member_id)
            draft.bumps_epoch = True
            results.append((leaving, ErrorCode.none))
        yield
        return LeaveReply(ErrorCode.none, tuple(results))

    return group.submit(Call(waiter, "", rule, lambda error, _: LeaveReply(error)), now)
