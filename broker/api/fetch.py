"""Fetch: record batches from an offset on, as file ranges for sendfile.

Behaviour: reads up to the high watermark. With isolation level read_committed it reads up to the last stable offset and
adds the list of aborted transactions (KIP-98). The first batch is returned even if it is larger than max bytes
(KIP-74), the rest stays within max bytes. Partitions are read once each, in the order of the request.

With less than min bytes the answer waits, at most max wait. An error is answered at once, except for a topic or
partition that does not exist: as in Kafka, the answer still waits for the other partitions. Fetch sessions (KIP-227)
are declined: with session id 0 a client names its partitions in each request. There is no replication, so a replica's
fetch is refused. Index pages that are not in the page cache are read by a thread, so that other connections are served
meanwhile.
Version notes: topic names up to 12, ids from 13; zstd from 10; KAFKA_STORAGE_ERROR from 6.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any

from broker.api.cold_reads import warmed
from broker.api.context import ApiContext, Client, Request
from broker.errors import BrokerError, ErrorCode
from broker.log.segment_file import ColdRead, FileSlice, unless_cold
from broker.net.response import Part
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import PartitionAnswer, TopicAnswer, encode_fetch_response
from broker.protocol.messages import field, to_ms
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from broker.replica.delayed_fetch import DelayedFetch
from broker.replica.partition import UNKNOWN_EPOCH, Partition

__all__ = ["handle"]

_NO_ID = uuid.UUID(int=0)
_COMMITTED = 1
_FULL = (0, -1)
"""Session epochs of a fetch that names all its partitions: a new session, or no session."""
_UNKNOWN = (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
_FIRST_WITH_ZSTD = 10
_FIRST_WITH_STORAGE_ERROR = 6
_FETCH_SESSION_ID_NOT_FOUND = int(ErrorCode.fetch_session_id_not_found)


@dataclasses.dataclass(slots=True)
class _Read:
    """What one pass over the requested partitions found. `complete`: there is no reason to wait for more."""

    topics: list[TopicAnswer] = dataclasses.field(default_factory=list)
    partitions: list[Partition] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    """Bytes found in each of `partitions`."""
    errors: list[int] = dataclasses.field(default_factory=list)
    size: int = 0
    complete: bool = False


def handle(context: ApiContext, request: Request, client: Client) -> Sequence[Part] | Awaitable[Sequence[Part]]:
    """Answer at once if there is enough to read, otherwise wait for more."""
    body = request.body
    if field(body, "session_epoch", -1) not in _FULL:
        context.metrics.failed(ApiKey.FETCH, _FETCH_SESSION_ID_NOT_FOUND)
        return encode_fetch_response(request.version, request.correlation_id, (), error=_FETCH_SESSION_ID_NOT_FOUND)
    try:
        return _respond(context, request, unless_cold(lambda: _read(context, request)))
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
    answer = _respond(context, request, await warmed(lambda: _read(context, request), cold))
    return await answer if isinstance(answer, Awaitable) else answer


async def _wait(context: ApiContext, request: Request, delayed: DelayedFetch) -> Sequence[Part]:
    await delayed.wait()
    try:
        read = unless_cold(lambda: _read(context, request))
    except ColdRead as cold:
        read = await warmed(lambda: _read(context, request), cold)
    return _answer(context, request, read)


def _answer(context: ApiContext, request: Request, read: _Read) -> Sequence[Part]:
    for partition, size in zip(read.partitions, read.sizes, strict=True):
        partition.bytes_out += size
    for code in read.errors:
        context.metrics.failed(ApiKey.FETCH, code)
    return encode_fetch_response(request.version, request.correlation_id, read.topics)


def _read(context: ApiContext, request: Request) -> _Read:
    read, body = _Read(), request.body
    budget = min(body.max_bytes, context.config.fetch_max_bytes)
    for asked in body.topics:
        topic_id = field(asked, "topic_id")
        name = field(asked, "topic")
        if name is None:
            topic = context.topics.metadata.topic_by_id(topic_id) if topic_id else None
            name = topic.name if topic else None
        wanted = asked.partitions
        if len(wanted) > 1:
            wanted = {partition.partition: partition for partition in wanted}.values()
        answers = [_read_partition(context, request, name, partition, budget, read) for partition in wanted]
        read.topics.append(TopicAnswer(name or "", topic_id or _NO_ID, answers))
    return read


def _read_partition(
    context: ApiContext, request: Request, topic: str | None, asked: Any, budget: int, read: _Read
) -> PartitionAnswer:
    body = request.body
    committed = body.isolation_level == _COMMITTED
    try:
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_id)
        partition = context.topics.partition(TopicPartition(topic, asked.partition))
        _check_asked(body, partition, asked)
        found = _read_slice(partition, asked, budget - read.size, committed, first=read.size == 0)
        aborted = partition.aborted_in(asked.fetch_offset, found) if committed and found is not None else ()
        if request.version < _FIRST_WITH_ZSTD and partition.log.config.codec is Codec.ZSTD:
            raise BrokerError(ErrorCode.unsupported_compression_type)
    except BrokerError as error:
        code = error.code
        if code is ErrorCode.kafka_storage_error and request.version < _FIRST_WITH_STORAGE_ERROR:
            code = ErrorCode.not_leader_or_follower
        read.complete |= code not in _UNKNOWN
        read.errors.append(int(code))
        return PartitionAnswer(asked.partition, int(code), -1, -1, -1, () if code in _UNKNOWN else None, None)
    read.partitions.append(partition)
    read.sizes.append(0 if found is None else found.length)
    if found is not None:
        read.size += found.length
        # A slice ends with its segment. If that is not the active one, waiting would not make the slice longer.
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


def _check_asked(body: Any, partition: Partition, asked: Any) -> None:
    """Raise BrokerError for a replica's fetch and for leader epochs that do not match ours (KIP-320, KIP-595)."""
    if _replica_id(body) >= 0:
        raise BrokerError(ErrorCode.not_leader_or_follower, f"{partition.tp} is not replicated to other brokers")
    partition.check_epoch(field(asked, "current_leader_epoch", -1))
    epoch = field(asked, "last_fetched_epoch", -1)
    if epoch >= 0 and partition.end_offset_for_epoch(epoch) == UNKNOWN_EPOCH:
        raise BrokerError(ErrorCode.offset_out_of_range, f"{partition.tp} does not know leader epoch {epoch}")


def _replica_id(body: Any) -> int:
    """The broker id of a replica, below 0 for a consumer. Version notes: in another field from 15."""
    state = field(body, "replica_state")
    return int(field(body, "replica_id", -1) if state is None else state.replica_id)


def _read_slice(partition: Partition, asked: Any, budget: int, committed: bool, *, first: bool) -> FileSlice | None:
    """Read within the limits. Only the first partition with records may exceed them."""
    limit = min(asked.partition_max_bytes, budget)
    found = partition.read(asked.fetch_offset, max(limit, 0), committed=committed)
    if found is not None and found.length > limit and not first:
        return None
    return found
