"""Fetch: record batches from an offset on, as file ranges for sendfile.

Behaviour: reads up to the high watermark. With isolation level read_committed it reads up to the last stable offset and
adds the list of aborted transactions (KIP-98). The first batch is returned even if it is larger than max bytes
(KIP-74), the rest stays within max bytes. Partitions are read once each, in the order of the request.

With less than min bytes the answer waits, at most max wait. An error is answered at once, except for a topic or
partition that does not exist: as in Kafka, the answer still waits for the other partitions. In a fetch session
(KIP-227) only the partitions that changed are read and answered, in the order of the session. Index pages that are not
in the page cache are read by a thread, so that other connections are served meanwhile.

A follower (replica id >= 0) must be a broker (security/authorizer.py); replica_fetch.py reads for it.

From version 11 on consumers may also read from a follower, up to its high watermark (KIP-392). With replica.selector.
class a leader sends a consumer to a follower in its rack. Followers then hear of a new high watermark at once, because
consumers wait for it there; otherwise they hear of it with the next records, or after replica.fetch.wait.max.ms. They
hear of DeleteRecords at once, because it waits for them.
Version notes: topic names up to 12, ids from 13; racks from 11; zstd from 10; KAFKA_STORAGE_ERROR from 6.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import uuid
import weakref
from collections.abc import Awaitable, Collection, Sequence
from typing import Any

from broker.api.cold_reads import warmed
from broker.api.context import ApiContext, Client, Request
from broker.api.current_leader import LED_ELSEWHERE, current_leader
from broker.api.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchSession, Found
from broker.api.replica_fetch import FollowerId, follower_of, read_for_follower
from broker.errors import BrokerError, ErrorCode
from broker.log.segment_file import ColdRead, FileSlice, unless_cold
from broker.net.delayed_answer import DelayedAnswer
from broker.net.response import Part
from broker.net.throttling import FetchedAnswer, quota_user
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import PartitionAnswer, TopicAnswer, encode_fetch_response
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import FETCH_AS_FOLLOWER, FETCH_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from broker.replica.delayed_fetch import DelayedFetch
from broker.replica.partition import NO_REPLICA, Partition
from broker.replica.replica import Replica

_NO_ID = uuid.UUID(int=0)
_COMMITTED = 1
_UNKNOWN = (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
_FIRST_WITH_ZSTD = 10
_FIRST_WITH_STORAGE_ERROR = 6
_FIRST_WITH_RACKS = 11
_FIRST_WITH_LEADERS = 16
_ANY = 2**31 - 1

Answer = Sequence[Part] | FetchedAnswer


@dataclasses.dataclass(slots=True)
class _Read:
    """What one pass over the requested partitions found. `complete`: there is no reason to wait for more."""

    client: Client
    follower: FollowerId
    nearby: Collection[int] = ()
    """The brokers in the consumer's rack, if it should read from them; none if this one is among them."""
    topics: list[TopicAnswer] = dataclasses.field(default_factory=list)
    partitions: list[Replica] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    """Bytes found in each of `partitions`."""
    errors: list[int] = dataclasses.field(default_factory=list)
    size: int = 0
    complete: bool = False
    found: list[Found] = dataclasses.field(default_factory=list)
    """In a session, instead of `topics`."""
    is_first: bool = False
    """Whether this is the read before the wait, in which the positions of followers count."""


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """Answer at once if there is enough to read, otherwise wait for more."""
    body, session = request.body, None
    replica = follower_of(body).broker_id
    if replica >= 0 and not context.allows(client, FETCH_AS_FOLLOWER):
        return _deny(context, request)
    if field(body, "session_epoch", FINAL_EPOCH) != FINAL_EPOCH or field(body, "session_id", NO_SESSION) != NO_SESSION:
        try:
            session = context.fetch_sessions.begin(request, replica=replica)
        except BrokerError as error:
            return _refuse(context, request, error.code, NO_SESSION)
        if session is not None and replica < 0:
            session.note_access((context.authorizer.acls, client.principal))

    def read() -> _Read:
        return _read(context, request, client, session, is_first=True)

    try:
        return _respond(context, request, client, session, unless_cold(read))
    except ColdRead as cold:
        return _respond_warmed(context, request, client, session, warmed(read, cold))


def _refuse(context: ApiContext, request: Request, code: ErrorCode, session_id: int) -> Sequence[Part]:
    context.metrics.failed(ApiKey.FETCH, int(code))
    return encode_fetch_response(request.version, request.correlation_id, (), error=int(code), session_id=session_id)


def _deny(context: ApiContext, request: Request) -> Sequence[Part]:
    """Someone who is no broker fetches as a follower: that could move the high watermark."""
    code, body = int(ErrorCode.topic_authorization_failed), request.body
    context.metrics.failed(ApiKey.FETCH, code)
    topics = [
        TopicAnswer(
            field(asked, "topic", ""),
            field(asked, "topic_id") or _NO_ID,
            [PartitionAnswer(one.partition, code, -1, -1, -1, (), None) for one in asked.partitions],
        )
        for asked in body.topics
    ]
    return encode_fetch_response(request.version, request.correlation_id, topics)


def _respond(
    context: ApiContext, request: Request, client: Client, session: FetchSession | None, read: _Read
) -> Answer | DelayedAnswer[Answer]:
    body = request.body
    wait_ms = to_ms(body.max_wait)
    nothing_to_wait_for = not read.partitions and (session is None or not session.has_quiet)
    if read.complete or read.size >= _least_bytes(context, request, client) or wait_ms <= 0 or nothing_to_wait_for:
        return _answer(context, request, session, read)
    is_replica = read.follower.broker_id >= 0
    eager = is_replica and context.config.is_rack_aware
    if is_replica and any(_is_news(found, eager=eager) for found in read.found):
        return _answer(context, request, session, read)
    return _Wait(context, request, client, session, read, eager=eager).answer


def _is_news(found: Found, *, eager: bool) -> bool:
    """Whether a follower should hear of a partition at once, although there are no records for it."""
    cached, answer = found.cached, found.answer
    if found.partition is None:
        return False
    if eager and cached.has_moved(answer):
        return True
    # The follower may lead soon, and does not know yet that records were deleted.
    return bool(max(cached.log_start_offset, cached.asked.log_start_offset) < answer.log_start_offset)


async def _respond_warmed(
    context: ApiContext, request: Request, client: Client, session: FetchSession | None, reading: Awaitable[_Read]
) -> Answer:
    answer = _respond(context, request, client, session, await reading)
    return await answer if isinstance(answer, DelayedAnswer) else answer


class _Wait:
    """A fetch that waits for more bytes; then it reads again and answers."""

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        client: Client,
        session: FetchSession | None,
        read: _Read,
        *,
        eager: bool,
    ) -> None:
        self._context = context
        self._request = request
        self._client = client
        self._session = session
        self._reading: asyncio.Task[None] | None = None
        body, replica = request.body, read.follower.broker_id >= 0
        self._delayed = DelayedFetch(
            # In a session the partitions that are not read can gain bytes, too, so it waits for all of them itself.
            read.partitions if session is None else (),
            _least_bytes(context, request, client) - read.size,
            to_ms(body.max_wait) / 1000,
            self._end,
            session.timer if session is not None and session.waiting is None else None,
            committed=body.isolation_level == _COMMITTED and not replica,
            replica=replica,
            eager=eager,
        )
        if session is not None:
            session.begin_wait(self._delayed, read.found)
        self.answer: DelayedAnswer[Answer] = DelayedAnswer(self._cancel)

    def _end(self) -> None:
        if self.answer.is_over:
            return  # the client left after the wait had ended
        if self._session is not None:
            self._session.end_wait(self._delayed)
        try:
            parts = _answer(self._context, self._request, self._session, unless_cold(self._read))
        except ColdRead as cold:
            self._reading = asyncio.ensure_future(self._answer_warmed(cold))
        except Exception as error:
            self.answer.fail(error)
        else:
            self.answer.complete(parts)

    def _read(self) -> _Read:
        return _read(self._context, self._request, self._client, self._session)

    async def _answer_warmed(self, cold: ColdRead) -> None:
        try:
            parts = _answer(self._context, self._request, self._session, await warmed(self._read, cold))
        except Exception as error:
            self.answer.fail(error)
        else:
            self.answer.complete(parts)

    def _cancel(self) -> None:
        self._delayed.cancel()
        if self._session is not None:
            self._session.end_wait(self._delayed)
        if self._reading is not None:
            self._reading.cancel()


def _answer(context: ApiContext, request: Request, session: FetchSession | None, read: _Read) -> Answer:
    """The response, which a consumer above its quota gets without records (KIP-219)."""
    if read.follower.broker_id >= 0 or not context.quotas.enabled:
        return _records(context, request, session, read)
    return FetchedAnswer(
        _response_size(request, read),
        functools.partial(_records, context, request, session, read),
        functools.partial(_no_records, context, request, session, read),
    )


def _response_size(request: Request, read: _Read) -> int:
    """The size of the response in bytes. In a session it may have fewer partitions, which have no records."""
    if read.found:
        topics = [
            TopicAnswer(one.name or "", _NO_ID, [one.answer])
            for one in read.found
            if one.answer.records is not None and one.answer.records.length
        ]
    else:
        topics = read.topics
    parts = encode_fetch_response(request.version, request.correlation_id, topics)
    return sum([len(part) if isinstance(part, bytes) else part.length for part in parts])


def _no_records(context: ApiContext, request: Request, session: FetchSession | None, read: _Read) -> Sequence[Part]:
    """The response to a throttled consumer. Its session goes on as if nothing had been found; a new one is not made."""
    session_id = NO_SESSION
    if session is not None:
        if session.id == NO_SESSION:
            session.close()
        else:
            try:
                context.fetch_sessions.end(session, request)
            except BrokerError as error:
                return _refuse(context, request, error.code, session.id)
            session_id = session.id
            session.changed.update(one.cached for one in read.found)
    return encode_fetch_response(request.version, request.correlation_id, (), session_id=session_id)


def _records(context: ApiContext, request: Request, session: FetchSession | None, read: _Read) -> Sequence[Part]:
    topics, session_id = read.topics, NO_SESSION
    if session is not None:
        try:
            context.fetch_sessions.end(session, request)
        except BrokerError as error:
            return _refuse(context, request, error.code, session.id)
        topics, session_id = session.answer(read.found), session.id
    for partition, size in zip(read.partitions, read.sizes, strict=True):
        if read.follower.broker_id >= 0:
            partition.metrics.replication_bytes_out += size
            if read.follower.broker_id in partition.adding:
                partition.metrics.reassignment_bytes_out += size
        else:
            partition.metrics.bytes_out += size
    for code in read.errors:
        context.metrics.failed(ApiKey.FETCH, code)
    return encode_fetch_response(request.version, request.correlation_id, topics, session_id=session_id)


def _brokers_nearby(context: ApiContext, request: Request, client: Client) -> Collection[int]:
    """The live brokers in the consumer's rack; none where it names no rack, or this broker is one of them."""
    rack = request.body.rack_id if request.version >= _FIRST_WITH_RACKS else ""
    if not rack or not context.config.is_rack_aware:
        return ()
    brokers = context.topics.metadata.brokers
    nearby = {id_ for id_, one in brokers.items() if one.rack == rack and one.endpoint(client.listener) is not None}
    return () if context.broker_id in nearby else nearby


def _read(
    context: ApiContext,
    request: Request,
    client: Client,
    session: FetchSession | None,
    *,
    is_first: bool = False,
) -> _Read:
    body, nearby = request.body, _brokers_nearby(context, request, client)
    read = _Read(client, follower_of(body), nearby, is_first=is_first)
    budget = min(body.max_bytes, context.config.fetch_max_bytes, _most_bytes(context, request, client))
    if session is not None:
        metadata = weakref.ref(context.topics.metadata)  # a session is kept for long, perhaps without its client
        for cached in session.to_read():
            if cached.metadata is not metadata:
                cached.metadata, cached.name = metadata, _name_of(context, cached.topic)
            answer = _read_partition(context, request, cached.name, cached.asked, budget, read)
            read.found.append(Found(cached, cached.name, None if answer.error else read.partitions[-1], answer))
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


def _most_bytes(context: ApiContext, request: Request, client: Client) -> int:
    """The bytes that a consumer with a quota gets at once."""
    if context.quotas.enabled and follower_of(request.body).broker_id < 0:
        most = context.quotas.most_to_fetch(*quota_user(client.principal, request.client_id))
        if most is not None:
            return int(min(most, _ANY))
    return _ANY


def _least_bytes(context: ApiContext, request: Request, client: Client) -> int:
    """The bytes to wait for."""
    return min(int(request.body.min_bytes), _most_bytes(context, request, client))


def _name_of(context: ApiContext, topic: str | uuid.UUID | None) -> str | None:
    """The name of a topic, which requests from version 13 on name by its id."""
    if topic is None or isinstance(topic, str):
        return topic
    found = context.topics.metadata.topic_by_id(topic)
    return found.name if found else None


def _read_partition(
    context: ApiContext, request: Request, topic: str | None, asked: Any, budget: int, read: _Read
) -> PartitionAnswer:
    diverging = aborted = None
    preferred = NO_REPLICA
    try:
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_id)
        tp, left = TopicPartition(topic, asked.partition), budget - read.size
        if read.follower.broker_id >= 0:
            if not read.is_first and not context.allows(read.client, FETCH_AS_FOLLOWER):
                raise BrokerError(FETCH_TOPIC.code)  # it was taken away during the wait
            partition: Replica
            partition, found, diverging = read_for_follower(
                context,
                request,
                tp,
                asked,
                read.follower,
                left,
                is_first_with_records=not read.size,
                counts=read.is_first,
            )
        else:
            partition, found, aborted, diverging, preferred = _read_for_consumer(
                context, request, tp, asked, left, read
            )
    except BrokerError as error:
        return _failed(context, request, topic, asked, read, error)
    read.partitions.append(partition)
    read.sizes.append(0 if found is None else found.length)
    if diverging is not None or preferred >= 0:
        read.complete = True
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
        aborted,
        found,
        diverging,
        preferred,
    )


def _failed(
    context: ApiContext, request: Request, topic: str | None, asked: Any, read: _Read, error: BrokerError
) -> PartitionAnswer:
    code = error.code
    if code is ErrorCode.kafka_storage_error and request.version < _FIRST_WITH_STORAGE_ERROR:
        code = ErrorCode.not_leader_or_follower
    read.complete |= code not in (*_UNKNOWN, FETCH_TOPIC.code)  # Kafka waits for the other partitions
    read.errors.append(int(code))
    leader = None
    if topic is not None and code in LED_ELSEWHERE and request.version >= _FIRST_WITH_LEADERS:
        leader = current_leader(context.topics.metadata, TopicPartition(topic, asked.partition), read.client.listener)
    none_aborted = () if code in _UNKNOWN else None
    return PartitionAnswer(asked.partition, int(code), -1, -1, -1, none_aborted, None, leader=leader)


def _read_for_consumer(
    context: ApiContext, request: Request, tp: TopicPartition, asked: Any, budget: int, read: _Read
) -> tuple[Replica, FileSlice | None, Sequence[tuple[int, int]] | None, tuple[int, int] | None, int]:
    """(partition, records, aborted transactions, where the logs diverge, the broker to read from instead)."""
    context.check(read.client, FETCH_TOPIC, tp.topic)
    committed, preferred = request.body.isolation_level == _COMMITTED, NO_REPLICA
    epoch = field(asked, "current_leader_epoch", -1)
    partition: Replica
    if request.version < _FIRST_WITH_RACKS:
        partition = context.topics.partition(tp, epoch)
    else:
        partition = context.topics.replica(tp, epoch)
        if read.nearby and isinstance(partition, Partition):
            preferred = partition.preferred_read_replica(asked.fetch_offset, read.nearby)
    last_epoch = field(asked, "last_fetched_epoch", -1)
    diverging = None if last_epoch < 0 else partition.diverging_epoch(last_epoch, asked.fetch_offset)
    found = None
    if diverging is None and preferred < 0:
        limit = max(min(asked.partition_max_bytes, budget), 0)
        found = partition.read(asked.fetch_offset, limit, committed=committed)
        if found is not None and found.length > limit and read.size:
            found = None  # only the first partition with records may exceed the limits
    aborted: Sequence[tuple[int, int]] | None = () if committed else None
    if committed and found is not None:
        aborted = partition.aborted_in(asked.fetch_offset, found)
    if request.version < _FIRST_WITH_ZSTD and partition.log.config.codec is Codec.ZSTD:
        raise BrokerError(ErrorCode.unsupported_compression_type)
    return partition, found, aborted, diverging, preferred
