"""Produce: append record batches as leader.

Behaviour: acks 0 gets no answer; 1 and all are answered once the records are in the log (and, where the
topic's flush settings ask for it, on disk). Every partition has its own error. With one replica acks=all
equals acks=1, unless min.insync.replicas asks for more, which is then refused.
Version notes: 3 is the first with record batches; topic ids (13) are not served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.cluster.partition import Partition
from broker.errors import BrokerError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request
from broker.protocol.topic_partition import TopicPartition

__all__ = ["handle"]

Answer = Mapping[str, Any] | None


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """Append what each partition was sent."""
    body = request.body
    to_flush: list[Partition] = []
    responses = [
        {
            "name": topic.name,
            "partition_responses": [
                _append(context, body, TopicPartition(topic.name, data.index), data.records, to_flush)
                for data in topic.partition_data
            ],
        }
        for topic in body.topic_data
    ]
    answer = None if body.acks == 0 else {"responses": responses}
    return _flushed(to_flush, answer) if to_flush else answer


async def _flushed(partitions: list[Partition], answer: Answer) -> Answer:
    for partition in partitions:
        await asyncio.to_thread(partition.log.flush)
    return answer


def _append(
    context: ApiContext, body: Any, tp: TopicPartition, records: bytes | None, to_flush: list[Partition]
) -> Mapping[str, Any]:
    try:
        partition = context.topics.partition(tp)
        _check(body, partition, records)
        result = partition.append(records or b"")
    except BrokerError as error:
        return {
            "index": tp.partition,
            "error_code": error.code,
            "base_offset": -1,
            "log_append_time": -1,
            "log_start_offset": -1,
            "error_message": error.message or None,
        }
    if partition.log.flush_due():
        to_flush.append(partition)
    return {
        "index": tp.partition,
        "error_code": ErrorCode.none,
        "base_offset": result.base_offset,
        "log_append_time": result.log_append_time,
        "log_start_offset": result.log_start_offset,
    }


def _check(body: Any, partition: Partition, records: bytes | None) -> None:
    if body.acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.invalid_required_acks, f"acks={body.acks} is not 0, 1 or all")
    needed = partition.log.config.min_insync_replicas
    if body.acks == -1 and needed > 1:
        raise BrokerError(ErrorCode.not_enough_replicas, f"min.insync.replicas={needed} and one replica is in sync")
    if not records:
        raise BrokerError(ErrorCode.invalid_record, "the request holds no record batch for this partition")
    if body.transactional_id is not None:
        raise BrokerError(ErrorCode.invalid_txn_state, "transactions are not served by this version of pykafka")
