"""Heartbeats and descriptions of consumer groups (KIP-848) and share groups (KIP-932): the coordinator assigns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Collection, Iterable
from typing import Final
from uuid import UUID

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.coordinator.modern_group import ModernGroup
from broker.coordinator.modern_group_members import Member
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatReply,
    HeartbeatRequest,
    TopicIdPartition,
)
from broker.coordinator.modern_group_records import by_topic_id
from broker.errors import BrokerError, ErrorCode
from broker.net.delayed_answer import DelayedAnswer
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import (
    CONSUMER_HEARTBEAT,
    CONSUMER_HEARTBEAT_TOPIC,
    DESCRIBE_CONSUMERS_GROUP,
    DESCRIBE_CONSUMERS_TOPIC,
    DESCRIBE_SHARES_GROUP,
    DESCRIBE_SHARES_TOPIC,
    SHARE_HEARTBEAT,
    SHARE_HEARTBEAT_TOPIC,
    Permission,
)
from broker.security.acl_types import AclResourceType


@serves(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1)
def consumer_group_heartbeat(
    context: ApiContext, request: Request, client: Client
) -> Fields | DelayedAnswer[Fields] | Awaitable[Fields]:
    """ConsumerGroupHeartbeat: how a member of a consumer group joins, stays, learns its partitions and leaves.

    Patterns match only topics that the client may describe; names of others are an error.
    Version notes: 1 — patterns (KIP-848), and the member brings its own id from the first request on (KIP-1082).
    """
    body = request.body
    names, owned = body.subscribed_topic_names, body.topic_partitions
    try:
        context.check(client, CONSUMER_HEARTBEAT, body.group_id)
        if not body.group_id.strip():  # classic groups may have such an id
            raise BrokerError(ErrorCode.invalid_request, "the group id is blank")
        for name in names or ():
            context.check(client, CONSUMER_HEARTBEAT_TOPIC, name)
    except BrokerError as error:
        return _heartbeat_fields(HeartbeatReply(error.code, error.message))
    heartbeat = HeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=to_ms(body.rebalance_timeout),
        topic_names=None if names is None else frozenset(names),
        topic_regex=field(body, "subscribed_topic_regex"),
        server_assignor=body.server_assignor,
        owned=None
        if owned is None
        else frozenset(TopicIdPartition(one.topic_id, number) for one in owned for number in one.partitions),
        client_id=request.client_id or "",
        client_host=f"/{client.host}",
        client=functools.partial(context.allows, client, CONSUMER_HEARTBEAT_TOPIC, asked=False),
        needs_member_id=request.version >= 1,
    )
    quiet = context.groups.quiet_heartbeat(heartbeat)
    if quiet is not None:
        return _heartbeat_fields(quiet)
    reply = context.groups.consumer_heartbeat(heartbeat)
    return reply.then(_heartbeat_fields) if isinstance(reply, DelayedAnswer) else _when_replied(reply)


async def _when_replied(reply: Awaitable[HeartbeatReply]) -> Fields:
    return _heartbeat_fields(await reply)


def _heartbeat_fields(reply: HeartbeatReply) -> Fields:
    """The response, also of ShareGroupHeartbeat."""
    assignment = None
    if reply.assignment is not None:
        topics = by_topic_id(reply.assignment).items()
        assignment = {"topic_partitions": [{"topic_id": one, "partitions": numbers} for one, numbers in topics]}
    return {
        "error_code": reply.error,
        "error_message": reply.error_message,
        "member_id": reply.member_id,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval": reply.heartbeat_interval_ms,
        "assignment": assignment,
    }


_MAKE_WAIT_S: Final = 1.0
_LONGEST_MEMBER_ID: Final = 36


@serves(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1)
async def share_group_heartbeat(context: ApiContext, request: Request, client: Client) -> Fields:
    """ShareGroupHeartbeat: how a member of a share group joins, stays, learns its partitions and leaves (KIP-932).

    A new member is not answered before the share states of its partitions are made, or a moment is over: so its first
    answer has partitions already. In Kafka it has to send another heartbeat for them.
    """
    body, names = request.body, request.body.subscribed_topic_names
    asked = HeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        rack_id=body.rack_id,
        topic_names=None if names is None else frozenset(names),
        client_id=request.client_id or "",
        client_host=f"/{client.host}",
    )
    try:
        context.check(client, SHARE_HEARTBEAT, body.group_id)
        _check_share(asked)
        for name in names or ():
            context.check(client, SHARE_HEARTBEAT_TOPIC, name)
        reply = await _share_heartbeat(context, asked)
        stays = reply.error is ErrorCode.none and asked.member_epoch != LEAVE_EPOCH
        if stays and await context.share.states.make(asked.group_id, _MAKE_WAIT_S):
            again = await _share_heartbeat(context, dataclasses.replace(asked, member_epoch=reply.member_epoch))
            if again.error is ErrorCode.none and again.assignment is None:
                again = dataclasses.replace(again, assignment=reply.assignment)  # else the member never heard of it
            reply = again
    except BrokerError as error:
        reply = HeartbeatReply(error.code, error.message or None)
    return _heartbeat_fields(reply)


async def _share_heartbeat(context: ApiContext, request: HeartbeatRequest) -> HeartbeatReply:
    topics = context.topics.metadata.topics
    reply: HeartbeatReply = await context.groups.change_share_group(
        request.group_id,
        lambda group, waiter, now: group.heartbeat(request, topics, waiter, now),
        may_create=request.member_epoch == JOIN_EPOCH,
    )
    return reply


def _check_share(request: HeartbeatRequest) -> None:
    """Raises BrokerError `invalid_request`."""
    reason = ""
    if not request.member_id.strip() or len(request.member_id) > _LONGEST_MEMBER_ID:
        reason = "Invalid member id in the request."
    elif not request.group_id.strip():
        reason = "GroupId can't be empty."
    elif request.rack_id is not None and not request.rack_id.strip():
        reason = "RackId can't be empty."
    elif request.member_epoch == JOIN_EPOCH and not request.topic_names:
        reason = "SubscribedTopicNames must be set in first request."
    elif request.member_epoch < LEAVE_EPOCH:
        reason = "MemberEpoch is invalid."
    if reason:
        raise BrokerError(ErrorCode.invalid_request, reason)


_NEEDS = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: (DESCRIBE_CONSUMERS_GROUP, DESCRIBE_CONSUMERS_TOPIC),
    ApiKey.SHARE_GROUP_DESCRIBE: (DESCRIBE_SHARES_GROUP, DESCRIBE_SHARES_TOPIC),
}
_CLASSIC, _CONSUMER = 0, 1


@serves(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1)
@serves(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1)
async def modern_group_describe(context: ApiContext, request: Request, client: Client) -> Fields:
    """ConsumerGroupDescribe (KIP-848) and ShareGroupDescribe (KIP-932): state, epochs and members of groups that the
    coordinator assigns, with what each member has and shall have.

    Each group succeeds or fails alone.
    Version notes: ConsumerGroupDescribe 1 — whether a member is of the classic or of the consumer protocol.
    """
    return {"groups": [_describe(context, request, client, group_id) for group_id in request.body.group_ids]}


def _describe(context: ApiContext, request: Request, client: Client, group_id: str) -> Fields:
    need, need_topic = _NEEDS[request.api]
    try:
        context.check(client, need, group_id)
        is_share, groups = request.api is ApiKey.SHARE_GROUP_DESCRIBE, context.groups
        found: ModernGroup = groups.share_group(group_id) if is_share else groups.consumer_group(group_id)
        membership = found.membership
        members = [member for _, member in sorted(membership.members.items())]
        names = _names(context, client, need_topic, members)
    except BrokerError as error:
        return {"group_id": group_id, **outcome(error)}
    operations = NOT_ASKED
    if request.body.include_authorized_operations:
        operations = context.authorized_operations(client, request.api, AclResourceType.GROUP, group_id)
    return {
        "group_id": group_id,
        "group_state": found.state_name,
        "group_epoch": membership.epoch.epoch,
        "assignment_epoch": membership.target_epoch.epoch,
        "assignor_name": found.assignor_name,
        "authorized_operations": operations,
        "members": [_member(member, names) for member in members],
    }


def _member(member: Member, names: dict[UUID, str]) -> Fields:
    said = member.subscription
    return {
        "member_id": member.member_id,
        "instance_id": getattr(said, "instance_id", None),
        "rack_id": said.rack_id,
        "member_epoch": member.epoch,
        "client_id": said.client_id,
        "client_host": said.client_host,
        "subscribed_topic_names": sorted(said.topic_names),
        "subscribed_topic_regex": getattr(said, "topic_regex", ""),
        "assignment": _assignment(member.current.assigned, names),
        "target_assignment": _assignment(member.target, names),
        "member_type": _CONSUMER if getattr(said, "classic", None) is None else _CLASSIC,
    }


def _names(context: ApiContext, client: Client, need: Permission, members: Collection[Member]) -> dict[UUID, str]:
    """Those of the topics that members have or shall have. Raises BrokerError if the client lacks the right on one."""
    ids = {tp.topic_id for member in members for tp in (*member.current.assigned, *member.target)}
    known = context.topics.metadata.topic_names
    names = {topic_id: known[topic_id] for topic_id in ids if topic_id in known}
    if not all(context.allows(client, need, name) for name in names.values()):
        raise BrokerError(need.code, "The group has topics that the client is not authorized to describe.")
    return names


def _assignment(partitions: Iterable[TopicIdPartition], names: dict[UUID, str]) -> Fields:
    """Those of topics that exist."""
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": numbers}
            for topic_id, numbers in by_topic_id(partitions).items()
            if topic_id in names
        ]
    }
