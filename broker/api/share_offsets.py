"""What share groups have of partitions, and where they begin (KIP-932): for leaders of partitions, which keep the
states of share groups at their coordinator, and for admins, who show, set and delete the offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.named_topics import NO_ID
from broker.api.serving import serves
from broker.clock import Clock
from broker.cluster.group_configs import GroupConfigs
from broker.config.group_config import reset_age_ms
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import (
    ALTER_SHARE_OFFSETS_GROUP,
    ALTER_SHARE_OFFSETS_TOPIC,
    DELETE_SHARE_OFFSETS_GROUP,
    DELETE_SHARE_OFFSETS_TOPIC,
    DESCRIBE_SHARE_OFFSETS_GROUP,
    DESCRIBE_SHARE_OFFSETS_TOPIC,
    SHARE_STATE_AS_BROKER,
)
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import Topic
from broker.replica.cold_reads import read_warm
from broker.replica.partition import Partition
from broker.share.persister import STATE_APIS, SharePartitionKey, ShareState, from_fields, to_fields

_NO_STATE = ShareState(start_offset=0)


@serves(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0)
@serves(ApiKey.READ_SHARE_GROUP_STATE, 0, 0)
@serves(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1)
@serves(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0)
@serves(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1)
async def share_group_state(context: ApiContext, request: Request, client: Client) -> Fields:
    """InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
    ReadShareGroupStateSummary: what leaders of partitions ask the share coordinator (KIP-932).

    Only brokers ask; others get CLUSTER_AUTHORIZATION_FAILED. A change is answered once all in-sync replicas of
    `__share_group_state` have it. Each share partition succeeds or fails alone.
    Version notes: 1 — the delivery complete count (KIP-1226).
    """
    kind, _ = STATE_APIS[request.api]

    async def answer(topic: Any, row: Any) -> Fields:
        state, error = _NO_STATE, BrokerError(ErrorCode.none)
        try:
            context.check(client, SHARE_STATE_AS_BROKER[request.api])
            asked = from_fields(kind, row)
            if topic.topic_id is None or row.partition < 0:
                raise BrokerError(ErrorCode.invalid_request, "a share partition has a topic id and a number")
            if any(not 0 <= first <= last for first, last, *_ in getattr(asked, "state_batches", ())):
                raise BrokerError(ErrorCode.invalid_request, "a state batch ends before it begins")
            key = SharePartitionKey(request.body.group_id, topic.topic_id, row.partition)
            state = await context.share.coordinator.ask(key, asked)
        except BrokerError as refused:
            error = refused
        told = {"partition": row.partition, **outcome(error)}
        return {**told, **to_fields(state)}

    async def answers(topic: Any) -> Fields:
        rows = await asyncio.gather(*(answer(topic, row) for row in topic.partitions))
        return {"topic_id": topic.topic_id, "partitions": rows}

    return {"results": await asyncio.gather(*map(answers, request.body.topics))}


_NOTHING = ShareState()


@serves(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1)
async def describe_share_group_offsets(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeShareGroupOffsets: where share groups begin in their partitions, and how far they are behind (KIP-932).

    Each group succeeds or fails alone. A group that has nothing of a partition has the offset -1 there, which is no
    error.
    Version notes: 1 — the lag: records from the start on that are not done (KIP-1226); -1 where it is not known, such
    as of partitions that other brokers lead.
    """
    return {"groups": [await _describe_group(context, client, one) for one in request.body.groups]}


async def _describe_group(context: ApiContext, client: Client, asked: Any) -> Fields:
    known, topics = context.topics.metadata.topics, []
    try:
        context.check(client, DESCRIBE_SHARE_OFFSETS_GROUP, asked.group_id)
        for name, numbers in _named_partitions(context, asked):
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


def _named_partitions(context: ApiContext, asked: Any) -> Iterable[tuple[str, Iterable[int]]]:
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


_BELOW_0 = BrokerError(ErrorCode.invalid_request, "a share group cannot begin below offset 0")
_DONE = BrokerError(ErrorCode.none)


@serves(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0)
async def alter_share_group_offsets(context: ApiContext, request: Request, client: Client) -> Fields:
    """AlterShareGroupOffsets: begin anew at other offsets, for a share group without members (KIP-932).

    Each partition succeeds or fails alone. What its members had of these partitions is forgotten. The group is made if
    there is none.
    """
    body, known = request.body, context.topics.metadata.topics
    named = {asked.topic_name for asked in body.topics}
    allowed = {name for name in named if context.allows(client, ALTER_SHARE_OFFSETS_TOPIC, name)}
    topics = {name: known[name] for name in allowed & known.keys()}
    offsets = {
        TopicIdPartition(topics[asked.topic_name].topic_id, one.partition_index): one.start_offset
        for asked in body.topics
        for one in asked.partitions
        if asked.topic_name in topics and one.partition_index in topics[asked.topic_name].partitions
    }
    wanted = {one: offset for one, offset in offsets.items() if offset >= -1}
    names = {topic.topic_id: topic.name for topic in topics.values()}
    try:
        context.check(client, ALTER_SHARE_OFFSETS_GROUP, body.group_id)
        if not body.group_id:
            raise BrokerError(ErrorCode.invalid_group_id)
        results = await context.share.states.alter(body.group_id, wanted, {one: names[one] for one, _ in wanted})
    except BrokerError as error:
        return outcome(error)

    def answer(name: str, number: int) -> Fields:
        if name not in allowed:
            error = context.refusal(client, ALTER_SHARE_OFFSETS_TOPIC, name)
        elif name not in topics or (one := TopicIdPartition(topics[name].topic_id, number)) not in offsets:
            error = BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {number} of {name}")
        else:
            error = results.get(one, _BELOW_0) or _DONE
        return {"partition_index": number, **outcome(error)}

    return {
        "responses": [
            {
                "topic_name": asked.topic_name,
                "topic_id": topics[asked.topic_name].topic_id if asked.topic_name in topics else None,
                "partitions": [answer(asked.topic_name, one.partition_index) for one in asked.partitions],
            }
            for asked in body.topics
        ]
    }


@serves(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0)
async def delete_share_group_offsets(context: ApiContext, request: Request, client: Client) -> Fields:
    """DeleteShareGroupOffsets: forget what a share group without members has of topics (KIP-932).

    Each topic succeeds or fails alone.
    """
    body, known = request.body, context.topics.metadata.topics
    names = [one.topic_name for one in body.topics]
    allowed = {name for name in names if context.allows(client, DELETE_SHARE_OFFSETS_TOPIC, name)}
    try:
        context.check(client, DELETE_SHARE_OFFSETS_GROUP, body.group_id)
        if not body.group_id:
            raise BrokerError(ErrorCode.invalid_group_id)
        topic_ids = [known[name].topic_id for name in names if name in known and name in allowed]
        results = await context.share.states.delete(body.group_id, topic_ids)
    except BrokerError as error:
        return outcome(error)

    def answer(name: str) -> Fields:
        topic = known.get(name)
        if name not in allowed:
            error = context.refusal(client, DELETE_SHARE_OFFSETS_TOPIC, name)
        elif topic is None:
            error = BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        elif topic.topic_id not in results:
            error = BrokerError(ErrorCode.unknown_topic_or_partition, "There is no offset information to delete.")
        elif (failed := results[topic.topic_id]) is None:
            return {"topic_name": name, "topic_id": topic.topic_id}
        else:
            error = failed
        return {"topic_name": name, **outcome(error)}

    return {"responses": [answer(name) for name in names]}


class OffsetReset:
    """Looks the offset up in the log, without blocking the event loop."""

    def __init__(self, configs: GroupConfigs, clock: Clock) -> None:
        self._configs = configs
        self._clock = clock

    async def __call__(self, group_id: str, partition: Partition) -> int:
        """Raises BrokerError. It waits until a new leader knows what is committed: latest must not be too low."""
        reset = self._configs.of(group_id).share_auto_offset_reset
        if (waiting := partition.caught_up()) is not None:
            await asyncio.wait([waiting])
            waiting.result()
        if reset == "earliest":
            return partition.log.log_start_offset
        age_ms = reset_age_ms(reset)
        if age_ms is None:
            return partition.high_watermark
        since = self._clock.now_ms() - age_ms
        found = await read_warm(lambda: partition.log.offset_for_timestamp(since))
        return partition.high_watermark if found is None else min(found[0], partition.high_watermark)
