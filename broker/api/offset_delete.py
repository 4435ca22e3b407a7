"""OffsetDelete: delete a group's offsets of some partitions (KIP-496).

A topic that a member subscribes to gets GROUP_SUBSCRIBED_TO_TOPIC.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.offset_requests import asked_partitions, results_by_topic
from broker.errors import ErrorCode
from broker.protocol.permissions import DELETE_OFFSETS_GROUP, DELETE_OFFSETS_TOPIC


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Delete the offsets of the partitions that exist, or return an error for the whole group."""
    topics = request.body.topics
    if not context.allows(client, DELETE_OFFSETS_GROUP, request.body.group_id):
        return {"error_code": DELETE_OFFSETS_GROUP.code, "topics": ()}
    known, results = asked_partitions(context, client, DELETE_OFFSETS_TOPIC, topics)
    error, deleted = await context.groups.delete_offsets(request.body.group_id, known)
    if error is not ErrorCode.none:
        return {"error_code": error, "topics": ()}
    return {"error_code": error, "topics": results_by_topic(topics, results | deleted)}
