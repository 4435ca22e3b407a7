"""DescribeTopicPartitions: topics and their partitions, a page at a time, sorted by name (KIP-966).

A page ends at the client's limit or at max.request.partition.size.limit, whichever is lower. The cursor says where the
next page begins; it has to be at one of the topics that are named. A request without names means all topics.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request
from broker.api.metadata import describe_topic
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import DESCRIBE_TOPIC_PARTITIONS_TOPIC
from broker.protocol.topic_names import absence
from broker.security.acl_types import AclResourceType


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    body, metadata = request.body, context.topics.metadata
    names = {topic.name for topic in body.topics}
    cursor = body.cursor
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        refused = [_absent(topic.name, ErrorCode.invalid_request) for topic in body.topics]
        return {"topics": refused, "next_cursor": None}
    limit = max(min(body.response_partition_limit, context.config.max_request_partition_size_limit), 1)
    wanted = sorted(names or metadata.topics)
    if not names:
        need = DESCRIBE_TOPIC_PARTITIONS_TOPIC
        wanted = [name for name in wanted if context.allows(client, need, name, asked=False)]
    if cursor is not None:
        wanted = [name for name in wanted if name >= cursor.topic_name]
    start = {cursor.topic_name: cursor.partition_index} if cursor is not None else {}
    reachable = metadata.endpoints(client.listener)
    topics, next_cursor = _page(context, client, reachable, wanted, start, limit, skip_absent=not names)
    return {"topics": topics, "next_cursor": next_cursor}


def _page(
    context: ApiContext,
    client: Client,
    reachable: Container[int],
    names: Sequence[str],
    start: Mapping[str, int],
    limit: int,
    *,
    skip_absent: bool,
) -> tuple[list[Fields], Fields | None]:
    page: list[Fields] = []
    metadata = context.topics.metadata
    for name in names:
        if limit == 0:
            return page, {"topic_name": name, "partition_index": 0}
        if not context.allows(client, DESCRIBE_TOPIC_PARTITIONS_TOPIC, name):
            page.append(_absent(name, DESCRIBE_TOPIC_PARTITIONS_TOPIC.code))
            continue
        operations = context.authorized_operations(
            client, ApiKey.DESCRIBE_TOPIC_PARTITIONS, AclResourceType.TOPIC, name
        )
        topic = metadata.topics.get(name)
        if topic is None:
            if not skip_absent:
                page.append(_absent(name, absence(name), operations))
            continue
        first = start.get(name, 0)
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        page.append(describe_topic(metadata, reachable, topic, operations, indexes[:limit]))
        if len(indexes) > limit:
            return page, {"topic_name": name, "partition_index": indexes[limit]}
        limit -= len(indexes)
    return page, None


def _absent(name: str, code: ErrorCode, operations: int = NOT_ASKED) -> Fields:
    return {"error_code": code, "name": name, "partitions": (), "topic_authorized_operations": operations}
