"""The rules of each request on one consumer group (KIP-848): heartbeat, leave, and the check of commits. Pure.

They are those of Kafka 4.3's `GroupMetadataManager`. Two differences: a member whose first answer was lost may send its
first request again, static members too; and while a group reconciles, members are asked to come back soon.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from math import inf
from uuid import uuid4

from broker.coordinator.consumer_group_state import RECONCILING_INTERVAL_MS, ConsumerGroup
from broker.coordinator.current_assignment import Report, must_wait, next_assignment
from broker.coordinator.group import Effects, Now, Reply, Waiter
from broker.coordinator.group_conversion import with_ids
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.modern_group import Call, Steps
from broker.coordinator.modern_group_members import ConsumerMembership, Member
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    HeartbeatReply,
    HeartbeatRequest,
    Partitions,
)
from broker.coordinator.modern_group_records import MemberSubscription
from broker.coordinator.record_format import MAX_STRING_BYTES
from broker.errors import BrokerError, ErrorCode

_NOTHING = (None,) * 4
_SAID = ("instance_id", "rack_id", "topic_names", "topic_regex", "server_assignor", "client_id", "client_host")
"""Fields of the request that are fields of the subscription; None is as before."""


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, waiter: Waiter, now: Now) -> Effects:
    """ConsumerGroupHeartbeat: join, stay, rejoin or leave. Answers `waiter` with a HeartbeatReply, now or later."""
    try:
        check(request, group.config.group_consumer_assignors)
    except BrokerError as error:
        return Effects([Reply(waiter, HeartbeatReply(error.code, error.message))])
    if not request.member_id:
        request = replace(request, member_id=str(uuid4()))
    rule = _leave if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH) else _heartbeat
    return group.submit(Call(waiter, request.member_id, partial(rule, group, request), HeartbeatReply), now)


def unchanged(group: ConsumerGroup, request: HeartbeatRequest, now: Now) -> HeartbeatReply | None:
    """The reply to a heartbeat that changes nothing, which are nineteen of twenty. None for others, and for some."""
    member = group.membership.members.get(request.member_id)
    if member is None or not request.member_epoch == member.current.epoch > JOIN_EPOCH or group.is_dead:
        return None
    said = member.subscription
    says = request.topic_names, request.topic_regex, request.server_assignor, request.rack_id
    if says != _NOTHING or request.rebalance_timeout_ms != -1 or said.topic_regex or said.classic is not None:
        return None
    who = request.instance_id or said.instance_id, request.client_id, request.client_host
    if who != (said.instance_id, said.client_id, said.client_host):
        return None
    if not (group.membership.is_settled(member) or must_wait(member, group.membership, request.owned)):
        return None
    group.touch(member, now)
    return _reply(group, group.membership, member, None)


def _reply(
    group: ConsumerGroup, membership: ConsumerMembership, member: Member, assignment: Partitions | None
) -> HeartbeatReply:
    interval_ms = group.settings().consumer_heartbeat_interval_ms
    if membership.is_reconciling:
        interval_ms = min(interval_ms, RECONCILING_INTERVAL_MS)
    return HeartbeatReply(ErrorCode.none, None, member.member_id, member.epoch, interval_ms, assignment)


def check(request: HeartbeatRequest, assignors: Collection[str]) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR. Whether a pattern is one is checked by the caller."""
    epoch, problem = request.member_epoch, ""
    if not request.group_id.strip() or request.instance_id == "" or request.rack_id == "":
        problem = "The group id, the instance id and the rack id must not be empty."
    elif not request.member_id and (request.needs_member_id or epoch > 0 or epoch == LEAVE_EPOCH):
        problem = "The member id must not be empty."
    elif epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            problem = "A member that joins must send its rebalance time-out (max.poll.interval.ms)."
        elif request.owned is None or request.owned:
            problem = "A member that joins must own no partitions."
        elif request.topic_names is None and request.topic_regex is None:
            problem = "A member that joins must subscribe to topic names or to a pattern."
    elif epoch < LEAVE_STATIC_EPOCH:
        problem = f"The member epoch {epoch} is below -2."
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        problem = "Only a static member, with an instance id, may leave with the epoch -2."
    for text in (request.group_id, request.member_id, request.topic_regex or ""):
        if len(text.encode()) > MAX_STRING_BYTES:  # each is in the key of a record
            problem = f"A group id, member id or pattern is longer than {MAX_STRING_BYTES} bytes."
    if problem:
        raise BrokerError(ErrorCode.invalid_request, problem)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        message = (
            f"This broker has no assignor {request.server_assignor!r}. It has: {known} (group.consumer.assignors)."
        )
        raise BrokerError(ErrorCode.unsupported_assignor, message)


def _heartbeat(group: ConsumerGroup, request: HeartbeatRequest, draft: ConsumerMembership, now: Now) -> Steps:
    member = _member(group, request, draft)
    is_changed = subscribe(draft, member, _subscription(member.subscription, request))
    if draft.members[member.member_id].subscription.topic_regex:
        group.uses_regex(request.client)
    yield
    after = reconcile(group, draft, member.member_id, request.owned, is_changed, now)
    subscribes = request.topic_names is not None or request.topic_regex is not None
    is_full = request.rebalance_timeout_ms != -1 and subscribes and request.owned is not None
    tells = is_full or request.member_epoch == JOIN_EPOCH or after.current.assigned != member.current.assigned
    return _reply(group, draft, after, frozenset(after.current.assigned) if tells else None)


def _member(group: ConsumerGroup, request: HeartbeatRequest, draft: ConsumerMembership) -> Member:
    """The member that sends a heartbeat: a known one, the successor of a static one, or a new one."""
    member_id, joins = request.member_id, request.member_epoch == JOIN_EPOCH
    check_room(group, draft, member_id)
    holder = draft.instances.get(request.instance_id or "")
    if request.instance_id is not None and holder != member_id:
        if not joins:
            code = ErrorCode.unknown_member_id if holder is None else ErrorCode.fenced_instance_id
            message = f"The instance id {request.instance_id} is of {holder or 'no'} member, not of {member_id}."
            raise BrokerError(code, message)
        if holder is not None:
            return succeed(draft, holder, member_id, is_classic=False)
    member = draft.members.get(member_id)
    if member is None:
        if not joins:
            raise unknown(group, member_id)
        return draft.new_member(member_id)
    if joins:
        return came_back(draft, member)
    _check_epoch(member, request)
    return member


def _check_epoch(member: Member, request: HeartbeatRequest) -> None:
    """An answer may have been lost: the epoch before is accepted from a member that has nothing but its assignment."""
    epoch, owned = request.member_epoch, request.owned
    lost = epoch == member.current.previous_epoch and owned is not None and owned <= member.current.assigned.keys()
    if epoch > member.epoch or (epoch < member.epoch and not lost):
        message = f"The member epoch is {member.epoch}, not {epoch}. The member must give up its partitions and rejoin."
        raise BrokerError(ErrorCode.fenced_member_epoch, message)


def _subscription(before: MemberSubscription, request: HeartbeatRequest) -> MemberSubscription:
    """What the member said so far, with what it says now."""
    says = {name: value for name in _SAID if (value := getattr(request, name)) not in (None, getattr(before, name))}
    if request.rebalance_timeout_ms not in (-1, before.rebalance_timeout_ms):
        says["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    return replace(before, classic=None, **says) if says or before.classic is not None else before


def _leave(group: ConsumerGroup, request: HeartbeatRequest, draft: ConsumerMembership, now: Now) -> Steps:
    member = static_or_dynamic(group, draft, request.member_id, request.instance_id)
    if request.member_epoch == LEAVE_STATIC_EPOCH:
        # It comes back and gets the same partitions, under another id: it has them from epoch 0 on.
        assigned = dict.fromkeys(member.current.assigned, 0)
        current = replace(member.current, epoch=LEAVE_STATIC_EPOCH, assigned=assigned, revoking={})
        if current != member.current:
            draft.put(member._replace(current=current))
    else:
        draft.remove(member.member_id)
        draft.bumps_epoch = True
    yield
    return HeartbeatReply(ErrorCode.none, member_id=member.member_id, member_epoch=request.member_epoch)


# --- steps that the rules of classic members share (group_migration)


def unknown(group: ConsumerGroup, member_id: str) -> BrokerError:
    return BrokerError(
        ErrorCode.unknown_member_id, f"{member_id or 'The member'} is no member of group {group.group_id}."
    )


def check_room(group: ConsumerGroup, draft: ConsumerMembership, member_id: str) -> None:
    if len(draft.members) >= group.config.group_consumer_max_size and member_id not in draft.members:
        message = f"The group has {len(draft.members)} members, as many as group.consumer.max.size allows."
        raise BrokerError(ErrorCode.group_max_size_reached, message)


def static_or_dynamic(
    group: ConsumerGroup, draft: ConsumerMembership, member_id: str, instance_id: str | None
) -> Member:
    """The member of a request, which has the instance id if one is given."""
    holder = member_id if instance_id is None else draft.instances.get(instance_id)
    if holder is None or holder not in draft.members:
        raise unknown(group, member_id)
    if holder != member_id:
        message = f"The instance id {instance_id} is of member {holder} now."
        raise BrokerError(ErrorCode.fenced_instance_id, message)
    return draft.members[holder]


def succeed(draft: ConsumerMembership, holder: str, member_id: str, *, is_classic: bool) -> Member:
    """A static member came back under a new id: it takes the place of its old one, if that has left."""
    before = draft.members[holder]
    is_either_classic = is_classic or before.subscription.classic is not None
    if not is_either_classic and before.epoch != LEAVE_STATIC_EPOCH:
        message = f"The instance id {before.subscription.instance_id} is of member {holder}, which has not left."
        raise BrokerError(ErrorCode.unreleased_instance_id, message)
    draft.remove(holder)
    member = before._replace(member_id=member_id, current=replace(before.current, epoch=0, previous_epoch=0))
    draft.put(member)
    return member


def came_back(draft: ConsumerMembership, member: Member) -> Member:
    """A member joins again under its id. It keeps its epoch: the answer to its first request may have been lost."""
    if member.epoch == LEAVE_STATIC_EPOCH:
        member = member._replace(current=replace(member.current, epoch=0, previous_epoch=0))
        draft.put(member)
    return member


def subscribe(draft: ConsumerMembership, member: Member, subscription: MemberSubscription) -> bool:
    """Make it the member's subscription. Whether it subscribes to other topics than before."""
    before: MemberSubscription = member.subscription
    if subscription != before or member.member_id not in draft.members:
        draft.put(member._replace(subscription=subscription))
    is_other_regex = subscription.topic_regex != before.topic_regex
    # The topics of a new pattern are not known yet: the epoch follows when they are.
    is_known = not subscription.topic_regex or subscription.topic_regex in draft.extras
    draft.bumps_epoch |= subscription.topic_names != before.topic_names or (is_other_regex and is_known)
    return subscription.topic_names != before.topic_names or is_other_regex


def reconcile(
    group: ConsumerGroup,
    draft: ConsumerMembership,
    member_id: str,
    owned: Partitions | None,
    is_changed: bool,
    now: Now,
) -> Member:
    """Take the member one step towards its target."""
    member = draft.members.get(member_id)
    if member is None:
        raise unknown(group, member_id)
    if is_changed or not draft.is_settled(member):
        report = Report(owned, is_changed, draft.topic_ids(member.subscription, group.topics))
        current = next_assignment(member, draft, report)
        if current != member.current:
            member = member._replace(current=current)
            draft.put(member)
    group.touch(member, now)
    return member


# --- offsets


def commit_error(group: ConsumerGroup, request: CommitRequest) -> ErrorCode:
    """Why a member may not commit offsets in the epoch that it knows, or NONE (KIP-848, KIP-1251).

    It may with its present epoch, and with one before if all the partitions have been its own since.
    """
    members, epoch, transactional = group.membership.members, request.generation_id, request.producer is not None
    if group.is_upgrading:
        return ErrorCode.coordinator_load_in_progress  # clients send it again
    if epoch < 0 and (not members or (transactional and not request.member_id)):
        return ErrorCode.none
    member = members.get(request.member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    is_classic = member.subscription.classic is not None
    if not (transactional or is_classic or request.knows_epochs):
        return ErrorCode.unsupported_version
    has = {**member.current.revoking, **member.current.assigned} if epoch < member.epoch else {}
    owned = with_ids(request.offsets, group.topics)
    is_own = len(owned) == len(request.offsets) and all(has.get(partition, inf) <= epoch for partition in owned)
    if epoch == member.epoch or is_own:
        return ErrorCode.none
    return ErrorCode.illegal_generation if is_classic or transactional else ErrorCode.stale_member_epoch


def fetch_error(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Whether a member may fetch offsets, in the epoch that it knows."""
    if member_id is None and epoch < 0:
        return ErrorCode.none
    if group.is_upgrading:
        return ErrorCode.coordinator_load_in_progress
    member = group.membership.members.get(member_id or "")
    if member is None:
        return ErrorCode.unknown_member_id
    is_classic = member.subscription.classic is not None
    stale = ErrorCode.illegal_generation if is_classic else ErrorCode.stale_member_epoch
    return ErrorCode.none if epoch == member.epoch else stale
