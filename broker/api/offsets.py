"""OffsetCommit, OffsetFetch and OffsetDelete: the offsets that groups commit, each partition with a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.named_topics import is_unknown_id, named_topics
from broker.api.serving import serves
from broker.coordinator.group_messages import NO_MEMBER, CommitRequest, FetchingMember, FetchReply
from broker.coordinator.group_records import OffsetAndMetadata
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import (
    COMMIT_GROUP,
    COMMIT_TOPIC,
    DELETE_OFFSETS_GROUP,
    DELETE_OFFSETS_TOPIC,
    FETCH_OFFSETS_GROUP,
    FETCH_OFFSETS_TOPIC,
    Permission,
)
from broker.protocol.topic_partition import TopicPartition, topic_rows


def asked_partitions(
    context: ApiContext, client: Client, need: Permission, topics: Iterable[Any]
) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, ErrorCode]]:
    """The partitions of a request that exist, with their entries, and an error for each of the others.

    `topics`: with names (named_topics.py). `need`: the right on them.
    """
    known, errors = {}, {}
    for topic in topics:
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            if is_unknown_id(topic):
                errors[tp] = ErrorCode.unknown_topic_id
            elif not context.allows(client, need, topic.name):
                errors[tp] = need.code
            elif context.topics.metadata.partition(tp) is None:
                errors[tp] = ErrorCode.unknown_topic_or_partition
            else:
                known[tp] = asked
    return known, errors


def committed_offset(asked: Any) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        asked.committed_offset,
        field(asked, "committed_leader_epoch", -1),
        asked.committed_metadata or "",
        field(asked, "commit_timestamp", -1),
    )


def refused_partitions(topics: Iterable[Any], code: ErrorCode) -> dict[TopicPartition, ErrorCode]:
    """The same error for every partition of a request."""
    return {TopicPartition(topic.name, asked.partition_index): code for topic in topics for asked in topic.partitions}


def results_by_topic(topics: Iterable[Any], results: Mapping[TopicPartition, ErrorCode]) -> list[Fields]:
    """The result of each partition, in the order of the request."""
    return [
        {
            "name": topic.name,
            "topic_id": field(topic, "topic_id"),
            "partitions": [
                {
                    "partition_index": asked.partition_index,
                    "error_code": results[TopicPartition(topic.name, asked.partition_index)],
                }
                for asked in topic.partitions
            ],
        }
        for topic in topics
    ]


_IN_ZOOKEEPER = 0


@serves(ApiKey.OFFSET_COMMIT, 0, 10)
async def offset_commit(context: ApiContext, request: Request, client: Client) -> Fields:
    """OffsetCommit: store a group's offsets in __consumer_offsets.

    The offsets of partitions that exist are stored. The others get an error.
    Version notes: 0 stores them in ZooKeeper, as Kafka does, since its clients keep the group there, too. 1 may name
    the time of a commit. 9 — members of consumer groups commit with their epoch (KIP-848). 10 names topics by id
    (KIP-516).
    """
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


_FIRST_WITH_TOPIC_IDS = 10


@serves(ApiKey.OFFSET_FETCH, 0, 10)
async def offset_fetch(context: ApiContext, request: Request, client: Client) -> Fields:
    """OffsetFetch: the committed offsets of groups.

    The offsets of the named partitions, or of all if none are named.
    Version notes: 0 reads what OffsetCommit 0 has stored in ZooKeeper. 7 — a client may ask for stable offsets. It gets
    UNSTABLE_OFFSET_COMMIT and retries if an open transaction may still change an offset (KIP-447). 8 — several groups
    at once (KIP-709). 9 — a member of a consumer group names its epoch (KIP-848). 10 names topics by id (KIP-516).
    """
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


@serves(ApiKey.OFFSET_DELETE, 0, 0)
async def offset_delete(context: ApiContext, request: Request, client: Client) -> Fields:
    """OffsetDelete: delete a group's offsets of some partitions (KIP-496).

    The whole group may have an error. A topic that a member
    subscribes to gets GROUP_SUBSCRIBED_TO_TOPIC.
    """
    topics = request.body.topics
    if not context.allows(client, DELETE_OFFSETS_GROUP, request.body.group_id):
        return {"error_code": DELETE_OFFSETS_GROUP.code, "topics": ()}
    known, results = asked_partitions(context, client, DELETE_OFFSETS_TOPIC, topics)
    error, deleted = await context.groups.delete_offsets(request.body.group_id, known)
    if error is not ErrorCode.none:
        return {"error_code": error, "topics": ()}
    return {"error_code": error, "topics": results_by_topic(topics, results | deleted)}
