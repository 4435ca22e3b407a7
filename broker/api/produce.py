"""Produce: append record batches as leader.

Behaviour: acks 0 gets no answer, and its connection is closed when it fails; 1 and all are answered once
the records are in the log (and, where the topic's flush settings ask for it, on disk). Every partition has
its own error. With one replica acks=all equals acks=1. Clients do not write to internal topics. Records of a
transaction are refused when their partition is not in it.
Every record is looked at before anything is appended (log/append_checks.py). Compressed batches that turn out to be
large are finished in a thread, and the request is appended and answered after that: requests of a connection stay in
order, for it handles one at a time. What the batches of a request may grow to is bounded. While a disk is slow, appends
to it wait for their turns (replica/partition.py), and the answer for them.
Version notes: 3 is the first with record batches, 7 with zstd; topic ids (13) are not served.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from broker.api.context import ApiContext
from broker.api.produce_verification import check_transaction
from broker.api.produced_batch import produced_batch
from broker.errors import BrokerError, ErrorCode, ProtocolError, RecordsRefused
from broker.log.append_checks import Allowance, BatchCheck
from broker.log.log import AppendResult
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request
from broker.protocol.topic_names import INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import DECOMPRESSION_LIMIT
from broker.replica.partition import Partition

__all__ = ["handle"]

Answer = Mapping[str, Any] | None
Unsafe = list[tuple[Partition, dict[str, Any], Awaitable[AppendResult | None]]]
"""Partitions whose records must be on disk before they are acknowledged, or are not appended yet (then it gives where
they are): with what they will be answered, and when."""

INLINE_COST: Final = 1 << 20
"""What the checks of a request may cost on the event loop, in bytes looked at; the rest is done in a thread."""

_GROWTH: Final = 4
"""Times socket.request.max.bytes that the batches of a request may grow to, but at least `DECOMPRESSION_LIMIT`."""

# Kafka tells where the log begins with all errors of an append but these.
_WITHOUT_LOG_START: Final = {
    ErrorCode.corrupt_message,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.kafka_storage_error,
}


@dataclasses.dataclass(slots=True)
class _Part:
    """What the request has for one partition: a check of it, or `failed`, the answer that it will get."""

    tp: TopicPartition
    partition: Partition | None = None
    check: BatchCheck | None = None
    failed: dict[str, Any] | None = None


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """Append what each partition was sent."""
    allowance = Allowance(max(DECOMPRESSION_LIMIT, _GROWTH * context.config.socket_request_max_bytes))
    cost = INLINE_COST
    parts: list[_Part] = []
    unfinished: list[_Part] = []
    for topic in request.body.topic_data:
        for data in topic.partition_data:
            part = _Part(TopicPartition(topic.name, data.index))
            parts.append(part)
            try:
                partition = _partition(context, request, part.tp)
                batch = produced_batch(data.records, request.version)
            except BrokerError as error:
                part.failed = _failed(context, part.tp, error)
                continue
            try:
                part.partition = partition
                part.check = BatchCheck(batch, partition.log.config, context.clock.now_ms(), allowance)
                if not part.check.run(cost):
                    unfinished.append(part)
                cost -= part.check.cost
            except BrokerError as error:
                part.failed = _failed(context, part.tp, error, partition)
    if unfinished:
        return context.check_threads.keep(_finished(context, request, parts, unfinished))
    return _appended(context, request, parts)


async def _finished(
    context: ApiContext, request: Request, parts: Sequence[_Part], unfinished: Sequence[_Part]
) -> Answer:
    """Let a thread end the checks, then append."""
    errors = await context.check_threads.finish([part.check for part in unfinished if part.check is not None])
    for part, error in zip(unfinished, errors, strict=True):
        if error is not None:
            part.failed = _failed(context, part.tp, error, part.partition)
    for part in parts:
        if part.failed is None:
            try:
                if context.topics.partition(part.tp) is not part.partition:
                    raise BrokerError(ErrorCode.not_leader_or_follower, f"{part.tp} was opened anew: send again")
            except BrokerError as error:
                part.failed = _failed(context, part.tp, error)
    answer = _appended(context, request, parts)
    return await answer if isinstance(answer, Awaitable) else answer


def _appended(context: ApiContext, request: Request, parts: Sequence[_Part]) -> Answer | Awaitable[Answer]:
    unsafe: Unsafe = []
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        answer = part.failed or _append(context, request, part, unsafe)
        by_topic.setdefault(part.tp.topic, []).append(answer)
    responses = [{"name": name, "partition_responses": answers} for name, answers in by_topic.items()]
    if unsafe:
        return context.check_threads.keep(_made_safe(context, unsafe, request.body, responses))
    return _answer(request.body, responses)


async def _made_safe(context: ApiContext, unsafe: Unsafe, body: Any, responses: Sequence[Mapping[str, Any]]) -> Answer:
    outcomes = await asyncio.gather(*(awaitable for _, _, awaitable in unsafe), return_exceptions=True)
    for (partition, response, _), outcome in zip(unsafe, outcomes, strict=True):
        if isinstance(outcome, BrokerError):
            response.update(_failed(context, partition.tp, outcome, partition))
        elif isinstance(outcome, BaseException):
            raise outcome
        elif outcome is not None:
            response.update(_stored(partition, outcome))
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


def _append(context: ApiContext, request: Request, part: _Part, unsafe: Unsafe) -> Mapping[str, Any]:
    partition, check = part.partition, part.check
    assert partition is not None
    assert check is not None
    try:
        if check.header.is_transactional:
            check_transaction(context, request.version, request.body.transactional_id, part.tp, check.header)
    except BrokerError as error:
        return _failed(context, part.tp, error)
    try:
        result = partition.append_checked(check)
    except BrokerError as error:
        return _failed(context, part.tp, error, partition)
    if not isinstance(result, AppendResult):
        response: dict[str, Any] = {}
        unsafe.append((partition, response, result))
        return response
    response = _stored(partition, result)
    if (flushed := partition.flushed()) is not None:
        unsafe.append((partition, response, flushed))
    return response


def _stored(partition: Partition, result: AppendResult) -> dict[str, Any]:
    return {
        "index": partition.tp.partition,
        "error_code": ErrorCode.none,
        "base_offset": result.base_offset,
        "log_append_time": result.log_append_time,
        "log_start_offset": result.log_start_offset,
    }


def _failed(
    context: ApiContext, tp: TopicPartition, error: BrokerError, partition: Partition | None = None
) -> dict[str, Any]:
    """The answer for a partition; `partition` is given where its log was asked."""
    context.metrics.failed(ApiKey.PRODUCE, error.code)
    refused = error.record_errors if isinstance(error, RecordsRefused) else ()
    begins = -1 if partition is None or error.code in _WITHOUT_LOG_START else partition.log.log_start_offset
    return {
        "index": tp.partition,
        "error_code": error.code,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": begins,
        "record_errors": [{"batch_index": place, "batch_index_error_message": text} for place, text in refused],
        "error_message": error.message or None,
    }


def _partition(context: ApiContext, request: Request, tp: TopicPartition) -> Partition:
    """The partition, if the request may write to it."""
    if tp.topic in INTERNAL_TOPICS:
        raise BrokerError(ErrorCode.invalid_topic_exception, f"{tp.topic} is written by brokers only")
    partition = context.topics.partition(tp)
    acks = request.body.acks
    if acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.invalid_required_acks, f"acks={acks} is not 0, 1 or all")
    needed = partition.log.config.min_insync_replicas
    if acks == -1 and needed > 1:
        _check_in_sync(context, tp, needed)
    return partition


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
