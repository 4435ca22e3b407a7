"""Incremental fetch sessions (KIP-227): a client names its partitions once, and then only what changes.

Called by fetch.py, for consumers and replicas. A session remembers the partitions of a client and what the last
response said about them. A partition is quiet when the client has all of its records. An incremental fetch looks only
at partitions that the request names, that were not quiet, or that have changed since. To learn of changes, a quiet
partition of a session is one of the partition's `waiters`, as a delayed fetch is. The first change removes it, so a
session whose client is gone costs a partition one call. Once a second a session compares the offsets of all its
partitions: no waiter learns of a new log start offset or leader epoch.

Errors, epochs, the order of partitions and the eviction are those of Kafka's `FetchSession.scala`. Lives on the event
loop.
"""

from __future__ import annotations

import operator
import random
import uuid
import weakref
from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import count, groupby
from typing import Any, Final, NamedTuple

from broker.clock import Clock
from broker.errors import BrokerError, ErrorCode
from broker.metrics import FetchSessionMetrics
from broker.protocol.fetch_response import PartitionAnswer, TopicAnswer
from broker.protocol.messages import Request, field
from broker.replica.cluster_metadata import ClusterMetadata
from broker.replica.delayed_fetch import DelayedFetch, WaitTimer
from broker.replica.partition import Partition
from broker.replica.replica import Replica

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""Asks for a new session."""
FINAL_EPOCH: Final = -1
"""Asks for no session, and closes the one that is named."""
EVICTION_MS: Final = 120_000
"""A session that is not used for this time gives way to any other."""
COMPARE_S: Final = 1.0
MAX_PARTITIONS: Final = 1_000_000
"""Of all sessions. Each takes some 400 bytes, and a client may name millions."""

_LARGEST_ID = 2**31 - 1
_FIRST_WITH_TOPIC_IDS = 13
_FIRST_WITH_ZSTD = 10
_NO_OFFSET = -1
_NO_TOPIC_ID = uuid.UUID(int=0)

Topic = str | uuid.UUID | None
"""The name, from version 13 the id; None is the zero id."""


class Found(NamedTuple):
    """What a look at a partition found. `partition` is None with an error."""

    cached: CachedPartition
    name: str | None
    partition: Replica | None
    answer: PartitionAnswer


class CachedPartition:
    """A partition of a session; one of the partition's `waiters` while the session knows nothing new about it."""

    __slots__ = (
        "_compared",
        "_partition",
        "archived_end",
        "asked",
        "high_watermark",
        "log_start_offset",
        "metadata",
        "name",
        "order",
        "session",
        "topic",
    )

    def __init__(self, session: FetchSession, topic: Topic, asked: Any, order: int) -> None:
        self.session = session
        self.topic = topic
        self.asked = asked
        """The partition as the client last named it, with its fetch offset."""
        self.order = order
        """Partitions are answered in this order."""
        self.name: str | None = None
        """The topic's name in `metadata`; None if there is no such topic."""
        self.metadata: weakref.ref[ClusterMetadata] | None = None
        self.high_watermark = self.log_start_offset = _NO_OFFSET
        """In the last response."""
        self.archived_end = 0
        """The same, of a follower."""
        self._partition: Replica | None = None
        self._compared: tuple[int, ...] = ()

    @property
    def committed(self) -> bool:
        return self.session.committed

    @property
    def replica(self) -> bool:
        return self.session.privileged

    def gained(self, size: int) -> None:
        """The partition has changed, by which `size` more bytes can be read."""
        self.session.changed.add(self)
        waiting = self.session.waiting
        if waiting is None:
            self.unwatch()
        else:
            waiting.gained(size)

    def end(self) -> None:
        """This broker stops leading the partition."""
        self.session.changed.add(self)
        self.unwatch()
        if self.session.waiting is not None:
            self.session.waiting.end()

    def watch(self, partition: Replica) -> None:
        """Learn of the next change of `partition`."""
        if self.session.is_closed:
            return
        self._compared = _offsets(partition)
        if self._partition is not partition:
            self.unwatch()
            self._partition = partition
        partition.waiters.add(self)

    def unwatch(self) -> None:
        if self._partition is not None:
            self._partition.waiters.discard(self)
            self._partition = None

    def compare(self) -> None:
        """Look at the partition again if its offsets have moved and nobody said so."""
        if self._partition is not None and _offsets(self._partition) != self._compared:
            self.session.changed.add(self)

    def update(self, answer: PartitionAnswer) -> bool:
        """Whether a response must have this answer: for records, an error, a diverging epoch, a replica to read from
        instead, or an offset that moved.

        The offsets of an error are -1, so the first answer after it has moved.
        """
        has_records = answer.records is not None and answer.records.length > 0
        has_moved = self.has_moved(answer)
        is_archived = self.archived_end != answer.archived_end
        self.high_watermark, self.log_start_offset = answer.high_watermark, answer.log_start_offset
        self.archived_end = answer.archived_end
        redirects = answer.diverging is not None or answer.preferred >= 0
        return bool(answer.error) or has_records or has_moved or redirects or is_archived

    def has_moved(self, answer: PartitionAnswer) -> bool:
        return (self.high_watermark, self.log_start_offset) != (answer.high_watermark, answer.log_start_offset)


def _offsets(partition: Replica) -> tuple[int, ...]:
    log = partition.log
    return log.log_end_offset, partition.high_watermark, log.log_start_offset, partition.leader_epoch


class FetchSession:
    """The partitions of one client. A new one gets its id when its first response is made."""

    def __init__(self, request: Request, *, replica: int, created_ms: int) -> None:
        """`replica`: the broker id of a follower, below 0 for a consumer."""
        self.id = NO_SESSION
        self.epoch = _next_epoch(INITIAL_EPOCH)
        """The epoch that the next request must have."""
        self.replica = replica
        self.privileged = replica >= 0
        """No consumer can evict a follower's session before it is unused for `EVICTION_MS`."""
        self.created_ms = self.used_ms = created_ms
        self.uses_topic_ids = request.version >= _FIRST_WITH_TOPIC_IDS
        self.committed = False
        """Whether the last request was of a read_committed consumer."""
        self.partitions: dict[tuple[Topic, int], CachedPartition] = {}
        self.changed: set[CachedPartition] = set()
        """The partitions to look at."""
        self.timer = WaitTimer()
        """Of its waiting fetches."""
        self.waiting: DelayedFetch | None = None
        """The fetch that waits for one of the partitions to change."""
        self.is_closed = False
        self.is_old = False
        """Whether it was older than `EVICTION_MS` when it was last used."""
        self._orders = count()
        self._compared_s = 0.0
        self._access: object = None
        self.update(request)

    def update(self, request: Request) -> None:
        """Take the partitions that the request names, and forget those it wants forgotten."""
        body = request.body
        for topic in body.topics:
            name = field(topic, "topic", field(topic, "topic_id"))
            for asked in topic.partitions:
                cached = self.partitions.get((name, asked.partition))
                if cached is None:
                    cached = CachedPartition(self, name, asked, next(self._orders))
                    self.partitions[name, asked.partition] = cached
                cached.asked = asked
                self.changed.add(cached)
        for topic in body.forgotten_topics_data:
            name = field(topic, "topic", field(topic, "topic_id"))
            for index in topic.partitions:
                if (gone := self.partitions.pop((name, index), None)) is not None:
                    gone.unwatch()
                    self.changed.discard(gone)
        committed = body.isolation_level == 1
        if committed != self.committed or request.version < _FIRST_WITH_ZSTD:
            # Other records can be read; an old client must be told of a topic that is compressed with zstd from now on.
            self.changed.update(self.partitions.values())
        self.committed = committed

    def note_access(self, access: object) -> None:
        """Look at all partitions if the ACLs are others than before, or the client is. `access` is equal if not."""
        if access != self._access:
            self._access = access
            self.changed.update(self.partitions.values())

    def compare(self, now_s: float) -> None:
        """Notice changes that no waiter is told."""
        if now_s - self._compared_s >= COMPARE_S:
            self._compared_s = now_s
            for cached in self.partitions.values():
                cached.compare()

    def to_read(self) -> list[CachedPartition]:
        """The partitions to look at, in order."""
        return sorted(self.changed, key=operator.attrgetter("order"))

    @property
    def has_quiet(self) -> bool:
        """Whether some partition exists and has nothing new."""
        return len(self.changed) < len(self.partitions)

    def begin_wait(self, delayed: DelayedFetch, found: Iterable[Found]) -> None:
        """Let the bytes that any partition gains count for `delayed`."""
        self.waiting = delayed
        for cached, _, partition, answer in found:
            if partition is None:
                continue
            cached.watch(partition)
            if self._is_quiet(partition, cached, answer) and not cached.has_moved(answer):
                self.changed.discard(cached)

    def end_wait(self, delayed: DelayedFetch) -> None:
        """The wait is over, or its client is gone: then nobody ends a new session, which nobody knows yet."""
        if self.waiting is delayed:
            self.waiting = None
        if self.id == NO_SESSION:
            self._unwatch()
            self.timer.close()  # the client chooses how long it would stay set

    def answer(self, found: Iterable[Found]) -> list[TopicAnswer]:
        """What the response says, and remember it. A partition with records becomes the last one."""
        answers = []
        for one in found:
            cached, _, partition, answer = one
            if cached.update(answer):
                answers.append(one)
                if answer.records is not None and answer.records.length:
                    cached.order = next(self._orders)
            if partition is not None and self._is_quiet(partition, cached, answer):
                cached.watch(partition)
                self.changed.discard(cached)
        return [
            TopicAnswer(name or "", topic if isinstance(topic, uuid.UUID) else _NO_TOPIC_ID, [one.answer for one in of])
            for (topic, name), of in groupby(answers, key=lambda one: (one.cached.topic, one.name))
        ]

    def _is_quiet(self, partition: Replica, cached: CachedPartition, answer: PartitionAnswer) -> bool:
        """Whether the client has all that it may read, so that only a change can be news.

        A follower whose position the leader has forgotten must be counted again, which the next fetch does. One that
        diverges hears of it until it has cut its log, and a consumer that should read from another replica until it
        does.
        """
        if answer.diverging is not None or answer.preferred >= 0:
            return False
        if self.privileged:
            if not (isinstance(partition, Partition) and partition.is_known(self.replica)):
                return False
            end = partition.log.log_end_offset
        else:
            end = answer.last_stable_offset if self.committed else answer.high_watermark
        return bool(cached.asked.fetch_offset >= end)

    def close(self) -> None:
        """Wait for no more changes, and end the fetch that does."""
        self.is_closed = True
        self._unwatch()
        if self.waiting is not None:
            self.waiting.end()
        self.timer.close()

    def _unwatch(self) -> None:
        for cached in self.partitions.values():
            cached.unwatch()


class FetchSessionCache:
    """The sessions of all clients, at most `max.incremental.fetch.session.cache.slots`."""

    def __init__(self, slots: int, clock: Clock, metrics: FetchSessionMetrics) -> None:
        self._slots = slots
        self._clock = clock
        self._metrics = metrics
        self._sessions: dict[int, FetchSession] = {}
        """By id; the least recently used is the first."""
        self._evictable_by_all: list[_Worth] = []
        self._evictable_by_replicas: list[_Worth] = []
        """The sessions that are not in use long enough, sorted; the first gives way to a session worth more."""
        self._worth: dict[int, _Worth] = {}
        """By id, as in those lists."""

    def begin(self, request: Request, *, replica: int) -> FetchSession | None:
        """The session of a request, updated by it; a new one if it wants one; None for a fetch without a session.

        `replica`: the broker id of a follower, below 0 for a consumer.
        Raises BrokerError `fetch_session_id_not_found`, `invalid_fetch_session_epoch`, `fetch_session_topic_id_error`.
        """
        session_id, epoch = request.body.session_id, request.body.session_epoch
        session = self._sessions.get(session_id)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._remove(session)
            if epoch == FINAL_EPOCH or not self._slots:
                return None
            return FetchSession(request, replica=replica, created_ms=self._now_ms())
        if session is None or session.replica != replica:
            raise BrokerError(ErrorCode.fetch_session_id_not_found, f"there is no fetch session {session_id}")
        if epoch != session.epoch:
            raise BrokerError(ErrorCode.invalid_fetch_session_epoch, f"{session_id} is at epoch {session.epoch}")
        if session.uses_topic_ids != (request.version >= _FIRST_WITH_TOPIC_IDS):
            raise BrokerError(ErrorCode.fetch_session_topic_id_error, f"{session_id} names its topics in another way")
        session.update(request)
        if not session.partitions:
            self._remove(session)
            return None
        if not self._has_memory_for(session):
            self._remove(session)
            raise BrokerError(ErrorCode.fetch_session_id_not_found, f"{session_id} has too many partitions")
        if session.waiting is not None:
            session.waiting.end()  # a fetch of the epoch before, which is answered with an error
        session.epoch = _next_epoch(epoch)
        self._used(session)
        session.compare(self._clock.monotonic())
        return session

    def end(self, session: FetchSession, request: Request) -> None:
        """Before a response: give a new session its id, if there is room.

        Raises BrokerError `invalid_fetch_session_epoch` when a newer request has used the session in the meantime.
        """
        epoch = request.body.session_epoch
        if epoch != INITIAL_EPOCH:
            if session.epoch != _next_epoch(epoch):
                raise BrokerError(ErrorCode.invalid_fetch_session_epoch, f"{session.id} is at epoch {session.epoch}")
        elif self._has_room_for(session):
            session.id = self._new_id()
            self._sessions[session.id] = session
            self._used(session)
        else:
            session.close()

    def _has_memory_for(self, session: FetchSession) -> bool:
        known = self._worth.get(session.id)
        others = self._metrics.partitions - (0 if known is None else known.partitions)
        return others + len(session.partitions) <= MAX_PARTITIONS

    def _has_room_for(self, new: FetchSession) -> bool:
        """Whether there is room for a session, perhaps after others gave way."""
        if len(new.partitions) > MAX_PARTITIONS:
            return False
        while len(self._sessions) >= self._slots or not self._has_memory_for(new):
            if not self._evict_for(new):
                return False
        return True

    def _new_id(self) -> int:
        while (session_id := random.randint(1, _LARGEST_ID)) in self._sessions:
            pass
        return session_id

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _used(self, session: FetchSession) -> None:
        now_ms = self._now_ms()
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        known, is_old = self._worth.get(session.id), now_ms - session.created_ms > EVICTION_MS
        if known is not None and known.partitions == len(session.partitions) and session.is_old == is_old:
            return
        session.is_old = is_old
        self._forget_worth(session)
        worth = self._worth[session.id] = _Worth(session.privileged, len(session.partitions), session.id)
        self._metrics.sessions = len(self._sessions)
        self._metrics.partitions += worth.partitions
        if is_old:
            insort(self._evictable_by_all, worth)
        if is_old or not session.privileged:
            insort(self._evictable_by_replicas, worth)

    def _evict_for(self, new: FetchSession) -> bool:
        """Whether a session gave way to `new`: the one unused for longest, if that is `EVICTION_MS`, or one worth less.

        A replica's is worth more than a consumer's, and then the one with more partitions is. Only a replica's can
        evict one that is younger than `EVICTION_MS`.
        """
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if self._now_ms() - oldest.used_ms <= EVICTION_MS:
            evictable = self._evictable_by_replicas if new.privileged else self._evictable_by_all
            if not evictable or _Worth(new.privileged, len(new.partitions), 0) < evictable[0]:
                return False
            oldest = self._sessions[evictable[0].session_id]
        self._remove(oldest)
        self._metrics.evictions += 1
        return True

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._forget_worth(session)
        self._metrics.sessions = len(self._sessions)
        session.close()

    def _forget_worth(self, session: FetchSession) -> None:
        worth = self._worth.pop(session.id, None)
        if worth is None:
            return
        self._metrics.partitions -= worth.partitions
        for evictable in (self._evictable_by_all, self._evictable_by_replicas):
            at = bisect_left(evictable, worth)
            if at < len(evictable) and evictable[at] == worth:
                del evictable[at]


class _Worth(NamedTuple):
    """Sorts sessions by what is lost when one is evicted."""

    privileged: bool
    partitions: int
    session_id: int


def _next_epoch(epoch: int) -> int:
    return FINAL_EPOCH if epoch < 0 else 1 if epoch == _LARGEST_ID else epoch + 1
