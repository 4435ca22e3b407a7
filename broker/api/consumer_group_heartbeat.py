"""ConsumerGroupHeartbeat: how a member of a consumer group joins, stays, learns its partitions and leaves (KIP-848).

Version notes: 1 — patterns (KIP-848), and the member brings its own id from the first request on (KIP-1082).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.modern_group_messages import HeartbeatReply, HeartbeatRequest, TopicIdPartition
from broker.coordinator.modern_group_records import by_topic_id
from broker.errors import BrokerError, ErrorCode
from broker.net.delayed_answer import DelayedAnswer
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import CONSUMER_HEARTBEAT, CONSUMER_HEARTBEAT_TOPIC


def handle(context: ApiContext, request: Request, client: Client) -> Fields | DelayedAnswer[Fields] | Awaitable[Fields]:
    """Patterns match only topics that the client may describe; names of others are an error."""
    body = request.body
    names, owned = body.subscribed_topic_names, body.topic_partitions
    try:
        context.check(client, CONSUMER_HEARTBEAT, body.group_id)
        check_group_id(body.group_id)
        for name in names or ():
            context.check(client, CONSUMER_HEARTBEAT_TOPIC, name)
    except BrokerError as error:
        return heartbeat_fields(HeartbeatReply(error.code, error.message))
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
        return heartbeat_fields(quiet)
    reply = context.groups.consumer_heartbeat(heartbeat)
    return reply.then(heartbeat_fields) if isinstance(reply, DelayedAnswer) else _fields_of(reply)


async def _fields_of(reply: Awaitable[HeartbeatReply]) -> Fields:
    return heartbeat_fields(await reply)


def check_group_id(group_id: str) -> None:
    """Raise BrokerError `invalid_request` for a blank id, also in ShareGroupHeartbeat. Classic groups may have one."""
    if not group_id.strip():
        raise BrokerError(ErrorCode.invalid_request, "the group id is blank")


def heartbeat_fields(reply: HeartbeatReply) -> Fields:
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
