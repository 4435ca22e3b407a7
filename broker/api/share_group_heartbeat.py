"""ShareGroupHeartbeat: how a member of a share group joins, stays, learns its partitions and leaves (KIP-932).

A new member is not answered before the share states of its partitions are made, or a moment is over: so its first
answer has partitions already. In Kafka it has to send another heartbeat for them.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from broker.api.consumer_group_heartbeat import heartbeat_fields
from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.modern_group_messages import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatReply, HeartbeatRequest
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import SHARE_HEARTBEAT, SHARE_HEARTBEAT_TOPIC

_MAKE_WAIT_S: Final = 1.0
_LONGEST_MEMBER_ID: Final = 36


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
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
        _check(asked)
        for name in names or ():
            context.check(client, SHARE_HEARTBEAT_TOPIC, name)
        reply = await _heartbeat(context, asked)
        stays = reply.error is ErrorCode.none and asked.member_epoch != LEAVE_EPOCH
        if stays and await context.share.states.make(asked.group_id, _MAKE_WAIT_S):
            again = await _heartbeat(context, dataclasses.replace(asked, member_epoch=reply.member_epoch))
            if again.error is ErrorCode.none and again.assignment is None:
                again = dataclasses.replace(again, assignment=reply.assignment)  # else the member never heard of it
            reply = again
    except BrokerError as error:
        reply = HeartbeatReply(error.code, error.message or None)
    return heartbeat_fields(reply)


async def _heartbeat(context: ApiContext, request: HeartbeatRequest) -> HeartbeatReply:
    topics = context.topics.metadata.topics
    reply: HeartbeatReply = await context.groups.change_share_group(
        request.group_id,
        lambda group, waiter, now: group.heartbeat(request, topics, waiter, now),
        may_create=request.member_epoch == JOIN_EPOCH,
    )
    return reply


def _check(request: HeartbeatRequest) -> None:
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
