"""DeleteRecords: delete the records of partitions below an offset, which becomes the log start offset.

Behaviour: -1 stands for the high watermark. An offset below the log start offset changes nothing. The answer comes once
the new start is on disk, so that a crash does not bring records back. As in Kafka, internal topics are refused, and
topics whose cleanup.policy lacks delete get POLICY_VIOLATION. All versions are alike.
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_names import INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition

__all__ = ["handle"]

HIGH_WATERMARK = -1
NO_OFFSET = -1


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition succeeds or fails alone."""
    topics = [
        {
            "name": topic.name,
            "partitions": [
                _delete(context, TopicPartition(topic.name, asked.partition_index), asked.offset)
                for asked in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    moved = [result for topic in topics for result in topic["partitions"] if result["error_code"] is ErrorCode.none]
    if moved:
        try:
            await asyncio.to_thread(context.logs.write_log_starts)
        except BrokerError as error:
            for result in moved:
                result["error_code"] = error.code
    return {"topics": topics}


def _delete(context: ApiContext, tp: TopicPartition, before: int) -> dict[str, Any]:
    try:
        if tp.topic in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_topic_exception, f"{tp.topic} is internal")
        partition = context.topics.partition(tp)
        if "delete" not in partition.log.config.cleanup_policy:
            raise BrokerError(ErrorCode.policy_violation, f"cleanup.policy of {tp.topic} lacks delete")
        if before == HIGH_WATERMARK:
            before = partition.high_watermark
        if not 0 <= before <= partition.high_watermark:
            raise BrokerError(ErrorCode.offset_out_of_range, f"{before} is not in [0, {partition.high_watermark}]")
        start = partition.log.delete_records(before)
    except BrokerError as error:
        return {"partition_index": tp.partition, "low_watermark": NO_OFFSET, "error_code": error.code}
    return {"partition_index": tp.partition, "low_watermark": start, "error_code": ErrorCode.none}
