"""ConsumerGroupDescribe (KIP-848) and ShareGroupDescribe (KIP-932): state, epochs and members of groups that the
coordinator assigns, with what each member has and shall have.

Version notes: ConsumerGroupDescribe 1 — whether a member is of the classic or of the consumer protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request, outcome
from broker.coordinator.modern_group import ModernGroup
from broker.coordinator.modern_group_members import Member
from broker.coordinator.modern_group_messages import TopicIdPartition
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
