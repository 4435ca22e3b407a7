"""DescribeShareGroupOffsets: where share groups begin in their partitions, and how far they are behind (KIP-932).

A group that has nothing of a partition has the offset -1 there, which is no error.
Version notes: 1 — the lag: records from the start on that are not done (KIP-1226); -1 where it is not known, such as of
partitions that other brokers lead.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.named_topics import NO_ID
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import DESCRIBE_SHARE_OFFSETS_GROUP, DESCRIBE_SHARE_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import Topic
from broker.share.persister import ShareState

_NOTHING = ShareState()


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    return {"groups": [await _describe(context, client, one) for one in request.body.groups]}


async def _describe(context: ApiContext, client: Client, asked: Any) -> Fields:
    known, topics = context.topics.metadata.topics, []
    try:
        context.check(client, DESCRIBE_SHARE_OFFSETS_GROUP, asked.group_id)
        for name, numbers in _asked(context, asked):
            allowed = context.allows(client, DESCRIBE_SHARE_OFFSETS_TOPIC, name)
            if asked.topics is None and not allowed:
                continue
            code = ErrorCode.none if allowed else DESCRIBE_SHARE_OFFSETS_TOPIC.code
            topic = known.get(name) if allowed else None
            found = {} if topic is None else await _summaries(context, asked.group_id, topic, numbers)
            partitions = [_row(context, name, one, found.get(one, _NOTHING), code) for one in dict.fromkeys(numbers)]
            topic_id = NO_ID if topic is None else topic.topic_id
            topics.append({"topic_name": name, "topic_id": topic_id, "partitions": partitions})
    except BrokerError as error:
        return {"group_id": asked.group_id, **outcome(error)}
    return {"group_id": asked.group_id, "topics": topics}


def _asked(context: ApiContext, asked: Any) -> Iterable[tuple[str, Iterable[int]]]:
    """The topics that are named, or else those that the group reads, and their partitions."""
    if asked.topics is not None:
        return [(one.topic_name, one.partitions) for one in asked.topics]
    names = context.topics.metadata.topic_names
    reads = context.groups.share_group(asked.group_id).states.initialized.items()
    return [(shares.name, sorted(shares.partitions)) for topic_id, shares in reads if topic_id in names]


async def _summaries(context: ApiContext, group_id: str, topic: Topic, numbers: Iterable[int]) -> dict[int, ShareState]:
    """By partition. An error is as good as no state, as in Kafka."""
    # A request may name millions of partitions that do not exist.
    wanted = [TopicIdPartition(topic.topic_id, one) for one in dict.fromkeys(numbers) if one in topic.partitions]
    found = await context.share.states.summaries(group_id, wanted)
    return {one.partition: state for one, state in found.items() if isinstance(state, ShareState)}


def _row(context: ApiContext, name: str, number: int, state: ShareState, code: int) -> Fields:
    start, _, leader_epoch, _, complete = state
    lag = -1
    if start >= 0 and complete >= 0:
        with suppress(BrokerError):
            end = context.topics.partition(TopicPartition(name, number)).high_watermark
            lag = max(end - start - complete, 0)
    return {
        "partition_index": number,
        "start_offset": start,
        "leader_epoch": leader_epoch,
        "lag": lag,
        "error_code": code,
    }
