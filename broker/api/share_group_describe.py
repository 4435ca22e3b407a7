"""ShareGroupDescribe: state, epochs and members of share groups, with what each reads (KIP-932)."""

from __future__ import annotations

from broker.api.consumer_group_describe import described_member, described_topics
from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request
from broker.errors import BrokerError
from broker.protocol.permissions import DESCRIBE_SHARES_GROUP, DESCRIBE_SHARES_TOPIC
from broker.security.acl_types import AclResourceType


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    return {"groups": [_describe(context, request, client, group_id) for group_id in request.body.group_ids]}


def _describe(context: ApiContext, request: Request, client: Client, group_id: str) -> Fields:
    try:
        context.check(client, DESCRIBE_SHARES_GROUP, group_id)
        found = context.groups.share_group(group_id).describe()
        topics = described_topics(context, client, DESCRIBE_SHARES_TOPIC, found.members)
    except BrokerError as error:
        return {"group_id": group_id, "error_code": error.code, "error_message": error.message or None}
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
        "members": [described_member(member, topics) for member in found.members],
    }
