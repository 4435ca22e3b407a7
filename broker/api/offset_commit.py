"""OffsetCommit: store a group's offsets in __consumer_offsets.

Version notes: 0 stores them in ZooKeeper, as Kafka does, since its clients keep the group there, too. 1 may name the
time of a commit. 9 — members of consumer groups commit with their epoch (KIP-848). 10 names topics by id (KIP-516).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.named_topics import named_topics
from broker.api.offset_requests import asked_partitions, committed_offset, refused_partitions, results_by_topic
from broker.coordinator.group_messages import CommitRequest
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import COMMIT_GROUP, COMMIT_TOPIC
from broker.protocol.topic_partition import TopicPartition

_IN_ZOOKEEPER = 0


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Store the offsets of the partitions that exist. The others get an error."""
    body, topics = request.body, named_topics(context, request.body.topics)
    if not context.allows(client, COMMIT_GROUP, body.group_id):
        return {"topics": results_by_topic(topics, refused_partitions(topics, COMMIT_GROUP.code))}
    known, results = asked_partitions(context, client, COMMIT_TOPIC, topics)
    if known and request.version == _IN_ZOOKEEPER:
        results |= await _into_zookeeper(context, body.group_id, known)
    elif known:
        results |= await context.groups.commit_offsets(
            CommitRequest(
                group_id=body.group_id,
                offsets={tp: committed_offset(asked) for tp, asked in known.items()},
                generation_id=body.generation_id_or_member_epoch,
                member_id=body.member_id,
                group_instance_id=field(body, "group_instance_id"),
                knows_epochs=request.version >= 9,
                retention_time_ms=to_ms(field(body, "retention_time", -1)),
            )
        )
    return {"topics": results_by_topic(topics, results)}


async def _into_zookeeper(
    context: ApiContext, group: str, known: Mapping[TopicPartition, Any]
) -> dict[TopicPartition, ErrorCode]:
    longest = context.config.offset_metadata_max_bytes
    results = {
        tp: ErrorCode.offset_metadata_too_large
        for tp, asked in known.items()
        if len(asked.committed_metadata or "") > longest
    }
    taken = {tp: asked.committed_offset for tp, asked in known.items() if tp not in results}
    try:
        if taken:
            await context.zookeeper_offsets.commit(group, taken)
    except BrokerError as error:
        return results | dict.fromkeys(taken, error.code)
    return results | dict.fromkeys(taken, ErrorCode.none)
