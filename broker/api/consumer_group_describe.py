"""ConsumerGroupDescribe (KIP-848) and ShareGroupDescribe (KIP-932): state, epochs and members of groups that the
coordinator assigns, with what each member has and shall have.

Version notes: ConsumerGroupDescribe 1 — whether a member is of the classic or of the consumer protocol.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request, outcome
from broker.coordinator.modern_group_messages import MemberDescription, Partitions
from broker.coordinator.modern_group_records import by_topic_id
from broker.errors import BrokerError
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import (
    DESCRIBE_CONSUMERS_GROUP,
    DESCRIBE_CONSUMERS_TOPIC,
    DESCRIBE_SHARES_GROUP,
    DESCRIBE_SHARES_TOPIC,
    Permission,
)
from broker.security.acl_types import AclResourceType

_NEEDS = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: (DESCRIBE_CONSUMERS_GROUP, DESCRIBE_CONSUMERS_TOPIC),
    ApiKey.SHARE_GROUP_DESCRIBE: (DESCRIBE_SHARES_GROUP, DESCRIBE_SHARES_TOPIC),
}
_CLASSIC, _CONSUMER = 0, 1


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    return {"groups": [_describe(context, request, client, group_id) for group_id in request.body.group_ids]}


def _describe(context: ApiContext, request: Request, client: Client, group_id: str) -> Fields:
    need, need_topic = _NEEDS[request.api]
    try:
        context.check(client, need, group_id)
        if request.api is ApiKey.SHARE_GROUP_DESCRIBE:
            found = context.groups.share_group(group_id).describe()
        else:
            found = context.groups.describe_consumer_group(group_id)
        names = _names(context, client, need_topic, found.members)
    except BrokerError as error:
        return {"group_id": group_id, **outcome(error)}
    operations = NOT_ASKED
    if request.body.include_authorized_operations:
        operations = context.authorized_operations(client, request.api, AclResourceType.GROUP, group_id)
    return {
        "group_id": group_id,
        "group_state": found.state,
        "group_epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor_name": found.assignor_name,
        "authorized_operations": operations,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "rack_id": member.rack_id,
                "member_epoch": member.member_epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": sorted(member.topic_names),
                "subscribed_topic_regex": member.topic_regex or "",
                "assignment": _assignment(member.assignment, names),
                "target_assignment": _assignment(member.target_assignment, names),
                "member_type": _CLASSIC if member.is_classic else _CONSUMER,
            }
            for member in found.members
        ],
    }


def _names(
    context: ApiContext, client: Client, need: Permission, members: Collection[MemberDescription]
) -> dict[UUID, str]:
    """Those of the topics that members have or shall have. Raises BrokerError if the client lacks the right on one."""
    ids = {tp.topic_id for member in members for tp in member.assignment | member.target_assignment}
    known = context.topics.metadata.topic_names
    names = {topic_id: known[topic_id] for topic_id in ids if topic_id in known}
    if not all(context.allows(client, need, name) for name in names.values()):
        raise BrokerError(need.code, "The group has topics that the client is not authorized to describe.")
    return names


def _assignment(partitions: Partitions, names: dict[UUID, str]) -> Fields:
    """Those of topics that exist."""
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": numbers}
            for topic_id, numbers in by_topic_id(partitions).items()
            if topic_id in names
        ]
    }
