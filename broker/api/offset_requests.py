"""What OffsetCommit, TxnOffsetCommit and OffsetDelete share: partitions by topic, each with a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.api.context import ApiContext, Client, Fields
from broker.api.named_topics import is_unknown_id
from broker.coordinator.group_records import OffsetAndMetadata
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import Permission
from broker.protocol.topic_partition import TopicPartition


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
