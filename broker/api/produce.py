"""Produce: append record batches as leader.

Behaviour: acks 0 gets no answer, and its connection is closed when it fails; 1 and all are answered once
the records are in the log (and, where the topic's flush settings ask for it, on disk). Every partition has
its own error. With one replica acks=all equals acks=1: min.insync.replicas asks for no more replicas than a
partition has (Kafka's `Partition.effectiveMinIsr`). Clients do not write to internal topics. Records of a
transaction are refused when their partition is not in it.
Version notes: 3 is the first with record batches; topic ids (13) are not served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from broker.api.context import ApiContext
from broker.api.produce_verification import check_transaction
from broker.cluster.partition import Partition
from broker.cluster.topic_names import INTERNAL_TOPICS
from broker.errors import BrokerError, ErrorCode, ProtocolError
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import is_transactional

__all__ = ["handle"]

Answer = Mapping[str, Any] | None
Unflushed = list[tuple[Partition, dict[str, Any]]]
"""Partitions whose records must be on disk before they are acknowledged, with what they will be answered."""


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """Append what each partition was sent."""
    body = request.body
    to_flush: Unflushed = []
    responses = [
        {
            "name": topic.name,
            "partition_responses": [
                _append(context, request, TopicPartition(topic.name, data.index), data.records, to_flush)
                for data in topic.partition_data
            ],
        }
        for topic in body.topic_data
    ]
    if to_flush:
        return _flushed(context, to_flush, body, responses)
    return _answer(body, responses)


async def _flushed(
    context: ApiContext, to_flush: Unflushed, body: Any, responses: Sequence[Mapping[str, Any]]
) -> Answer:
    for partition, response in to_flush:
        try:
            await asyncio.to_thread(partition.log.flush)
        except BrokerError as error:
            response.update(_failed(context, response["index"], error))
    return _answer(body, responses)


def _answer(body: Any, responses: Sequence[Mapping[str, Any]]) -> Answer:
    if body.acks != 0:
        return {"responses": responses}
    for topic in responses:
        for partition in topic["partition_responses"]:
            if partition["error_code"] is not ErrorCode.none:
                raise ProtocolError(
                    f"produce with acks=0 to {topic['name']}-{partition['index']} failed: {partition['error_message']}"
                )
    return None


def _append(
    context: ApiContext, request: Request, tp: TopicPartition, records: bytes | None, to_flush: Unflushed
) -> Mapping[str, Any]:
    try:
        if tp.topic in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_topic_exception, f"{tp.topic} is written by brokers only")
        partition = context.topics.partition(tp)
        checked = _check(context, request.body, partition, records)
        if is_transactional(checked):
            check_transaction(context, request.version, request.body.transactional_id, tp, checked)
        result = partition.append(checked)
    except BrokerError as error:
        return _failed(context, tp.partition, error)
    response = {
        "index": tp.partition,
        "error_code": ErrorCode.none,
        "base_offset": result.base_offset,
        "log_append_time": result.log_append_time,
        "log_start_offset": result.log_start_offset,
    }
    if partition.log.flush_due():
        to_flush.append((partition, response))
    return response


def _failed(context: ApiContext, index: int, error: BrokerError) -> dict[str, Any]:
    context.metrics.failed(ApiKey.PRODUCE, error.code)
    return {
        "index": index,
        "error_code": error.code,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": -1,
        "error_message": error.message or None,
    }


def _check(context: ApiContext, body: Any, partition: Partition, records: bytes | None) -> bytes:
    """The records, if the request may have them appended."""
    if body.acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.invalid_required_acks, f"acks={body.acks} is not 0, 1 or all")
    needed = partition.log.config.min_insync_replicas
    if body.acks == -1 and needed > 1:
        _check_in_sync(context, partition.tp, needed)
    if not records:
        raise BrokerError(ErrorCode.invalid_record, "the request holds no record batch for this partition")
    return records


def _check_in_sync(context: ApiContext, tp: TopicPartition, needed: int) -> None:
    """Refuse acks=all for a partition that an older broker has made with several replicas: none but ours is in sync."""
    info = context.topics.metadata.partition(tp)
    replicas = len(info.replicas) if info is not None else 1
    if min(needed, replicas) > 1:
        raise BrokerError(
            ErrorCode.not_enough_replicas,
            f"min.insync.replicas={needed}, and of {replicas} replicas the leader alone is in sync: pykafka does not "
            "replicate records; set min.insync.replicas=1",
        )
