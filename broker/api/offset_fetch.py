"""OffsetFetch: the committed offsets of groups.

Version notes: 0 reads what OffsetCommit 0 has stored in ZooKeeper. 7 — a client may ask for stable offsets. It gets
UNSTABLE_OFFSET_COMMIT and retries if an open transaction may still change an offset (KIP-447). 8 — several groups at
once (KIP-709). 9 — a member of a consumer group names its epoch (KIP-848). 10 names topics by id (KIP-516).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.named_topics import is_unknown_id, named_topics
from broker.coordinator.group_messages import NO_MEMBER, FetchingMember, FetchReply
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import FETCH_OFFSETS_GROUP, FETCH_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition, topic_rows

_IN_ZOOKEEPER = 0
_FIRST_WITH_TOPIC_IDS = 10


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """The offsets of the named partitions, or of all if none are named."""
    if request.version == _IN_ZOOKEEPER:
        return {"topics": await _of_zookeeper(context, client, request.body)}
    groups = field(request.body, "groups")
    stable = field(request.body, "require_stable", False)
    if groups is None:
        reply, refused = await _fetch(context, client, request.body.group_id, request.body.topics, stable)
        if request.version == 1 and reply.error is not ErrorCode.none:
            return {"topics": _failed(request.body.topics or (), reply.error)}
        return {"error_code": reply.error, "topics": _topics(reply, refused)}
    answers = []
    for group in groups:
        member = FetchingMember(field(group, "member_id"), field(group, "member_epoch", -1))
        topics = None if group.topics is None else named_topics(context, group.topics)
        reply, refused = await _fetch(context, client, group.group_id, topics, stable, member)
        rows = _topics(reply, refused)
        if request.version >= _FIRST_WITH_TOPIC_IDS:
            # Of all topics those are left out, as in Kafka, that were deleted and have no id any more.
            known = context.topics.metadata.topics
            ids = {topic.name: topic.topic_id for topic in (known.values() if topics is None else topics)}
            rows = [{**row, "topic_id": ids[row["name"]]} for row in rows if row["name"] in ids]
        answers.append({"group_id": group.group_id, "error_code": reply.error, "topics": rows})
    return {"groups": answers}


async def _fetch(
    context: ApiContext,
    client: Client,
    group_id: str,
    topics: Sequence[Any] | None,
    stable: bool,
    member: FetchingMember = NO_MEMBER,
) -> tuple[FetchReply, dict[TopicPartition, ErrorCode]]:
    """The reply, and an error for each partition that was asked for and that the client may not see."""
    if not context.allows(client, FETCH_OFFSETS_GROUP, group_id):
        return FetchReply(FETCH_OFFSETS_GROUP.code, {}), {}
    if topics is None:
        reply = await context.groups.fetch_offsets(group_id, None, require_stable=stable, member=member)
        shown = {
            tp: found
            for tp, found in reply.offsets.items()
            if context.allows(client, FETCH_OFFSETS_TOPIC, tp.topic, asked=False)
        }
        return reply._replace(offsets=shown), {}
    wanted: list[TopicPartition] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in topics:
        of_topic = [TopicPartition(topic.name, index) for index in topic.partition_indexes]
        if is_unknown_id(topic):
            refused |= dict.fromkeys(of_topic, ErrorCode.unknown_topic_id)
        elif context.allows(client, FETCH_OFFSETS_TOPIC, topic.name):
            wanted += of_topic
        else:
            refused |= dict.fromkeys(of_topic, FETCH_OFFSETS_TOPIC.code)
    return await context.groups.fetch_offsets(group_id, wanted, require_stable=stable, member=member), refused


async def _of_zookeeper(context: ApiContext, client: Client, body: Any) -> Sequence[Fields]:
    """Each partition without an offset has an error, as in Kafka."""
    if not context.allows(client, FETCH_OFFSETS_GROUP, body.group_id):
        return _failed(body.topics, FETCH_OFFSETS_GROUP.code)
    asked = [TopicPartition(topic.name, index) for topic in body.topics for index in topic.partition_indexes]
    shown = {name for name in {tp.topic for tp in asked} if context.allows(client, FETCH_OFFSETS_TOPIC, name)}
    known = [tp for tp in asked if tp.topic in shown and context.topics.metadata.partition(tp) is not None]
    try:
        offsets = await context.zookeeper_offsets.committed(body.group_id, known)
        missing = ErrorCode.unknown_topic_or_partition
    except BrokerError as error:
        offsets, missing = {}, error.code
    answers = [
        (tp, {**_no_offset(tp, ErrorCode.none), "committed_offset": offsets[tp]})
        if tp in offsets
        else (tp, _no_offset(tp, missing if tp.topic in shown else FETCH_OFFSETS_TOPIC.code))
        for tp in asked
    ]
    return topic_rows(answers)


def _failed(topics: Sequence[Any], error: ErrorCode) -> Sequence[Fields]:
    """Versions 0 and 1 have no error for the group, so each partition has it."""
    return [
        {
            "name": topic.name,
            "partitions": [_no_offset(TopicPartition(topic.name, index), error) for index in topic.partition_indexes],
        }
        for topic in topics
    ]


def _topics(reply: FetchReply, refused: Mapping[TopicPartition, ErrorCode]) -> Sequence[Fields]:
    answers: list[tuple[TopicPartition, Fields]] = [
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
    ]
    if reply.error is ErrorCode.none:
        answers += [(tp, _no_offset(tp, code)) for tp, code in refused.items()]
    return topic_rows(answers)


def _no_offset(tp: TopicPartition, error: ErrorCode) -> Fields:
    return {"partition_index": tp.partition, "committed_offset": -1, "metadata": "", "error_code": error}
