"""What the group coordinator and the transaction coordinator share (Kafka's `CoordinatorRuntime`).

An id belongs to one partition of an internal topic. The coordinator has a shard for each partition that this broker
leads: it loads, unloads and closes them, finds the shard of an id, and starts the periodic expiry.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.coordinator.deadline_timer import DeadlineTimer
from broker.errors import ErrorCode

# A record's string has at most 32767 bytes, and a character has up to four.
MAX_ID_LENGTH = 8191

# The partitions of ids up to this length are cached. The cache stays below 2 MB.
CACHED_ID_LENGTH = 128


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of an id: |Java's String.hashCode| mod `partitions`, as in Kafka."""
    return (_cached if len(group_id) <= CACHED_ID_LENGTH else _hashed)(group_id, partitions)


def _hashed(group_id: str, partitions: int) -> int:
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    if hashed == 0x80000000:
        return 0  # Kafka's Utils.abs(Integer.MIN_VALUE)
    return (hashed if hashed < 0x80000000 else 0x100000000 - hashed) % partitions


_cached = lru_cache(maxsize=4_096)(_hashed)


class Shard(Protocol):
    """The groups or transactions of one partition."""

    loaded: bool

    async def load(self) -> None:
        """Replay the partition and set `loaded`."""

    def unload(self, error: ErrorCode) -> None:
        """Forget everything. Requests that wait get `error`. After NOT_COORDINATOR nothing more is appended."""

    async def flush(self) -> None:
        """Wait until all writes so far have ended."""

    def expire(self) -> None:
        """Remove what has expired."""


AnyShard = TypeVar("AnyShard", bound=Shard)


class ShardedCoordinator(Generic[AnyShard]):
    """All ids whose partitions this broker leads. `load` a partition before its ids are served."""

    def __init__(
        self,
        make_shard: Callable[[int, DeadlineTimer], AnyShard],
        clock: Clock,
        partitions: int,
        *,
        expiry_interval_ms: int,
        invalid_id: ErrorCode,
    ) -> None:
        """`invalid_id` is the error for an id that is empty or too long for a record."""
        self._make_shard = make_shard
        self._clock = clock
        self.partitions = partitions
        """Of the internal topic. Until it exists, how many it will have if this broker creates it."""
        self._expiry_interval_ms = expiry_interval_ms
        self._invalid_id = invalid_id
        self._shards: dict[int, AnyShard] = {}
        self._loads: dict[int, asyncio.Future[None]] = {}
        self._ending = BackgroundTasks()
        """Shards that were unloaded, and whose last appends have not ended."""
        self._timer = DeadlineTimer(clock)
        self._closed = False
        self._expires = False

    # --- partitions ------------------------------------------------------------------------------

    def partition_for(self, coordinated_id: str) -> int:
        """The partition whose leader is the id's coordinator (FindCoordinator)."""
        return partition_for(coordinated_id, self.partitions)

    def coordinates(self, partition: int) -> bool:
        """Whether this broker coordinates the partition. It does so a moment after it became its leader."""
        return partition in self._shards

    def load(self, partition: int) -> asyncio.Future[None]:
        """Become the coordinator of a partition: replay it, then serve it.

        It begins at once. Until the future is done, requests get COORDINATOR_LOAD_IN_PROGRESS. If the store's `read`
        raises, so does the future, and the partition is not served. After an `unload` nothing is raised.
        """
        if partition not in self._shards:
            self._shards[partition] = shard = self._make_shard(partition, self._timer)
            self._loads[partition] = asyncio.ensure_future(self._load(partition, shard))
        return self._loads[partition]

    async def _load(self, partition: int, shard: AnyShard) -> None:
        try:
            await shard.load()
        except BaseException as error:
            if self._shards.get(partition) is shard:
                del self._shards[partition]
            elif isinstance(error, Exception):
                return  # this broker was deposed during the load, so what it read means nothing
            raise
        if not self._expires:
            self._expires = True
            self._schedule_expiry()

    async def wait_for_load(self, partition: int, timeout_s: float) -> None:
        """Wait until the partition is loaded, but at most `timeout_s`."""
        load = self._loads.get(partition)
        if load is not None:
            await asyncio.wait([load], timeout=timeout_s)

    def unload(self, partition: int) -> None:
        """Stop serving a partition. Requests that wait get NOT_COORDINATOR, and nothing more is appended."""
        shard = self._shards.pop(partition, None)
        self._loads.pop(partition, None)
        if shard is not None:
            shard.unload(ErrorCode.not_coordinator)
            self._ending.begin(f"ending partition {partition} of a coordinator", shard.flush())

    async def close(self) -> None:
        """Stop. Requests that wait get COORDINATOR_NOT_AVAILABLE. Returns when all appends have ended."""
        self._closed = True
        self._timer.close()
        for load in self._loads.values():
            load.cancel()
        shards, self._shards = list(self._shards.values()), {}
        async with contextlib.AsyncExitStack() as steps:  # if one raises, the others are taken all the same
            steps.push_async_callback(self._ending.wait)
            for shard in shards:
                steps.push_async_callback(shard.flush)
            for shard in shards:
                steps.callback(shard.unload, ErrorCode.coordinator_not_available)

    # --- shards, for the requests of a subclass ------------------------------------------------

    def _shard_of(self, coordinated_id: str, *, may_be_empty: bool = False) -> AnyShard | ErrorCode:
        """The shard of an id, or why there is none."""
        if self._closed:
            return ErrorCode.coordinator_not_available
        if len(coordinated_id) > MAX_ID_LENGTH or not (coordinated_id or may_be_empty):
            return self._invalid_id
        shard = self._shards.get(partition_for(coordinated_id, self.partitions))
        if shard is None:
            return ErrorCode.not_coordinator
        return shard if shard.loaded else ErrorCode.coordinator_load_in_progress

    def _loading_error(self) -> ErrorCode:
        """COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded, for lists of everything."""
        loading = any(not shard.loaded for shard in self._shards.values())
        return ErrorCode.coordinator_load_in_progress if loading else ErrorCode.none

    def _schedule_expiry(self) -> None:
        self._timer.at(self._clock.monotonic() + self._expiry_interval_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._schedule_expiry()
        for shard in self._shards.values():
            shard.expire()
