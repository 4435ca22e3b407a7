"""Fetch: record batches from an offset on, as file ranges for sendfile.

Behaviour: reads up to the high watermark. With isolation level read_committed it reads up to the last stable offset and
adds the list of aborted transactions (KIP-98). The first batch is returned even if it is larger than max bytes
(KIP-74), the rest stays within max bytes. Partitions are read once each, in the order of the request.

With less than min bytes the answer waits, at most max wait. An error is answered at once, except for a topic or
partition that does not exist: as in Kafka, the answer still waits for the other partitions. In a fetch session
(KIP-227) only the partitions that changed are read and answered, in the order of the session. Index pages that are not
in the page cache are read by a thread, so that other connections are served meanwhile.

A follower (replica id >= 0) reads up to the log end. The offset that it asks for says that it has all records below,
which may move the high watermark (replica/in_sync_state.py). So its fetch must prove by leader epochs that its log is a
prefix of this one (KIP-320, KIP-595). Where it is not, the answer says where to cut it. A follower counts once for each
request, and not again in the read after the wait: it may have been restarted meanwhile.
Version notes: topic names up to 12, ids from 13; zstd from 10; KAFKA_STORAGE_ERROR from 6.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any

from broker.api.cold_reads import warmed
from broker.api.context import ApiContext, Client, Request
from broker.api.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchSession, Found
from broker.errors import BrokerError, ErrorCode
from broker.log.segment_file import ColdRead, FileSlice, unless_cold
from broker.net.response import Part
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import PartitionAnswer, TopicAnswer, encode_fetch_response
from broker.protocol.messages import field, to_ms
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from broker.replica.delayed_fetch import DelayedFetch
from broker.replica.partition import Partition

__all__ = ["handle"]

_NO_ID = uuid.UUID(int=0)
_COMMITTED = 1
_UNKNOWN = (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
_FIRST_WITH_ZSTD = 10
_FIRST_WITH_STORAGE_ERROR = 6
_FIRST_WITH_LAST_EPOCH = 12


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
    found: list[Found] = dataclasses.field(default_factory=list)
    """In a session, instead of `topics`."""
    is_first: bool = False
    """Whether this is the read before the wait, in which the positions of followers count."""


def handle(context: ApiContext, request: Request, client: Client) -> Sequence[Part] | Awaitable[Sequence[Part]]:
    """Answer at once if there is enough to read, otherwise wait for more."""
    body, session = request.body, None
    if field(body, "session_epoch", FINAL_EPOCH) != FINAL_EPOCH or field(body, "session_id", NO_SESSION) != NO_SESSION:
        try:
            session = context.fetch_sessions.begin(request, replica=_replica_id(body))
        except BrokerError as error:
            return _refuse(context, request, error.code, NO_SESSION)
    try:
        return _respond(context, request, session, unless_cold(lambda: _read(context, request, session, is_first=True)))
    except ColdRead as cold:
        return _respond_warmed(context, request, session, cold)


def _refuse(context: ApiContext, request: Request, code: ErrorCode, session_id: int) -> Sequence[Part]:
    context.metrics.failed(ApiKey.FETCH, int(code))
    return encode_fetch_response(request.version, request.correlation_id, (), error=int(code), session_id=session_id)


def _respond(
    context: ApiContext, request: Request, session: FetchSession | None, read: _Read
) -> Sequence[Part] | Awaitable[Sequence[Part]]:
    body = request.body
    wait_ms = to_ms(body.max_wait)
    nothing_to_wait_for = not read.partitions and (session is None or not session.has_quiet)
    if read.complete or read.size >= body.min_bytes or wait_ms <= 0 or nothing_to_wait_for:
        return _answer(context, request, session, read)
    # In a session the partitions that are not read can gain bytes, too, so the session itself waits for all of them.
    partitions = read.partitions if session is None else ()
    replica = _replica_id(body) >= 0
    committed = body.isolation_level == _COMMITTED and not replica
    delayed = DelayedFetch(partitions, body.min_bytes - read.size, wait_ms / 1000, committed=committed, replica=replica)
    if session is not None:
        session.begin_wait(delayed, read.found)
    return _wait(context, request, session, delayed)


async def _respond_warmed(
    context: ApiContext, request: Request, session: FetchSession | None, cold: ColdRead
) -> Sequence[Part]:
    read = await warmed(lambda: _read(context, request, session, is_first=True), cold)
    answer = _respond(context, request, session, read)
    return await answer if isinstance(answer, Awaitable) else answer


async def _wait(
    context: ApiContext, request: Request, session: FetchSession | None, delayed: DelayedFetch
) -> Sequence[Part]:
    try:
        await delayed.wait()
    finally:
        if session is not None:
            session.end_wait(delayed)
    try:
        read = unless_cold(lambda: _read(context, request, session))
    except ColdRead as cold:
        read = await warmed(lambda: _read(context, request, session), cold)
    return _answer(context, request, session, read)


def _answer(context: ApiContext, request: Request, session: FetchSession | None, read: _Read) -> Sequence[Part]:
    topics, session_id = read.topics, NO_SESSION
    if session is not None:
        try:
            context.fetch_sessions.end(session, request)
        except BrokerError as error:
            return _refuse(context, request, error.code, session.id)
        topics, session_id = session.answer(read.found), session.id
    for partition, size in zip(read.partitions, read.sizes, strict=True):
        partition.bytes_out += size
    for code in read.errors:
        context.metrics.failed(ApiKey.FETCH, code)
    return encode_fetch_response(request.version, request.correlation_id, topics, session_id=session_id)


def _read(context: ApiContext, request: Request, session: FetchSession | None, *, is_first: bool = False) -> _Read:
    read, body = _Read(is_first=is_first), request.body
    budget = min(body.max_bytes, context.config.fetch_max_bytes)
    if session is not None:
        for cached in session.to_read():
            name = _name_of(context, cached.topic)
            answer = _read_partition(context, request, name, cached.asked, budget, read)
            read.found.append(Found(cached, name, None if answer.error else read.partitions[-1], answer))
        return read
    for asked in body.topics:
        topic_id = field(asked, "topic_id")
        name = _name_of(context, field(asked, "topic", topic_id))
        wanted = asked.partitions
        if len(wanted) > 1:
            wanted = {partition.partition: partition for partition in wanted}.values()
        answers = [_read_partition(context, request, name, partition, budget, read) for partition in wanted]
        read.topics.append(TopicAnswer(name or "", topic_id or _NO_ID, answers))
    return read


def _name_of(context: ApiContext, topic: str | uuid.UUID | None) -> str | None:
    """The name of a topic, which requests from version 13 on name by its id."""
    if topic is None or isinstance(topic, str):
        return topic
    found = context.topics.metadata.topic_by_id(topic)
    return found.name if found else None


def _read_partition(
    context: ApiContext, request: Request, topic: str | None, asked: Any, budget: int, read: _Read
) -> PartitionAnswer:
    body = request.body
    replica = _replica_id(body)
    committed = body.isolation_level == _COMMITTED and replica < 0
    try:
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_id)
        partition = context.topics.partition(TopicPartition(topic, asked.partition))
        if replica >= 0:
            _check_replica(request, partition, replica, asked)
        partition.check_epoch(field(asked, "current_leader_epoch", -1))
        last_epoch = field(asked, "last_fetched_epoch", -1)
        diverging = None if last_epoch < 0 else partition.diverging_epoch(last_epoch, asked.fetch_offset)
        found = None
        if diverging is None:
            found = _read_slice(partition, asked, budget - read.size, committed, replica, first=read.size == 0)
        aborted = partition.aborted_in(asked.fetch_offset, found) if committed and found is not None else ()
        if request.version < _FIRST_WITH_ZSTD and partition.log.config.codec is Codec.ZSTD:
            raise BrokerError(ErrorCode.unsupported_compression_type)
        if replica >= 0 and diverging is None and read.is_first:
            partition.fetched_by(replica, asked.fetch_offset)
    except BrokerError as error:
        code = error.code
        if code is ErrorCode.kafka_storage_error and request.version < _FIRST_WITH_STORAGE_ERROR:
            code = ErrorCode.not_leader_or_follower
        read.complete |= code not in _UNKNOWN
        read.errors.append(int(code))
        return PartitionAnswer(asked.partition, int(code), -1, -1, -1, () if code in _UNKNOWN else None, None)
    read.partitions.append(partition)
    read.sizes.append(0 if found is None or replica >= 0 else found.length)
    read.complete |= diverging is not None
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
        diverging,
    )


def _check_replica(request: Request, partition: Partition, replica: int, asked: Any) -> None:
    """Raise BrokerError unless the fetch is a follower's and proves that its log is a prefix of ours."""
    if request.version < _FIRST_WITH_LAST_EPOCH or asked.current_leader_epoch < 0:
        raise BrokerError(ErrorCode.not_leader_or_follower, f"a follower of {partition.tp} has to name leader epochs")
    partition.check_epoch(asked.current_leader_epoch)
    partition.check_replica(replica)


def _replica_id(body: Any) -> int:
    """The broker id of a replica, below 0 for a consumer. Version notes: in another field from 15."""
    state = field(body, "replica_state")
    return int(field(body, "replica_id", -1) if state is None else state.replica_id)


def _read_slice(
    partition: Partition, asked: Any, budget: int, committed: bool, replica: int, *, first: bool
) -> FileSlice | None:
    """Read within the limits. Only the first partition with records may exceed them."""
    limit = min(asked.partition_max_bytes, budget)
    if replica >= 0:
        found = partition.read_as_replica(asked.fetch_offset, max(limit, 0))
    else:
        found = partition.read(asked.fetch_offset, max(limit, 0), committed=committed)
    if found is not None and found.length > limit and not first:
        return None
    return found
