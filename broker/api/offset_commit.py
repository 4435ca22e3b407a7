"""OffsetCommit: a group's positions, kept in __consumer_offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.records import OffsetAndMetadata
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request, field, to_ms
from broker.protocol.topic_partition import TopicPartition

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Store the offsets; a partition that does not exist gets its own error, the others are kept."""
    body = request.body
    known, errors = {}, {}
    for topic in body.topics:
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            if context.topics.metadata.partition(tp) is None:
                errors[tp] = ErrorCode.unknown_topic_or_partition
            else:
                known[tp] = OffsetAndMetadata(
                    asked.committed_offset, field(asked, "committed_leader_epoch", -1), asked.committed_metadata or ""
                )
    errors.update(
        await context.groups.commit_offsets(
            CommitRequest(
                group_id=body.group_id,
                offsets=known,
                generation_id=body.generation_id_or_member_epoch,
                member_id=body.member_id,
                group_instance_id=field(body, "group_instance_id"),
                retention_time_ms=to_ms(field(body, "retention_time", -1)),
            )
        )
        if known or not errors
        else {}
    )
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": errors[TopicPartition(topic.name, asked.partition_index)],
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }
