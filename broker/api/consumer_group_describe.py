"""ConsumerGroupDescribe: state, epochs and members of consumer groups, with what each has and shall have (KIP-848).

Version notes: 1 — whether a member is of the classic or of the consumer protocol.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request
from broker.coordinator.modern_group_messages import MemberDescription, Partitions
from broker.coordinator.modern_group_records import by_topic_id
from broker.errors import BrokerError
from broker.protocol.permissions import DESCRIBE_CONSUMERS_GROUP, DESCRIBE_CONSUMERS_TOPIC, Permission
from broker.replica.cluster_metadata import Topic
from broker.security.acl_types import AclResourceType

CLASSIC, CONSUMER = 0, 1


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    return {"groups": [_describe(context, request, client, group_id) for group_id in request.body.group_ids]}


def _describe(context: ApiContext, request: Request, client: Client, group_id: str) -> Fields:
    answer = {"group_id": group_id, "group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": ""}
    try:
        context.check(client, DESCRIBE_CONSUMERS_GROUP, group_id)
        found = context.groups.describe_consumer_group(group_id)
        topics = described_topics(context, client, DESCRIBE_CONSUMERS_TOPIC, found.members)
    except BrokerError as error:
        return {**answer, "error_code": error.code, "error_message": error.message, "members": ()}
    operations = NOT_ASKED
    if request.body.include_authorized_operations:
        operations = context.authorized_operations(client, request.api, AclResourceType.GROUP, group_id)
    return {
        "error_code": 0,
        "error_message": None,
        "group_id": group_id,
        "group_state": found.state,
        "group_epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor_name": found.assignor_name,
        "authorized_operations": operations,
        "members": [
            {
                **described_member(member, topics),
                "instance_id": member.instance_id,
                "subscribed_topic_regex": member.topic_regex or "",
                "target_assignment": described_assignment(member.target_assignment, topics),
                "member_type": CLASSIC if member.is_classic else CONSUMER,
            }
            for member in found.members
        ],
    }


def described_topics(
    context: ApiContext, client: Client, need: Permission, members: Collection[MemberDescription]
) -> dict[UUID, Topic]:
    """The topics by id that members have or shall have. Raises BrokerError if the client lacks the right on one."""
    ids = {tp.topic_id for member in members for tp in member.assignment | member.target_assignment}
    found = {topic.topic_id: topic for topic in context.topics.metadata.topics.values() if topic.topic_id in ids}
    for topic in found.values():
        if not context.allows(client, need, topic.name):
            raise BrokerError(need.code, "The group has topics that the client is not authorized to describe.")
    return found


def described_member(member: MemberDescription, topics: dict[UUID, Topic]) -> dict[str, object]:
    """What ConsumerGroupDescribe and ShareGroupDescribe say of a member."""
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "assignment": described_assignment(member.assignment, topics),
    }


def described_assignment(partitions: Partitions, topics: dict[UUID, Topic]) -> Fields:
    """Those of topics that exist."""
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topics[topic_id].name, "partitions": numbers}
            for topic_id, numbers in by_topic_id(partitions).items()
            if topic_id in topics
        ]
    }
