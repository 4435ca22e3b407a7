"""DescribeCluster and DescribeTopicPartitions, which admin clients ask instead of Metadata."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request
from broker.api.metadata import describe_topic
from broker.api.serving import serves
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import DESCRIBE_CLUSTER_OPERATIONS, DESCRIBE_TOPIC_PARTITIONS_TOPIC
from broker.protocol.topic_names import absence
from broker.security.acl_types import AclResourceType

BROKERS, CONTROLLERS = 1, 2


@serves(ApiKey.DESCRIBE_CLUSTER, 0, 2)
def describe_cluster(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeCluster: the brokers and the controller, for admin clients (KIP-700).

    Version notes: from 1 the client says whether it asks a broker or a KRaft controller, which this is not (KIP-919);
    from 2 a broker may be fenced, which none is with ZooKeeper.
    """
    endpoint_type = field(request.body, "endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        known = endpoint_type == CONTROLLERS
        return {
            "error_code": ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            "error_message": f"this is a broker; endpoints of type {endpoint_type} are not served here",
            "endpoint_type": BROKERS,
            "cluster_authorized_operations": NOT_ASKED,
        }
    metadata = context.topics.metadata
    operations = NOT_ASKED
    if request.body.include_cluster_authorized_operations:
        shown = context.allows(client, DESCRIBE_CLUSTER_OPERATIONS, asked=False)
        operations = context.authorized_operations(client, request.api, AclResourceType.CLUSTER) if shown else 0
    return {
        "error_code": ErrorCode.none,
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.controller_id,
        "endpoint_type": BROKERS,
        "cluster_authorized_operations": operations,
        "brokers": [
            {"broker_id": broker_id, "host": at.host, "port": at.port, "rack": metadata.brokers[broker_id].rack}
            for broker_id, at in metadata.endpoints(client.listener).items()
        ],
    }


@serves(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)
def describe_topic_partitions(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeTopicPartitions: topics and their partitions, a page at a time, sorted by name (KIP-966).

    A page ends at the client's limit or at max.request.partition.size.limit, whichever is lower. The cursor says where
    the next page begins; it has to be at one of the topics that are named. A request without names means all topics.
    """
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
