"""Fetch: record batches from an offset on, as file ranges for sendfile.

Behaviour: up to the high watermark or, for a reader of committed data, the last stable offset, with the list of
the aborted transactions that it has to leave out (KIP-98). At least one batch even when it is larger than what
was asked for (KIP-74), the rest within max bytes, partitions in the order asked. With less than min bytes at hand
the answer waits, at most max wait, and any error answers at once. Fetch sessions (KIP-227) are declined:
session id 0 makes a client name its partitions each time.
What has to be looked up in a log but is not in the page cache is read by a thread first, so that others are served
meanwhile.
Version notes: topic names up to 12, ids from 13.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final

from broker.api.context import ApiContext
from broker.cluster.delayed import DelayedFetch
from broker.cluster.partition import Partition
from broker.errors import BrokerError, ErrorCode
from broker.log.segment_file import ColdRead, FileSlice, unless_cold
from broker.net.response import Part
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import PartitionAnswer, TopicAnswer, encode_fetch_response
from broker.protocol.messages import Request, field, to_ms
from broker.protocol.topic_partition import TopicPartition

__all__ = ["handle"]

_NO_ID = uuid.UUID(int=0)
MOST_MISSES: Final = 1000
"""Misses of one fetch, each in another partition or a little farther on."""

_COMMITTED = 1
_FETCH_SESSION_ID_NOT_FOUND = int(ErrorCode.fetch_session_id_not_found)


@dataclasses.dataclass(slots=True)
class _Read:
    """What one pass over the asked partitions found. `complete`: waiting would bring nothing more."""

    topics: list[TopicAnswer] = dataclasses.field(default_factory=list)
    partitions: list[Partition] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    """Bytes found of each of `partitions`."""
    errors: list[int] = dataclasses.field(default_factory=list)
    size: int = 0
    complete: bool = False


def handle(context: ApiContext, request: Request, client: Client) -> Sequence[Part] | Awaitable[Sequence[Part]]:
    """Answer at once when there is enough to read, else wait for it."""
    body = request.body
    if field(body, "session_id", 0):
        context.metrics.failed(ApiKey.FETCH, _FETCH_SESSION_ID_NOT_FOUND)
        return encode_fetch_response(request.version, request.correlation_id, (), error=_FETCH_SESSION_ID_NOT_FOUND)
    try:
        return _respond(context, request, unless_cold(lambda: _read(context, body)))
    except ColdRead as cold:
        return _respond_warmed(context, request, cold)


def _respond(context: ApiContext, request: Request, read: _Read) -> Sequence[Part] | Awaitable[Sequence[Part]]:
    body = request.body
    wait_ms = to_ms(body.max_wait)
    if read.complete or read.size >= body.min_bytes or wait_ms <= 0 or not read.partitions:
        return _answer(context, request, read)
    missing = body.min_bytes - read.size
    delayed = DelayedFetch(read.partitions, missing, wait_ms / 1000, committed=body.isolation_level == _COMMITTED)
    return _wait(context, request, delayed)


async def _respond_warmed(context: ApiContext, request: Request, cold: ColdRead) -> Sequence[Part]:
    answer = _respond(context, request, await _read_warmed(context, request.body, cold))
    return await answer if isinstance(answer, Awaitable) else answer


async def _wait(context: ApiContext, request: Request, delayed: DelayedFetch) -> Sequence[Part]:
    await delayed.wait()
    try:
        read = unless_cold(lambda: _read(context, request.body))
    except ColdRead as cold:
        read = await _read_warmed(context, request.body, cold)
    return _answer(context, request, read)


async def _read_warmed(context: ApiContext, body: Any, cold: ColdRead) -> _Read:
    """Begin anew after each miss. Where pages go as fast as they come, the last time waits for the disk."""
    for _ in range(MOST_MISSES):
        with suppress(OSError):  # reading again tells
            await asyncio.to_thread(cold.warm)
        try:
            return unless_cold(lambda: _read(context, body))
        except ColdRead as missed:
            cold = missed
    return _read(context, body)


def _answer(context: ApiContext, request: Request, read: _Read) -> Sequence[Part]:
    for partition, size in zip(read.partitions, read.sizes, strict=True):
        partition.bytes_out += size
    for code in read.errors:
        context.metrics.failed(ApiKey.FETCH, code)
    return encode_fetch_response(request.version, request.correlation_id, read.topics)


def _read(context: ApiContext, body: Any) -> _Read:
    read = _Read()
    budget = min(body.max_bytes, context.config.fetch_max_bytes)
    for asked in body.topics:
        topic_id = field(asked, "topic_id")
        name = field(asked, "topic")
        if name is None:
            topic = context.topics.metadata.topic_by_id(topic_id) if topic_id else None
            name = topic.name if topic else None
        answers = [_read_partition(context, body, name, partition, budget, read) for partition in asked.partitions]
        read.topics.append(TopicAnswer(name or "", topic_id or _NO_ID, answers))
    return read


def _read_partition(
    context: ApiContext, body: Any, topic: str | None, asked: Any, budget: int, read: _Read
) -> PartitionAnswer:
    committed = body.isolation_level == _COMMITTED
    try:
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_id)
        partition = context.topics.partition(TopicPartition(topic, asked.partition))
        partition.check_epoch(field(asked, "current_leader_epoch", -1))
        found = _take(partition, asked, budget - read.size, committed, first=read.size == 0)
        aborted = partition.aborted_in(asked.fetch_offset, found) if committed and found is not None else ()
    except BrokerError as error:
        read.complete = True  # an error is told at once
        read.errors.append(int(error.code))
        return PartitionAnswer(asked.partition, int(error.code), -1, -1, -1, None, None)
    read.partitions.append(partition)
    read.sizes.append(0 if found is None else found.length)
    if found is not None:
        read.size += found.length
        # A slice ends with its segment: no append makes that of a rolled one longer.
        read.complete |= asked.fetch_offset < partition.log.active_base_offset
    return PartitionAnswer(
        asked.partition,
        0,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
        aborted if committed else None,
        found,
    )


def _take(partition: Partition, asked: Any, budget: int, committed: bool, *, first: bool) -> FileSlice | None:
    """Only the first partition with records may exceed what was asked for."""
    limit = min(asked.partition_max_bytes, budget)
    found = partition.read(asked.fetch_offset, max(limit, 0), committed=committed)
    if found is not None and found.length > limit and not first:
        return None
    return found
