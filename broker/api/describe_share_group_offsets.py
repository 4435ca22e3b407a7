"""DescribeShareGroupOffsets: where share groups begin in their partitions, and how far they are behind (KIP-932).

A group that has nothing of a partition has the offset -1 there, which is no error.
Version notes: 1 — the lag: records from the start on that are not done (KIP-1226); -1 where it is not known, such as of
partitions that other brokers lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.named_topics import NO_ID
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.errors import BrokerError
from broker.protocol.permissions import DESCRIBE_SHARE_OFFSETS_GROUP, DESCRIBE_SHARE_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import Topic
from broker.share.persister import ShareState

_NOTHING = ShareState()


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    return {"groups": [await _describe(context, client, one) for one in request.body.groups]}


async def _describe(context: ApiContext, client: Client, asked: Any) -> Fields:
    group_id, topics = asked.group_id, []
    try:
        context.check(client, DESCRIBE_SHARE_OFFSETS_GROUP, group_id)
        for topic, numbers in _asked(context, client, asked):
            if isinstance(topic, Topic):
                partitions = await _partitions(context, group_id, topic, numbers)
                topics.append({"topic_name": topic.name, "topic_id": topic.topic_id, "partitions": partitions})
                continue
            denied = not context.allows(client, DESCRIBE_SHARE_OFFSETS_TOPIC, topic)
            code = DESCRIBE_SHARE_OFFSETS_TOPIC.code if denied else 0
            partitions = [{"partition_index": one, "start_offset": -1, "error_code": code} for one in numbers]
            topics.append({"topic_name": topic, "topic_id": NO_ID, "partitions": partitions})
    except BrokerError as error:
        return {"group_id": group_id, "topics": (), "error_code": error.code, "error_message": error.message or None}
    return {"group_id": group_id, "topics": topics}


def _asked(context: ApiContext, client: Client, asked: Any) -> Iterable[tuple[Topic | str, Iterable[int]]]:
    """Topics and partitions; the name of one that does not exist, or that the client must not see."""
    topics = context.topics.metadata.topics
    if asked.topics is not None:
        for one in asked.topics:
            allowed = context.allows(client, DESCRIBE_SHARE_OFFSETS_TOPIC, one.topic_name)
            yield (topics.get(one.topic_name, one.topic_name) if allowed else one.topic_name), one.partitions
        return
    for topic_id, shares in context.groups.share_group(asked.group_id).states.initialized.items():
        topic = topics.get(shares.name)
        if topic is None or topic.topic_id != topic_id:
            continue
        if context.allows(client, DESCRIBE_SHARE_OFFSETS_TOPIC, topic.name):
            yield topic, sorted(shares.partitions)


async def _partitions(context: ApiContext, group_id: str, topic: Topic, numbers: Iterable[int]) -> list[Fields]:
    asked = [TopicIdPartition(topic.topic_id, number) for number in dict.fromkeys(numbers)]
    known = [one for one in asked if one.partition in topic.partitions]  # a request may name millions of others
    found: Mapping[TopicIdPartition, ShareState | BrokerError]
    found = await context.share.states.summaries(group_id, known)
    partitions: list[Fields] = []
    for one in asked:
        summary = found.get(one, _NOTHING)
        if isinstance(summary, BrokerError):
            summary = _NOTHING  # as in Kafka
        lag = _lag(context, TopicPartition(topic.name, one.partition), summary)
        partitions.append(
            {
                "partition_index": one.partition,
                "start_offset": summary.start_offset,
                "leader_epoch": summary.leader_epoch,
                "lag": lag,
            }
        )
    return partitions


def _lag(context: ApiContext, tp: TopicPartition, summary: ShareState) -> int:
    if summary.start_offset < 0 or summary.delivery_complete_count < 0:
        return -1
    try:
        end = context.topics.partition(tp).high_watermark
    except BrokerError:
        return -1
    return max(end - summary.start_offset - summary.delivery_complete_count, 0)
