"""The share partitions of this broker: those of all share groups, of the partitions that it leads.

Handlers of ShareFetch and ShareAcknowledge call it. It loads a state from the persister at the first use, stores what
must be stored before the answer, wakes fetches that wait, lets locks expire, and drops a partition that this broker
does not lead any more or whose state has got another epoch (P11). Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator.deadline_timer import DeadlineTimer
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition
from broker.share.dead_letters import WriteDeadLetters
from broker.share.persister import RETRIABLE, Persister, SharePartitionKey, ShareState, ShareWrite
from broker.share.share_partition_state import (
    Acknowledgement,
    AcquiredRecords,
    DeadLetters,
    FetchedBatch,
    ShareLimits,
    SharePartitionState,
    Wanted,
)

logger = logging.getLogger(__name__)

LAST_WRITES_S = 5.0
RETRY_S = 1.0
"""After which a write is tried again that failed, and for which no member waits."""

# The state is another leader's, or another one: what this broker has in memory means nothing any more.
_FENCED = (
    ErrorCode.fenced_leader_epoch,
    ErrorCode.fenced_state_epoch,
    ErrorCode.invalid_request,
    ErrorCode.unknown_topic_or_partition,
)

# What members are answered, as in Kafka.
_SHOWN = {
    ErrorCode.fenced_leader_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_state_epoch: ErrorCode.not_leader_or_follower,
    **dict.fromkeys(RETRIABLE, ErrorCode.coordinator_not_available),
}


@dataclass(eq=False)
class SharePartition:
    """One, loaded. Once `is_fenced`, get another one from `SharePartitions`."""

    key: SharePartitionKey
    partition: Partition
    state: SharePartitionState
    owner: SharePartitions
    is_fenced: bool = False
    waiters: set[Callable[[], object]] = field(default_factory=set)
    """Called each time that something becomes available again, and when the partition is fenced. New records of the log
    are told by the replica."""
    writing: asyncio.Future[None] | None = None
    """The write under way."""
    _next: asyncio.Future[ErrorCode] | None = None
    """Of those who wait for the next write."""
    _dead_letters: asyncio.Future[None] | None = None
    """Their writing, while any are due."""
    _armed: float = inf

    def acquire(
        self, member_id: str, fetch_offset: int, batches: Sequence[FetchedBatch], wanted: Wanted
    ) -> list[AcquiredRecords]:
        """As `SharePartitionState.acquire`. Read the log at `state.next_fetch_offset()` before, and only committed
        records (below the high watermark, or the last stable offset)."""
        if self.is_fenced:
            return []
        acquired = self.state.acquire(member_id, fetch_offset, batches, self.owner.clock.monotonic(), wanted)
        self._arm()
        self._store()
        return acquired

    async def acknowledge(self, member_id: str, said: Sequence[Acknowledgement]) -> ErrorCode:
        """NONE once it is stored; other codes: it may be stored or not, and the records are the member's again until
        their locks expire. Raises BrokerError `invalid_record_state` or `invalid_request`; then nothing was changed."""
        if self.is_fenced:
            return ErrorCode.not_leader_or_follower
        is_stored_already = not self.state.acknowledge(member_id, said, self.owner.clock.monotonic())
        self._arm()
        return ErrorCode.none if is_stored_already else await self.stored()

    async def stored(self) -> ErrorCode:
        """Wait until all changes so far are stored."""
        if self.is_fenced:
            return ErrorCode.not_leader_or_follower
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waiting = self._next
        self._store()
        return await asyncio.shield(waiting)

    def set_limits(self, limits: ShareLimits) -> None:
        self.state.set_limits(limits)
        self._store()

    def fence(self) -> None:
        """This broker does not lead the partition any more, or its state has begun anew."""
        self.is_fenced = True
        self._answer(ErrorCode.not_leader_or_follower)
        self._wake()
        if self._dead_letters is not None:  # the next leader writes them
            self._dead_letters.cancel()

    # --- storing

    def _store(self) -> None:
        if self.writing is not None or self.is_fenced:
            return
        write = self.state.next_write()
        if write is None:
            self._answer(ErrorCode.none)
            self._begin_dead_letters()
            return
        waiting, self._next = self._next, None
        self.writing = self.owner.tasks.begin(f"storing the state of {self.key}", self._write(write, waiting))

    async def _write(self, write: ShareWrite, waiting: asyncio.Future[ErrorCode] | None) -> None:
        code = ErrorCode.unknown_server_error
        try:
            await self.owner.persister.write(self.key, write)
            code = ErrorCode.none
        except BrokerError as error:
            code = error.code
            logger.warning("the share state of %s is not stored: %s", self.key, error)
        except Exception:  # who waits for the next write must not wait for ever
            logger.exception("the share state of %s is not stored", self.key)
        finally:
            self.writing = None
            self.state.write_ended(is_stored=code is ErrorCode.none, now=self.owner.clock.monotonic())
            _complete(waiting, code)
        self._arm()
        self._wake()
        if code in _FENCED:
            self.fence()
        elif code is ErrorCode.none or self._next is not None:
            self._begin_dead_letters()
            self._store()
        else:
            self.owner.timer.at(self.owner.clock.monotonic() + RETRY_S, self._store)

    def _begin_dead_letters(self) -> None:
        if self._dead_letters is None and (due := self.state.dead_letters()):
            self._dead_letters = self.owner.tasks.begin(
                f"writing dead letters of {self.key}", self._end_dead_letters(due)
            )

    async def _end_dead_letters(self, due: Sequence[DeadLetters]) -> None:
        try:
            while due and not self.is_fenced:
                end = await self.owner.write_dead_letters(self.key, self.partition, due)
                for one in due:
                    if one.first_offset <= end:
                        self.state.dead_letters_ended(one.first_offset, min(one.last_offset, end))
                self._store()
                due = self.state.dead_letters()
        finally:
            self._dead_letters = None

    async def all_written(self) -> None:
        """Wait until all is stored, and dead letters that are due are written; not long if they cannot be."""
        await self.stored()
        if self._dead_letters is not None:
            await asyncio.wait([self._dead_letters], timeout=LAST_WRITES_S)
            await self.stored()

    def _answer(self, code: ErrorCode) -> None:
        waiting, self._next = self._next, None
        _complete(waiting, code)

    # --- time

    def _arm(self) -> None:
        if self.state.wake_at < self._armed:
            self._armed = self.state.wake_at
            self.owner.timer.at(self._armed, self._tick)

    def _tick(self) -> None:
        self._armed = inf
        if not self.is_fenced:
            if self.state.tick(self.owner.clock.monotonic()):
                self._store()
                self._wake()
            self._arm()

    def _wake(self) -> None:
        for wake in list(self.waiters):
            wake()


class SharePartitions:
    """Loads and keeps share partitions."""

    def __init__(
        self,
        topics: MetadataCache,
        persister: Persister,
        clock: Clock,
        limits: Callable[[str], ShareLimits],
        reset_offset: Callable[[str, Partition], Awaitable[int]],
        write_dead_letters: WriteDeadLetters,
    ) -> None:
        """`limits` are those of a group, `reset_offset` is where it begins to read a partition (its
        `share.auto.offset.reset`)."""
        self._topics = topics
        self.persister = persister
        self.clock = clock
        self._limits = limits
        self._reset_offset = reset_offset
        self.write_dead_letters = write_dead_letters
        self.timer = DeadlineTimer(clock)
        self.tasks = BackgroundTasks()
        self._loaded: dict[SharePartitionKey, SharePartition] = {}
        self._loading: dict[SharePartitionKey, asyncio.Future[SharePartition]] = {}
        self._ending: dict[SharePartitionKey, asyncio.Future[None]] = {}
        """Writes of partitions that were dropped. If one were stored after a later load has read the state, its records
        would come again although they were answered."""
        topics.add_change_listener(self._leaders_changed)

    @property
    def all_loaded(self) -> list[SharePartition]:
        """Those in memory."""
        return list(self._loaded.values())

    async def get(self, key: SharePartitionKey) -> SharePartition:
        """Loaded. Raises BrokerError: `unknown_topic_id`, `not_leader_or_follower`, `invalid_request` (never
        initialized), or why the state cannot be read now, which is retriable."""
        if (found := self.loaded(key)) is not None:
            return found
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = self.tasks.add(self._load(key))
            loading.add_done_callback(partial(self._load_ended, key))
        return await asyncio.shield(loading)

    def _load_ended(self, key: SharePartitionKey, loading: asyncio.Future[SharePartition]) -> None:
        del self._loading[key]
        if not loading.cancelled():
            loading.exception()  # asyncio would log it as an error if nobody waits any more

    def loaded(self, key: SharePartitionKey) -> SharePartition | None:
        """If it is in memory, and not fenced."""
        found = self._loaded.get(key)
        return None if found is None or found.is_fenced else found

    async def _load(self, key: SharePartitionKey) -> SharePartition:
        partition = self._led(key)
        epoch = partition.leader_epoch
        if (ending := self._ending.get(key)) is not None:
            await asyncio.wait([ending])
        try:
            stored = await self.persister.read(key, epoch)
            stored = await self._in_log(key, epoch, partition.log.log_end_offset, stored)
        except BrokerError as error:
            raise BrokerError(_SHOWN.get(error.code, error.code), error.message) from error
        reset = await self._reset_offset(key.group_id, partition) if stored.start_offset < 0 else 0
        log = partition.log
        state = SharePartitionState(
            stored,
            epoch,
            self._limits(key.group_id),
            reset_offset=reset,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
        )
        share = SharePartition(key, partition, state, self)
        if stored.start_offset < 0 and (code := await share.stored()) is not ErrorCode.none:
            # Else the group would begin elsewhere, should this broker die before the first acknowledgement.
            share.fence()
            raise BrokerError(code, "the start of the share group could not be stored")
        if self._led(key) is not partition or partition.leader_epoch != epoch:
            share.fence()
            raise BrokerError(ErrorCode.not_leader_or_follower, "another leader was elected meanwhile")
        self._loaded[key] = share
        share.set_limits(state.limits)  # begins the dead letters that an earlier leader has left
        return share

    async def _in_log(self, key: SharePartitionKey, epoch: int, log_end: int, stored: ShareState) -> ShareState:
        """The state without the records that an unclean election has lost. What is stored of them must go: others get
        their offsets, and a later leader would take these for done. (Kafka leaves those out.) A start alone may be
        behind the end: offsets were altered to it."""
        if all(batch.last_offset < log_end or not batch.delivery_state for batch in stored.state_batches):
            return stored
        start = min(stored.start_offset, log_end)
        kept = [
            batch._replace(last_offset=min(batch.last_offset, log_end - 1))
            for batch in stored.state_batches
            if batch.first_offset < log_end
        ]
        await self.persister.initialize(key, stored.state_epoch, start)
        await self.persister.write(key, ShareWrite(stored.state_epoch, epoch, start, state_batches=kept))
        return stored._replace(start_offset=start, state_batches=kept)

    def _led(self, key: SharePartitionKey) -> Partition:
        topic = self._topics.metadata.topic_by_id(key.topic_id)
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_id, f"there is no topic with id {key.topic_id}")
        return self._topics.partition(TopicPartition(topic.name, key.partition))

    def _leaders_changed(self, names: Collection[str]) -> None:
        for key, share in list(self._loaded.items()):
            try:
                is_led = self._led(key) is share.partition and share.partition.leader_epoch == share.state.leader_epoch
            except BrokerError:
                is_led = False
            if share.is_fenced or not is_led:
                self._drop(key)

    def _drop(self, key: SharePartitionKey) -> None:
        share = self._loaded.pop(key)
        share.fence()
        if share.writing is not None:
            self._ending[key] = share.writing
            share.writing.add_done_callback(lambda _: self._ending.pop(key, None))

    def member_left(self, group_id: str, member_id: str, is_empty: Callable[[], bool]) -> None:
        """A member's session has ended: others get what it has. Then the partitions are forgotten if the group has no
        session here (`is_empty`): its offsets may be altered now."""
        # At once: the member may open another session before the task begins, and must keep what it gets in that.
        shares = [share for key, share in self._loaded.items() if key.group_id == group_id and not share.is_fenced]
        released = [share for share in shares if share.state.release(member_id)]
        self.tasks.begin(f"releasing records of {member_id}", self._released(group_id, released, is_empty))

    async def _released(self, group_id: str, released: Sequence[SharePartition], is_empty: Callable[[], bool]) -> None:
        await asyncio.gather(*(share.stored() for share in released))
        loading = [load for key, load in self._loading.items() if key.group_id == group_id]
        if loading:  # for a request of the session; else they would be kept, and not know that offsets were altered
            await asyncio.wait(loading)
        if is_empty():
            shares = [share for key, share in self._loaded.items() if key.group_id == group_id]
            await asyncio.gather(*(share.all_written() for share in shares if not share.is_fenced))
        if is_empty():
            self.drop_group(group_id)

    def drop_group(self, group_id: str) -> None:
        """Forget the group's partitions: its offsets were altered, or it was deleted."""
        for key in [key for key in self._loaded if key.group_id == group_id]:
            self._drop(key)

    def limits_changed(self, group_id: str) -> None:
        """The group's settings were changed."""
        for key, share in self._loaded.items():
            if key.group_id == group_id:
                share.set_limits(self._limits(group_id))

    async def close(self) -> None:
        """Drop all. Call it when no requests come any more."""
        for key in list(self._loaded):
            self._drop(key)
        self.timer.close()
        await self.tasks.close()


def _complete(future: asyncio.Future[ErrorCode] | None, code: ErrorCode) -> None:
    if future is not None and not future.done():
        future.set_result(_SHOWN.get(code, code))
