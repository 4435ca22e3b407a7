"""What the requests about committed offsets have in common: partitions by topic, with a result each.

Used by the handlers of OffsetCommit, TxnOffsetCommit and OffsetDelete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.coordinator.group_records import OffsetAndMetadata
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

__all__ = ["asked_partitions", "committed_offset", "results_by_topic"]


def asked_partitions(
    context: ApiContext, topics: Iterable[Any]
) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, ErrorCode]]:
    """The partitions of a request that exist, as they were asked for, and an error for each of the others."""
    known, errors = {}, {}
    for topic in topics:
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            if context.topics.metadata.partition(tp) is None:
                errors[tp] = ErrorCode.unknown_topic_or_partition
            else:
                known[tp] = asked
    return known, errors


def committed_offset(asked: Any) -> OffsetAndMetadata:
    """What a commit says about one partition."""
    return OffsetAndMetadata(
        asked.committed_offset, field(asked, "committed_leader_epoch", -1), asked.committed_metadata or ""
    )


def results_by_topic(topics: Iterable[Any], results: Mapping[TopicPartition, ErrorCode]) -> list[Mapping[str, Any]]:
    """The result of each partition of the request, in its order."""
    return [
        {
            "name": topic.name,
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
