"""Metadata: brokers, topics and leaders. Creates topics that do not exist, if that is enabled.

Each topic is answered once. Its encoded answer is cached per version, so that thousands of partitions cost little.
Addresses are those of the client's listener. A leader without an address there gets LISTENER_NOT_FOUND.
Version notes: 0 — an empty list means all topics, and only live replicas are named; 1 — null means all, an empty list
none; 4 — the client says whether to create topics; 6 — LISTENER_NOT_FOUND instead of LEADER_NOT_AVAILABLE; 8 — the
operations the client is allowed, on request; 10 — topic ids; 12 — topics may be named by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request
from broker.api.named_topics import NO_ID
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.net.response import Response
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.metadata_response import encode_metadata, encode_topic
from broker.protocol.permissions import METADATA_CLUSTER, METADATA_CREATE, METADATA_CREATE_ANY, METADATA_TOPIC
from broker.protocol.topic_names import INTERNAL_TOPICS, absence
from broker.replica.cluster_metadata import ClusterMetadata, PartitionInfo, Topic
from broker.security.acl_types import AclResourceType

_FIRST_BY_ID = 12
_FIRST_WITH_LISTENER_NOT_FOUND = 6


@serves(ApiKey.METADATA, 0, 13)
def handle(context: ApiContext, request: Request, client: Client) -> Response | Awaitable[Response]:
    """Answer from the metadata cache, if necessary after creating missing topics."""
    wanted = request.body.topics
    if wanted is None or (request.version == 0 and not wanted):
        return _answer(context, request, client, None, {})
    if request.version < _FIRST_BY_ID and any(map(_by_id, wanted)):
        refused = [_absent(item.name or "", NO_ID, ErrorCode.invalid_request) for item in wanted]
        return _response(context, request, client, [_encode_refused(context, request, topic) for topic in refused])
    if context.config.auto_create_topics_enable and field(request.body, "allow_auto_topic_creation", True):
        missing = [
            topic.name
            for topic in wanted
            if not _by_id(topic)
            and topic.name not in context.topics.metadata.topics
            and context.allows(client, METADATA_TOPIC, topic.name, asked=False)  # asked below
        ]
        if missing:
            return _create_and_answer(context, request, client, wanted, missing)
    return _answer(context, request, client, wanted, {})


async def _create_and_answer(
    context: ApiContext, request: Request, client: Client, wanted: Sequence[Any], missing: Sequence[str]
) -> Response:
    failed: dict[str, BrokerError] = {}
    may_create_any = context.allows(client, METADATA_CREATE_ANY, asked=False)
    mutations = context.mutations(request, client, strict_from=None)
    for name in missing:
        try:
            if not may_create_any:
                context.check(client, METADATA_CREATE, name)
            await context.topic_changes.create_default(name)
            mutations.record(context.config.num_partitions)
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:
                failed[name] = error
    return _answer(context, request, client, wanted, failed)


def _answer(
    context: ApiContext,
    request: Request,
    client: Client,
    wanted: Sequence[Any] | None,
    failed: Mapping[str, BrokerError],
) -> Response:
    metadata = context.topics.metadata
    shows_operations = field(request.body, "include_topic_authorized_operations", False)
    endpoints = metadata.endpoints(client.listener)
    reachable = (tuple(metadata.brokers), tuple(endpoints))
    topics = []
    for found in _chosen(context, client, wanted, failed):
        if not isinstance(found, Topic):
            topics.append(_encode_refused(context, request, found))
            continue
        operations = NOT_ASKED
        if shows_operations:
            operations = context.authorized_operations(client, request.api, AclResourceType.TOPIC, found.name)
        key = (request.version, operations, *reachable)
        encoded = found.encoded.get(key)
        if encoded is None:
            encoded = found.encoded[key] = encode_topic(
                request.version,
                describe_topic(
                    metadata, endpoints, found, operations, sorted(found.partitions), version=request.version
                ),
            )
        topics.append(encoded)
    return _response(context, request, client, topics)


def _encode_refused(context: ApiContext, request: Request, topic: Fields) -> bytes:
    context.metrics.failed(ApiKey.METADATA, topic["error_code"])
    return encode_topic(request.version, topic)


def _response(context: ApiContext, request: Request, client: Client, topics: Sequence[bytes]) -> Response:
    metadata = context.topics.metadata
    asked = field(request.body, "include_cluster_authorized_operations", False)
    body = {
        "brokers": [
            {"node_id": broker_id, "host": at.host, "port": at.port, "rack": metadata.brokers[broker_id].rack}
            for broker_id, at in metadata.endpoints(client.listener).items()
        ],
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.controller_id,
        "cluster_authorized_operations": _cluster_operations(context, request, client) if asked else NOT_ASKED,
    }
    return encode_metadata(request, body, topics)


def _cluster_operations(context: ApiContext, request: Request, client: Client) -> int:
    if not context.allows(client, METADATA_CLUSTER, asked=False):
        return 0
    return context.authorized_operations(client, request.api, AclResourceType.CLUSTER)


def _chosen(
    context: ApiContext, client: Client, wanted: Sequence[Any] | None, failed: Mapping[str, BrokerError]
) -> Iterator[Topic | Fields]:
    """The topics asked for, each once; all that the client may describe if `wanted` is None."""
    metadata = context.topics.metadata
    if wanted is None:
        yield from (
            topic
            for topic in metadata.topics.values()
            if context.allows(client, METADATA_TOPIC, topic.name, asked=False)
        )
        return
    for item in {(item.name, field(item, "topic_id")): item for item in wanted}.values():
        yield _find(context, client, item, failed)


def _by_id(item: Any) -> bool:
    """Whether the item names its topic by id: then its name means nothing. Java sends an empty one."""
    return item.name is None or bool(field(item, "topic_id"))


def _find(context: ApiContext, client: Client, item: Any, failed: Mapping[str, BrokerError]) -> Topic | Fields:
    """The topic, or the error answer if it does not exist or the client may not describe it."""
    metadata = context.topics.metadata
    if _by_id(item):
        topic_id = item.topic_id or NO_ID
        found = metadata.topic_by_id(topic_id)
        if found is None:
            return _absent(None, topic_id, ErrorCode.unknown_topic_id)
        if not context.allows(client, METADATA_TOPIC, found.name):
            return _absent(None, topic_id, METADATA_TOPIC.code)  # whoever knows the id knows that the topic exists
        return found
    if not context.allows(client, METADATA_TOPIC, item.name):
        return _absent(item.name, NO_ID, METADATA_TOPIC.code)
    topic = metadata.topics.get(item.name)
    if topic is None:
        return _absent(item.name, NO_ID, failed[item.name].code if item.name in failed else absence(item.name))
    return topic


def _absent(name: str | None, topic_id: uuid.UUID, code: ErrorCode) -> Fields:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": code is not METADATA_TOPIC.code and name in INTERNAL_TOPICS,
        "partitions": (),
        "topic_authorized_operations": NOT_ASKED,
    }


def describe_topic(
    metadata: ClusterMetadata,
    reachable: Container[int],
    topic: Topic,
    operations: int,
    indexes: Iterable[int],
    *,
    version: int = _FIRST_BY_ID,
) -> Fields:
    """A topic with some of its partitions, as in this version of Metadata.

    `reachable`: brokers with an address for the client.
    """
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "topic_authorized_operations": operations,
        "partitions": [_partition(metadata, reachable, index, topic.partitions[index], version) for index in indexes],
    }


def _partition(
    metadata: ClusterMetadata, reachable: Container[int], index: int, info: PartitionInfo, version: int
) -> Fields:
    error, replicas, isr = _leader_error(metadata, reachable, info.leader, version), info.replicas, info.isr
    is_lost = len(replicas) == 1 and not isr  # its broker has no log of it (`state_at_start`)
    if version == 0:
        replicas, isr = (tuple(one for one in all_of if one in reachable) for all_of in (replicas, isr))
        if error is ErrorCode.none and (len(replicas), len(isr)) != (len(info.replicas), len(info.isr)):
            error = ErrorCode.replica_not_available
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": info.leader if info.leader in reachable else -1,
        "leader_epoch": info.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": isr,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": [replica for replica in info.replicas if is_lost or replica not in metadata.brokers],
    }


def _leader_error(metadata: ClusterMetadata, reachable: Container[int], leader: int, version: int) -> ErrorCode:
    if leader in reachable:
        return ErrorCode.none
    named = leader in metadata.brokers and version >= _FIRST_WITH_LISTENER_NOT_FOUND
    return ErrorCode.listener_not_found if named else ErrorCode.leader_not_available
