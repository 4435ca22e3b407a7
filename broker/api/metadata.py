"""Metadata: brokers, topics, leaders. Creates topics that a client names first, when that is enabled.

Version notes: 0 — no names means all topics; from 1 null means all and none means none; from 4 the
client says whether it wants a topic created; from 10 topics have ids, from 12 they may be asked for by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from broker.api.context import ApiContext
from broker.cluster.metadata import ClusterMetadata, Topic
from broker.cluster.topic_names import INTERNAL_TOPICS
from broker.errors import BrokerError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request, field

__all__ = ["handle"]

_NO_ID = uuid.UUID(int=0)
_FIRST_BY_ID = 12


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    """Answer from the metadata cache, or after the missing topics were created."""
    wanted = request.body.topics
    everything = wanted is None or (request.version == 0 and not wanted)
    if not everything and request.version < _FIRST_BY_ID and any(item.name is None for item in wanted):
        return _around(context, [_absent(item.name or "", _NO_ID, ErrorCode.invalid_request) for item in wanted])
    may_create = context.config.auto_create_topics_enable and field(request.body, "allow_auto_topic_creation", True)
    if not everything and may_create:
        missing = [t.name for t in wanted if t.name is not None and t.name not in context.topics.metadata.topics]
        if missing:
            return _create_and_answer(context, wanted, missing)
    return _answer(context, None if everything else wanted, {})


async def _create_and_answer(context: ApiContext, wanted: Sequence[Any], missing: Sequence[str]) -> Mapping[str, Any]:
    failed: dict[str, BrokerError] = {}
    for name in missing:
        try:
            await context.topics.create_default(name)
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:
                failed[name] = error
    return _answer(context, wanted, failed)


def _answer(context: ApiContext, wanted: Sequence[Any] | None, failed: Mapping[str, BrokerError]) -> Mapping[str, Any]:
    metadata = context.topics.metadata
    if wanted is None:
        topics = [_topic(metadata, topic) for topic in metadata.topics.values()]
    else:
        topics = [_wanted(metadata, item, failed) for item in wanted]
    return _around(context, topics)


def _around(context: ApiContext, topics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    metadata = context.topics.metadata
    return {
        "brokers": [
            {"node_id": b.broker_id, "host": b.host, "port": b.port, "rack": None} for b in metadata.brokers.values()
        ],
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.controller_id,
        "topics": topics,
        "cluster_authorized_operations": -(2**31),
    }


def _wanted(metadata: ClusterMetadata, item: Any, failed: Mapping[str, BrokerError]) -> Mapping[str, Any]:
    topic_id = field(item, "topic_id") or _NO_ID
    if item.name is None:
        by_id = metadata.topic_by_id(topic_id)
        if by_id is None:
            return _absent(None, topic_id, ErrorCode.unknown_topic_id)
        return _topic(metadata, by_id)
    topic = metadata.topics.get(item.name)
    if topic is None:
        code = failed[item.name].code if item.name in failed else ErrorCode.unknown_topic_or_partition
        return _absent(item.name, _NO_ID, code)
    return _topic(metadata, topic)


def _absent(name: str | None, topic_id: uuid.UUID, code: ErrorCode) -> Mapping[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "partitions": (),
        "topic_authorized_operations": -(2**31),
    }


def _topic(metadata: ClusterMetadata, topic: Topic) -> Mapping[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "topic_authorized_operations": -(2**31),
        "partitions": [
            {
                "error_code": (ErrorCode.none if info.leader in metadata.brokers else ErrorCode.leader_not_available),
                "partition_index": index,
                "leader_id": info.leader if info.leader in metadata.brokers else -1,
                "leader_epoch": info.leader_epoch,
                "replica_nodes": info.replicas,
                "isr_nodes": info.isr,
                "offline_replicas": [r for r in info.replicas if r not in metadata.brokers],
            }
            for index, info in sorted(topic.partitions.items())
        ],
    }
