"""OffsetCommit: store a group's offsets in __consumer_offsets."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.offset_requests import asked_partitions, committed_offset, refused_partitions, results_by_topic
from broker.coordinator.group_messages import CommitRequest
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import COMMIT_GROUP, COMMIT_TOPIC

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Store the offsets of the partitions that exist. The others get an error."""
    body = request.body
    if not context.allows(client, COMMIT_GROUP, body.group_id):
        return {"topics": results_by_topic(body.topics, refused_partitions(body.topics, COMMIT_GROUP.code))}
    known, results = asked_partitions(context, client, COMMIT_TOPIC, body.topics)
    if known:
        results |= await context.groups.commit_offsets(
            CommitRequest(
                group_id=body.group_id,
                offsets={tp: committed_offset(asked) for tp, asked in known.items()},
                generation_id=body.generation_id_or_member_epoch,
                member_id=body.member_id,
                group_instance_id=field(body, "group_instance_id"),
                retention_time_ms=to_ms(field(body, "retention_time", -1)),
            )
        )
    return {"topics": results_by_topic(body.topics, results)}
