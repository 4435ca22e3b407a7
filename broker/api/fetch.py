"""Fetch: record batches from an offset on, as file ranges for sendfile.

Behaviour: reads up to the high watermark. With isolation level read_committed it reads up to the last stable offset and
adds the list of aborted transactions (KIP-98). The first batch is returned even if it is larger than max bytes
(KIP-74), the rest stays within max bytes. Partitions are read once each, in the order of the request.

With less than min bytes the answer waits, at most max wait. An error is answered at once, except for a topic or
partition that does not exist: as in Kafka, the answer still waits for the other partitions. In a fetch session
(KIP-227) only the partitions that changed are read and answered, in the order of the session. Index pages that are not
in the page cache are read by a thread, so that other connections are served meanwhile.

A partition of which the archive must be read first has no records in the answer. All of them begin to be downloaded in
one pass. If nothing else can be read, the fetch waits for the first of them, at most remote.fetch.max.wait.ms. The
downloads go on, and a later fetch finds them.

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
import uuid
import weakref
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

from broker.api.context import LED_ELSEWHERE, ApiContext, Client, Request
from broker.api.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchSession, Found
from broker.api.named_topics import NO_ID
from broker.api.refused_versions import refuse_fetch
from broker.api.replica_fetch import follower_of, read_for_follower
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.log.download import Download
from broker.log.segment_file import ColdRead, FileSlice, unless_cold
from broker.net.delayed_answer import DelayedAnswer
from broker.net.response import Part
from broker.net.throttling import FetchedAnswer, quota_user
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import FETCH_VERSIONS, PartitionAnswer, TopicAnswer, encode_fetch_response
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import FETCH_AS_FOLLOWER, FETCH_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from broker.replica.cold_reads import call_in, warmed
from broker.replica.delayed_fetch import DelayedFetch
from broker.replica.partition import NO_REPLICA, Partition
from broker.replica.replica import Replica

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

    nearby: Collection[int]
    """The brokers in the consumer's rack, if it should read from them; none if this one is among them."""
    topics: list[TopicAnswer] = dataclasses.field(default_factory=list)
    partitions: list[Replica] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    """Bytes found in each of `partitions`."""
    errors: list[int] = dataclasses.field(default_factory=list)
    size: int = 0
    downloads: list[Download] = dataclasses.field(default_factory=list)
    """Of the partitions that have no records, because the archive must be read first."""
    complete: bool = False
    found: list[Found] = dataclasses.field(default_factory=list)
    """In a session, instead of `topics`."""


@serves(ApiKey.FETCH, *FETCH_VERSIONS, refuse=refuse_fetch)
def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    return _Fetch(context, request, client).begin()


class _Fetch:
    """One request: reads its partitions, and reads them again at the end of its wait if it has to wait for more."""

    _read: _Read
    _delayed: DelayedFetch
    _on_download: Callable[[], None]

    def __init__(self, context: ApiContext, request: Request, client: Client) -> None:
        self._context = context
        self._request = request
        self._body = request.body
        self._client = client
        self._follower = follower_of(request.body)
        self._is_replica = self._follower.broker_id >= 0
        self._session: FetchSession | None = None
        self._answer: DelayedAnswer[Answer] | None = None
        """If it waits."""
        self._reading: asyncio.Task[None] | None = None
        self._downloads: Sequence[Download] = ()
        """Those that end the wait."""

    def begin(self) -> Answer | Awaitable[Answer]:
        """Answer at once if there is enough to read, otherwise wait for more."""
        context, body, replica = self._context, self._body, self._follower.broker_id
        if self._is_replica and not context.allows(self._client, FETCH_AS_FOLLOWER):
            return self._deny()
        epoch = field(body, "session_epoch", FINAL_EPOCH)
        if epoch != FINAL_EPOCH or field(body, "session_id", NO_SESSION) != NO_SESSION:
            try:
                self._session = context.fetch_sessions.begin(self._request, replica=replica)
            except BrokerError as error:
                return self._refuse(error.code)
            if self._session is not None and not self._is_replica:
                self._session.note_access((context.authorizer.acls, self._client.principal))
        try:
            unless_cold(self._read_all)
        except ColdRead as cold:
            return self._respond_warmed(cold)
        return self._respond()

    async def _respond_warmed(self, cold: ColdRead) -> Answer:
        await warmed(self._read_all, cold)
        answer = self._respond()
        return await answer if isinstance(answer, DelayedAnswer) else answer

    def _respond(self) -> Answer | DelayedAnswer[Answer]:
        read, session = self._read, self._session
        nothing_to_wait_for = not read.partitions and (session is None or not session.has_quiet)
        missing = self._least_bytes() - read.size
        max_wait_ms = to_ms(self._body.max_wait)
        if read.complete or missing <= 0 or nothing_to_wait_for or (max_wait_ms <= 0 and not read.downloads):
            return self._respond_with_records()
        eager = self._is_replica and self._context.config.is_rack_aware
        if read.downloads:
            return self._wait(missing, self._context.config.remote_fetch_max_wait_ms, eager=eager)
        if self._is_replica and any(_is_news(found, eager=eager) for found in read.found):
            return self._respond_with_records()
        return self._wait(missing, max_wait_ms, eager=eager)

    # --- the wait

    def _wait(self, missing: int, wait_ms: int, *, eager: bool) -> DelayedAnswer[Answer]:
        body, session = self._body, self._session
        self._delayed = DelayedFetch(
            # In a session the partitions that are not read can gain bytes, too, so it waits for all of them itself.
            self._read.partitions if session is None else (),
            missing,
            wait_ms / 1000,
            self._end_wait,
            session.timer if session is not None and session.waiting is None else None,
            committed=body.isolation_level == _COMMITTED and not self._is_replica,
            replica=self._is_replica,
            eager=eager,
        )
        if session is not None:
            session.begin_wait(self._delayed, self._read.found)
        self._downloads = self._read.downloads
        if self._downloads:
            self._on_download = partial(call_in, asyncio.get_running_loop(), self._delayed.end)
            for download in self._downloads:
                download.watch(self._on_download)
        self._answer = DelayedAnswer(self._cancel)
        return self._answer

    def _end_wait(self) -> None:
        """Read again and answer."""
        self._unwatch_downloads()
        answer = self._answer
        if answer is None or answer.is_over:
            return  # the client left after the wait had ended
        if self._session is not None:
            self._session.end_wait(self._delayed)
        try:
            unless_cold(self._read_all)
            response = self._respond_with_records()
        except ColdRead as cold:
            self._reading = asyncio.ensure_future(self._answer_warmed(answer, cold))
        except Exception as error:
            answer.fail(error)
        else:
            answer.complete(response)

    async def _answer_warmed(self, answer: DelayedAnswer[Answer], cold: ColdRead) -> None:
        try:
            await warmed(self._read_all, cold)
            response = self._respond_with_records()
        except Exception as error:
            answer.fail(error)
        else:
            answer.complete(response)

    def _cancel(self) -> None:
        self._unwatch_downloads()
        self._delayed.cancel()
        if self._session is not None:
            self._session.end_wait(self._delayed)
        if self._reading is not None:
            self._reading.cancel()

    def _unwatch_downloads(self) -> None:
        for download in self._downloads:
            download.unwatch(self._on_download)
        self._downloads = ()

    # --- responses

    def _respond_with_records(self) -> Answer:
        """The response, which a consumer above its quota gets without records (KIP-219)."""
        if self._is_replica or not self._context.quotas.enabled:
            return self._records()
        return FetchedAnswer(self._records, self._no_records)

    def _records(self) -> Sequence[Part]:
        read, topics = self._read, self._read.topics
        if self._session is not None:
            try:
                self._context.fetch_sessions.end(self._session, self._request)
            except BrokerError as error:
                return self._refuse(error.code)
            topics = self._session.answer(read.found)
        for partition, size in zip(read.partitions, read.sizes, strict=True):
            if self._is_replica:
                partition.metrics.replication_bytes_out += size
                if self._follower.broker_id in partition.adding:
                    partition.metrics.reassignment_bytes_out += size
            else:
                partition.metrics.bytes_out += size
        for code in read.errors:
            self._context.metrics.failed(ApiKey.FETCH, code)
        return self._encode(topics)

    def _no_records(self) -> Sequence[Part]:
        """The response to a throttled consumer. Its session goes on as if nothing had been found; a new one is not
        made."""
        session = self._session
        if session is not None and session.id == NO_SESSION:
            session.close()
        elif session is not None:
            try:
                self._context.fetch_sessions.end(session, self._request)
            except BrokerError as error:
                return self._refuse(error.code)
            session.changed.update(one.cached for one in self._read.found)
        return self._encode(())

    def _deny(self) -> Sequence[Part]:
        """Someone who is no broker fetches as a follower: that could move the high watermark."""
        code = int(ErrorCode.topic_authorization_failed)
        self._context.metrics.failed(ApiKey.FETCH, code)
        topics = [
            TopicAnswer(
                field(asked, "topic", ""),
                field(asked, "topic_id") or NO_ID,
                [PartitionAnswer(one.partition, code, -1, -1, -1, (), None) for one in asked.partitions],
            )
            for asked in self._body.topics
        ]
        return self._encode(topics)

    def _refuse(self, code: ErrorCode) -> Sequence[Part]:
        self._context.metrics.failed(ApiKey.FETCH, int(code))
        return self._encode((), error=int(code))

    def _encode(self, topics: Sequence[TopicAnswer], **fields: int) -> Sequence[Part]:
        session_id = NO_SESSION if self._session is None else self._session.id
        request = self._request
        return encode_fetch_response(request.version, request.correlation_id, topics, session_id=session_id, **fields)

    # --- reads

    def _read_all(self) -> None:
        """Read the partitions of the request, or those of its session that may have news."""
        body, session = self._body, self._session
        read = self._read = _Read(self._brokers_nearby())
        budget = min(body.max_bytes, self._context.config.fetch_max_bytes, self._most_bytes())
        if session is not None:
            metadata = weakref.ref(self._context.topics.metadata)  # a session is kept for long, perhaps without client
            for cached in session.to_read():
                if cached.metadata is not metadata:
                    cached.metadata, cached.name = metadata, self._name_of(cached.topic)
                answer = self._read_partition(cached.name, cached.asked, budget)
                read.found.append(Found(cached, cached.name, None if answer.error else read.partitions[-1], answer))
            return
        for asked in body.topics:
            topic_id = field(asked, "topic_id")
            name = self._name_of(field(asked, "topic", topic_id))
            wanted = asked.partitions
            if len(wanted) > 1:
                wanted = {partition.partition: partition for partition in wanted}.values()
            answers = [self._read_partition(name, partition, budget) for partition in wanted]
            read.topics.append(TopicAnswer(name or "", topic_id or NO_ID, answers))

    def _brokers_nearby(self) -> Collection[int]:
        rack = self._body.rack_id if self._request.version >= _FIRST_WITH_RACKS else ""
        if not rack or not self._context.config.is_rack_aware:
            return ()
        brokers, listener = self._context.topics.metadata.brokers, self._client.listener
        nearby = {id_ for id_, one in brokers.items() if one.rack == rack and one.endpoint(listener) is not None}
        return () if self._context.broker_id in nearby else nearby

    def _most_bytes(self) -> int:
        """The bytes that a consumer with a quota gets at once."""
        if self._context.quotas.enabled and not self._is_replica:
            peer = quota_user(self._client.principal, self._request.client_id)
            most = self._context.quotas.most_to_fetch(*peer)
            if most is not None:
                return int(min(most, _ANY))
        return _ANY

    def _least_bytes(self) -> int:
        """The bytes to wait for."""
        return min(int(self._body.min_bytes), self._most_bytes())

    def _name_of(self, topic: str | uuid.UUID | None) -> str | None:
        """The name of a topic, which requests from version 13 on name by its id."""
        if topic is None or isinstance(topic, str):
            return topic
        found = self._context.topics.metadata.topic_by_id(topic)
        return found.name if found else None

    def _read_partition(self, topic: str | None, asked: Any, budget: int) -> PartitionAnswer:
        read, diverging, preferred, archived_end = self._read, None, NO_REPLICA, 0
        found, aborted = None, None
        try:
            if topic is None:
                raise BrokerError(ErrorCode.unknown_topic_id)
            tp, left = TopicPartition(topic, asked.partition), budget - read.size
            partition: Replica
            if self._is_replica:
                is_first = self._answer is None
                if not is_first and not self._context.allows(self._client, FETCH_AS_FOLLOWER):
                    raise BrokerError(FETCH_TOPIC.code)  # it was taken away during the wait
                partition, found, diverging, archived_end = read_for_follower(
                    self._context,
                    self._request,
                    tp,
                    asked,
                    self._follower,
                    left,
                    is_first_with_records=not read.size,
                    counts=is_first,
                )
            else:
                partition, found, aborted, diverging, preferred = self._read_for_consumer(tp, asked, left)
        except BrokerError as error:
            return self._failed(topic, asked, error)
        except ColdRead as cold:
            if cold.download is None:
                raise
            read.downloads.append(cold.download)
            partition = self._context.topics.replica(tp)
            aborted = () if self._body.isolation_level == _COMMITTED and not self._is_replica else None
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
            archived_end=archived_end,
        )

    def _read_for_consumer(
        self, tp: TopicPartition, asked: Any, budget: int
    ) -> tuple[Replica, FileSlice | None, Sequence[tuple[int, int]] | None, tuple[int, int] | None, int]:
        """(partition, records, aborted transactions, where the logs diverge, the broker to read from instead)."""
        context, read, version = self._context, self._read, self._request.version
        context.check(self._client, FETCH_TOPIC, tp.topic)
        committed, preferred = self._body.isolation_level == _COMMITTED, NO_REPLICA
        epoch = field(asked, "current_leader_epoch", -1)
        partition: Replica
        if version < _FIRST_WITH_RACKS:
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
        if version < _FIRST_WITH_ZSTD and partition.log.config.codec is Codec.ZSTD:
            raise BrokerError(ErrorCode.unsupported_compression_type)
        return partition, found, aborted, diverging, preferred

    def _failed(self, topic: str | None, asked: Any, error: BrokerError) -> PartitionAnswer:
        code, version = error.code, self._request.version
        if code is ErrorCode.kafka_storage_error and version < _FIRST_WITH_STORAGE_ERROR:
            code = ErrorCode.not_leader_or_follower
        self._read.complete |= code not in (*_UNKNOWN, FETCH_TOPIC.code)  # Kafka waits for the other partitions
        self._read.errors.append(int(code))
        leader = None
        if topic is not None and code in LED_ELSEWHERE and version >= _FIRST_WITH_LEADERS:
            tp = TopicPartition(topic, asked.partition)
            leader = self._context.current_leader(self._client, tp)
        none_aborted = () if code in _UNKNOWN else None
        return PartitionAnswer(asked.partition, int(code), -1, -1, -1, none_aborted, None, leader=leader)


def _is_news(found: Found, *, eager: bool) -> bool:
    """Whether a follower should hear of a partition at once, although there are no records for it."""
    cached, answer = found.cached, found.answer
    if found.partition is None:
        return False
    if eager and cached.has_moved(answer):
        return True
    # The follower may lead soon, and does not know yet that records were deleted.
    return bool(max(cached.log_start_offset, cached.asked.log_start_offset) < answer.log_start_offset)
