"""OffsetFetch: the committed offsets of groups.

Version notes: 7 — a client may ask for stable offsets. It gets UNSTABLE_OFFSET_COMMIT and retries if an open
transaction may still change an offset (KIP-447). 8 — several groups at once (KIP-709).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.group_messages import FetchReply
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition, by_topic

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """The offsets of the named partitions, or of all if none are named."""
    groups = field(request.body, "groups")
    stable = field(request.body, "require_stable", False)
    if groups is None:
        reply = await _fetch(context, request.body.group_id, request.body.topics, stable)
        if request.version == 1 and reply.error is not ErrorCode.none:
            return {"topics": _failed(request.body.topics or (), reply.error)}
        return {"error_code": reply.error, "topics": _topics(reply)}
    answers = []
    for group in groups:
        reply = await _fetch(context, group.group_id, group.topics, stable)
        answers.append({"group_id": group.group_id, "error_code": reply.error, "topics": _topics(reply)})
    return {"groups": answers}


async def _fetch(context: ApiContext, group_id: str, topics: Sequence[Any] | None, stable: bool) -> FetchReply:
    if topics is None:
        return await context.groups.fetch_offsets(group_id, None, require_stable=stable)
    wanted = [TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes]
    return await context.groups.fetch_offsets(group_id, wanted, require_stable=stable)


def _failed(topics: Sequence[Any], error: ErrorCode) -> list[Fields]:
    """Version 1 has no error for the group, so each partition has it."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": error}
                for index in topic.partition_indexes
            ],
        }
        for topic in topics
    ]


def _topics(reply: FetchReply) -> list[Fields]:
    answers = (
        (
            tp,
            {
                "partition_index": tp.partition,
                "committed_offset": found.offset,
                "committed_leader_epoch": found.leader_epoch,
                "metadata": found.metadata,
                "error_code": ErrorCode.unstable_offset_commit if tp in reply.unstable else ErrorCode.none,
            },
        )
        for tp, found in reply.offsets.items()
    )
    return [{"name": name, "partitions": partitions} for name, partitions in by_topic(answers).items()]
