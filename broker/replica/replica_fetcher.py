"""Fetches from one leader broker for all partitions that this broker follows there (Kafka's ReplicaFetcherThread).

One task with one connection: it asks, appends what comes, and asks again, so a fetch offset always acknowledges what
is in the log. It names in a fetch session (KIP-227) only the partitions that have changed since the last request. Bytes
go from the socket's buffer to the log, and after each `YIELD_BYTES` others get the event loop. A partition with an
error is left out for a while, and the others go on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import uuid
from collections.abc import Callable, Collection

from broker.background_tasks import BackgroundTasks
from broker.config.setting_groups import ReplicaSettings
from broker.errors import BrokerError, ErrorCode, ProtocolError, PykafkaError, raise_for
from broker.log.follower_append import FollowerAppend
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_parser import FetchedPartition, parse_fetch_response
from broker.protocol.replica_fetch_request import (
    REPLICA_FETCH_VERSION,
    FetchPosition,
    ReplicaFetchLimits,
    encode_replica_fetch,
)
from broker.protocol.topic_partition import TopicPartition
from broker.replica.follower import Follower
from broker.replica.replication_quota import ReplicationQuota

logger = logging.getLogger(__name__)

YIELD_BYTES = 1 << 20
FIRST_BACKOFF_S = 0.02
INTERRUPT_INTERVAL_S = 0.1
"""A new partition ends a fetch that waits, but no more often than this."""
LONGEST_WAIT_S = 1.0
"""For which a throttled partition waits before it looks at the rate again."""
STALE_AFTER = 4
"""So many errors in turn mean that this broker has missed a notification. Fewer are usual after an election."""
_EPOCH_VERSION, _OFFSETS_VERSION = 4, 8
_EARLIEST, _EARLIEST_LOCAL = -2, -4
_OUT_OF_RANGE = ErrorCode.offset_out_of_range, ErrorCode.offset_moved_to_tiered_storage
_FULL = 0
_LAST_SESSION_EPOCH = 2**31 - 1
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.inconsistent_topic_id,
    }
)
_STALE_ERRORS = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.inconsistent_topic_id,
    }
)
"""The leader knows something newer than this broker does."""

Key = tuple[uuid.UUID, int]
"""Topic id and partition."""


@dataclasses.dataclass(slots=True)
class _Followed:
    """A follower, and its errors. `asked`: its position in the last request that named it."""

    follower: Follower
    topic_id: uuid.UUID
    asked: FetchPosition | None = None
    failures: int = 0
    error: str = ""
    retry: asyncio.TimerHandle | None = None


class ReplicaFetcher:
    """The fetches from one leader broker. Everything runs on the event loop."""

    def __init__(
        self,
        broker_id: int,
        peer: PeerConnection,
        settings: ReplicaSettings,
        tasks: BackgroundTasks,
        on_stale: Callable[[str], None],
        broker_epoch: Callable[[], int] = lambda: -1,
        quota: ReplicationQuota | None = None,
    ) -> None:
        """`on_stale(topic)`: the leader says that this broker's metadata of a topic are old. `broker_epoch` gives the
        epoch of this broker's registration. `quota` limits what throttled replicas fetch."""
        self._broker_id = broker_id
        self._quota = quota or ReplicationQuota(broker_id)
        self._broker_epoch = broker_epoch
        self._peer = peer
        self._settings = settings
        self._on_stale = on_stale
        self._followed: dict[Key, _Followed] = {}
        self._changed: dict[Key, None] = {}
        """Partitions that the next incremental request may have to name, in order."""
        self._forgotten: set[Key] = set()
        """Partitions that the next incremental request removes from the session."""
        self._session_id = 0
        self._session_epoch = _FULL
        self._has_work = asyncio.Event()
        self._failures = 0
        self._failure = ""
        self._is_taken = False
        """Whether `_take_at_once` has taken the last response, after which there is nothing to fetch."""
        self._interrupted = False
        self._next_interrupt = 0.0
        self._interrupt_timer: asyncio.TimerHandle | None = None
        self._task = tasks.begin(f"fetching from {peer.address}", self._run())

    def __len__(self) -> int:
        return len(self._followed)

    # --- what it fetches

    def add(self, follower: Follower, topic_id: uuid.UUID) -> None:
        """Fetch for `follower` from now on, in place of an older one of the same partition."""
        key = topic_id, follower.tp.partition
        self._drop(key)
        self._followed[key] = _Followed(follower, topic_id)
        self._begin(key, self._followed[key])

    def remove(self, tp: TopicPartition, topic_id: uuid.UUID) -> None:
        """Fetch for a partition no more. What is under way for it is ignored."""
        self._drop((topic_id, tp.partition))

    def _drop(self, key: Key) -> None:
        followed = self._followed.pop(key, None)
        if followed is not None:
            if followed.retry is not None:
                followed.retry.cancel()
            self._leave_session(key, followed)

    def _leave_session(self, key: Key, followed: _Followed) -> None:
        self._changed.pop(key, None)
        if followed.asked is not None:
            followed.asked = None
            self._forgotten.add(key)

    def stop(self) -> None:
        """End the task; the connection is closed."""
        if self._interrupt_timer is not None:
            self._interrupt_timer.cancel()
        for followed in self._followed.values():
            if followed.retry is not None:
                followed.retry.cancel()
        self._task.cancel()
        self._peer.close()

    def _interrupt(self) -> None:
        """End a fetch that only waits: the leader serves one request of a connection after another."""
        if not self._peer.is_waiting or self._interrupt_timer is not None:
            return
        loop = asyncio.get_running_loop()
        self._interrupt_timer = loop.call_at(max(self._next_interrupt, loop.time()), self._interrupt_now)

    def _interrupt_now(self) -> None:
        self._interrupt_timer = None
        if self._peer.is_waiting:
            self._next_interrupt = asyncio.get_running_loop().time() + INTERRUPT_INTERVAL_S
            self._interrupted = True
            self._peer.close()

    # --- the task

    async def _run(self) -> None:
        while True:
            if not self._followed:
                self._end_session()
                self._peer.close()
            while not self._has_work.is_set():
                await self._has_work.wait()
            try:
                await self._fetch()
                self._succeeded()
            except PykafkaError as error:
                await self._pause(error)
            except Exception as error:
                logger.exception("fetching from %s failed", self._peer.address)
                self._peer.close()
                await self._pause(error)

    def _succeeded(self) -> None:
        if self._failures:
            logger.info("fetching from the leader at %s again", self._peer.address)
            self._failures = 0

    async def _pause(self, error: Exception) -> None:
        """After the loss of the connection: wait a while, but not when it was this side that closed it."""
        self._end_session()
        if self._interrupted:
            self._interrupted = False
            return
        if not self._failures or str(error) != self._failure:
            logger.warning("cannot fetch from the leader at %s, trying again: %s", self._peer.address, error)
        self._failure = str(error)
        self._failures += 1
        await asyncio.sleep(self._backoff_s(self._failures))

    def _backoff_s(self, failures: int) -> float:
        """Twice as long each time, so that a short failure costs little, up to replica.fetch.backoff.ms."""
        first: float = FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 20)
        return min(first, self._settings.replica_fetch_backoff_ms / 1000)

    async def _fetch(self) -> None:
        """Requests and their responses, until one of these needs a wait. Raises PykafkaError when the connection or a
        response is unusable."""
        frame = self._next_request()
        if frame is None:
            return
        self._is_taken = False
        payload = await self._peer.fetch(frame, self._take_at_once)
        self._interrupted = False
        if self._is_taken:
            return
        reply = parse_fetch_response(REPLICA_FETCH_VERSION, payload)
        if reply.error in _SESSION_ERRORS and self._session_epoch != _FULL:
            logger.debug("%s ended the fetch session: %s", self._peer.address, reply.error.name)
            self._end_session()
            return
        raise_for(reply.error, f"{self._peer.address} refuses the fetch")
        self._use_session(reply.session_id)
        await self._take(reply.partitions)

    def _take_at_once(self, payload: memoryview) -> bytearray | None:
        """Append what an ordinary response has, in the step in which it arrives; returns the next request.

        Returns None, and has done nothing, where something may have to wait: a slow disk, an error, a truncation. It
        also returns None when there is nothing to fetch any more, and then `_is_taken` is True.
        """
        if len(payload) >= YIELD_BYTES:
            return None
        reply = parse_fetch_response(REPLICA_FETCH_VERSION, payload)
        if reply.error is not ErrorCode.none or not all(map(self._is_ordinary, reply.partitions)):
            return None
        self._interrupted = False
        self._use_session(reply.session_id)
        for fetched in reply.partitions:
            key, followed = self._asked(fetched)
            if followed is not None:
                follower = followed.follower
                try:
                    appended = follower.append_at_once(
                        fetched.records, fetched.high_watermark, fetched.log_start_offset, fetched.archived_end
                    )
                    self._appended(followed, fetched, appended)
                except Exception as error:
                    self._failed(key, followed, error)
        self._throttle()
        self._succeeded()
        following = self._next_request()
        self._is_taken = following is None  # else the response that follows is the last one, and perhaps not taken
        return following

    def _is_ordinary(self, fetched: FetchedPartition) -> bool:
        if fetched.error is not ErrorCode.none or fetched.diverging is not None:
            return False
        followed = self._followed.get((fetched.topic, fetched.partition))  # type: ignore[arg-type]
        return followed is None or followed.follower.appends_at_once

    def _use_session(self, session_id: int) -> None:
        self._session_id = session_id
        if session_id:
            self._session_epoch = 1 if self._session_epoch == _LAST_SESSION_EPOCH else self._session_epoch + 1
        else:
            self._session_epoch = _FULL

    # --- requests

    def _next_request(self) -> bytearray | None:
        """The next frame; None when there is no partition to fetch."""
        if not self._session_id:
            self._session_epoch = _FULL
        if self._session_epoch == _FULL:
            keys: Collection[Key] = [key for key, followed in self._followed.items() if followed.retry is None]
            forgotten: Collection[Key] = ()
        else:
            keys, forgotten = tuple(self._changed), tuple(self._forgotten)
        positions = []
        for key in keys:
            followed = self._followed[key]
            position = self._position(followed)
            if self._session_epoch == _FULL or position != followed.asked:
                followed.asked = position
                positions.append(position)
        self._changed.clear()
        self._forgotten.clear()
        if not any(followed.retry is None for followed in self._followed.values()):
            self._has_work.clear()
            self._end_session()
            return None
        settings = self._settings
        return encode_replica_fetch(
            self._peer.client_id,
            (self._broker_id, self._broker_epoch()),
            ReplicaFetchLimits(
                settings.replica_fetch_wait_max_ms,
                settings.replica_fetch_min_bytes,
                settings.replica_fetch_response_max_bytes,
            ),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            positions=positions,
            forgotten=forgotten,
        )

    def _position(self, followed: _Followed) -> FetchPosition:
        follower = followed.follower
        log = follower.log
        return FetchPosition(
            followed.topic_id,
            follower.tp.partition,
            follower.leader_epoch,
            log.log_end_offset,
            log.epochs.latest,
            log.log_start_offset,
            self._settings.replica_fetch_max_bytes,
        )

    def _end_session(self) -> None:
        """Let the next request name all partitions. It names the old session, too, which the leader closes then."""
        self._session_epoch = _FULL
        self._changed.clear()
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.asked = None

    # --- responses

    async def _take(self, partitions: list[FetchedPartition]) -> None:
        """Append what came. Offsets out of range are looked into last, since that needs the connection's buffer."""
        out_of_range: list[_Followed] = []
        since_yield = 0
        for fetched in partitions:
            key, followed = self._asked(fetched)
            if followed is None:
                continue
            try:
                if fetched.error in _OUT_OF_RANGE:
                    out_of_range.append(followed)
                else:
                    await self._take_one(followed, fetched)
            except Exception as error:
                self._failed(key, followed, error)
            since_yield += len(fetched.records)
            if since_yield >= YIELD_BYTES:
                since_yield = 0
                await asyncio.sleep(0)
        for followed in out_of_range:
            await self._take_out_of_range(followed)
        self._throttle()

    def _asked(self, fetched: FetchedPartition) -> tuple[Key, _Followed | None]:
        """The follower that an answer is for; None if it did not ask for this."""
        assert isinstance(fetched.topic, uuid.UUID)
        key = fetched.topic, fetched.partition
        followed = self._followed.get(key)
        if followed is None or followed.asked is None:
            return key, None  # removed, or given another leader epoch, since the request
        self._changed[key] = None
        return key, followed if followed.asked.offset == followed.follower.log.log_end_offset else None

    def _failed(self, key: Key, followed: _Followed, error: Exception) -> None:
        """One partition must not keep the others from being fetched."""
        if not isinstance(error, BrokerError):
            logger.error("%s: cannot follow", followed.follower.tp, exc_info=error)
            error = BrokerError(ErrorCode.unknown_server_error, repr(error))
        self._put_off(key, followed, error)

    def _throttle(self) -> None:
        """Leave throttled partitions out while their rate is exceeded, except those in sync (KIP-73)."""
        delay_s = self._quota.delay_s()
        if delay_s:
            for key, followed in self._followed.items():
                if followed.retry is None and self._is_throttled(followed.follower):
                    self._wait(key, followed, delay_s)

    def _is_throttled(self, follower: Follower) -> bool:
        return self._counts(follower) and not follower.is_caught_up

    def _counts(self, follower: Follower) -> bool:
        replicas = follower.log.config.follower_replication_throttled_replicas
        return self._quota.applies_to(replicas, follower.tp.partition)

    def _wait(self, key: Key, followed: _Followed, delay_s: float) -> None:
        """Leave a partition out for this time, or shorter: the rate may change."""
        self._leave_session(key, followed)
        loop, delay_s = asyncio.get_running_loop(), min(delay_s, LONGEST_WAIT_S)
        followed.retry = loop.call_later(delay_s, functools.partial(self._begin, key, followed, interrupts=False))

    async def _take_one(self, followed: _Followed, fetched: FetchedPartition) -> None:
        """Apply the answer for one partition. Raises BrokerError when it has to wait before it is fetched again."""
        follower = followed.follower
        may = (
            "; does its super.users name this broker?" if fetched.error is ErrorCode.topic_authorization_failed else ""
        )
        raise_for(fetched.error, f"the leader {self._peer.address} refuses it{may}")
        if fetched.diverging is not None:
            end = follower.log.log_end_offset
            if await follower.truncate(*fetched.diverging) == end:
                epoch, epoch_end = fetched.diverging
                text = (
                    f"the leader's log diverges at epoch {epoch}, offset {epoch_end}, and there is nothing to truncate"
                )
                raise BrokerError(ErrorCode.invalid_record, text)
            return
        appended = await follower.append(
            fetched.records, fetched.high_watermark, fetched.log_start_offset, fetched.archived_end
        )
        self._appended(followed, fetched, appended)

    def _appended(self, followed: _Followed, fetched: FetchedPartition, appended: FollowerAppend | None) -> None:
        """Raises BrokerError for records without a whole batch."""
        if appended is not None:
            if not appended.size:
                text = (
                    f"{len(fetched.records)} bytes without a whole batch: replica.fetch.max.bytes is too small for it"
                )
                raise BrokerError(ErrorCode.record_list_too_large, text)
            if self._counts(followed.follower):
                self._quota.record(appended.size)
            # A request without a session names those first that got nothing: its size is limited.
            key = followed.topic_id, fetched.partition
            if self._followed.get(key) is followed:
                self._followed[key] = self._followed.pop(key)
        if followed.failures:
            logger.info("%s: fetching from %s again", followed.follower.tp, self._peer.address)
            followed.failures, followed.error = 0, ""

    async def _take_out_of_range(self, followed: _Followed) -> None:
        """The leader's log ends before this one, after an unclean election, or its local part begins after it."""
        follower, key = followed.follower, (followed.topic_id, followed.follower.tp.partition)
        try:
            end = await self._leader_end(follower)
            own_end = follower.log.log_end_offset
            if end < own_end:
                await follower.truncate_to(end, "the leader's log ends there")
                return
            start = await self._leader_start(follower, _EARLIEST_LOCAL)
            if start > own_end:
                await follower.restart_at(start, await self._leader_start(follower, _EARLIEST))
                return
            raise BrokerError(ErrorCode.offset_out_of_range, f"the leader has offsets {start} to {end}")
        except BrokerError as error:
            self._put_off(key, followed, error)

    async def _leader_end(self, follower: Follower) -> int:
        """The end of the leader's log. (ListOffsets would not go beyond the high watermark.)"""
        asked = {
            "partition": follower.tp.partition,
            "current_leader_epoch": follower.leader_epoch,
            "leader_epoch": follower.leader_epoch,
        }
        fields = {"replica_id": self._broker_id, "topics": [{"topic": follower.tp.topic, "partitions": [asked]}]}
        body = await self._peer.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, _EPOCH_VERSION, fields)
        return self._offset(body, "end_offset")

    async def _leader_start(self, follower: Follower, timestamp: int) -> int:
        asked = {
            "partition_index": follower.tp.partition,
            "current_leader_epoch": follower.leader_epoch,
            "timestamp": timestamp,
        }
        topics = [{"name": follower.tp.topic, "partitions": [asked]}]
        fields = {"replica_id": self._broker_id, "isolation_level": 0, "topics": topics}
        return self._offset(await self._peer.request(ApiKey.LIST_OFFSETS, _OFFSETS_VERSION, fields), "offset")

    def _offset(self, body: object, name: str) -> int:
        """The offset of the only partition in a response. Raises BrokerError, ProtocolError."""
        rows = [row for topic in body.topics for row in topic.partitions]  # type: ignore[attr-defined]
        if len(rows) != 1:
            raise ProtocolError(f"{self._peer.address} answered {len(rows)} partitions for one")
        raise_for(rows[0].error_code, f"the leader {self._peer.address} does not tell its offsets")
        offset = int(getattr(rows[0], name))
        if offset < 0:
            raise BrokerError(ErrorCode.offset_not_available, f"the leader {self._peer.address} has no {name}")
        return offset

    def _put_off(self, key: Key, followed: _Followed, error: BrokerError) -> None:
        if self._followed.get(key) is not followed:
            return
        text = str(error)
        is_usual = error.code in _STALE_ERRORS or error.code is ErrorCode.unknown_leader_epoch
        if text != followed.error or (is_usual and followed.failures == STALE_AFTER):
            level = logging.DEBUG if is_usual and followed.failures < STALE_AFTER else logging.WARNING
            logger.log(level, "%s: cannot follow, trying again: %s", followed.follower.tp, text)
            followed.error = text
        followed.failures += 1
        self._leave_session(key, followed)
        loop = asyncio.get_running_loop()
        followed.retry = loop.call_later(self._backoff_s(followed.failures), self._begin, key, followed)
        if error.code in _STALE_ERRORS and followed.failures >= STALE_AFTER:
            self._on_stale(followed.follower.tp.topic)

    def _begin(self, key: Key, followed: _Followed, *, interrupts: bool = True) -> None:
        """Name a partition in the next request, unless records that it would acknowledge have to be on disk first.

        `interrupts`: end a fetch that waits, so that the next one comes at once.
        """
        followed.retry = None
        log = followed.follower.log
        if log.failure or log.flush_due():
            text = log.failure or "its records are not on disk yet"
            self._put_off(key, followed, BrokerError(ErrorCode.kafka_storage_error, text))
            return
        if (delay_s := self._quota.delay_s()) and self._is_throttled(followed.follower):
            self._wait(key, followed, delay_s)
            return
        self._changed[key] = None
        self._forgotten.discard(key)
        self._has_work.set()
        if interrupts:
            self._interrupt()
