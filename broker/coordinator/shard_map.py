"""Which `__consumer_offsets` partitions this broker coordinates, and where a group is found.

Owned by the group coordinator. Loads, unloads and closes shards, routes group ids to them, and sets
off the expiry of offsets in all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from broker.clock import Clock
from broker.coordinator.deadline_timer import DeadlineTimer
from broker.coordinator.group_config import GroupConfig
from broker.coordinator.group_shard import GroupShard
from broker.coordinator.group_store import GroupStore
from broker.errors import ErrorCode

__all__ = ["ShardMap", "partition_for"]

# Ids are kept in records, whose strings end at 32767 bytes; a character has up to four.
MAX_ID_LENGTH = 8191


@lru_cache(maxsize=16_384)
def partition_for(group_id: str, partitions: int) -> int:
    """The `__consumer_offsets` partition of a group: |Java's String.hashCode| mod `partitions`, as in Kafka."""
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    if hashed == 0x80000000:
        return 0  # Kafka's Utils.abs(Integer.MIN_VALUE)
    return (hashed if hashed < 0x80000000 else 0x100000000 - hashed) % partitions


class ShardMap:
    """Partition → shard, from the first call of `load` on."""

    def __init__(self, store: GroupStore, clock: Clock, config: GroupConfig, partitions: int) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._partitions = partitions
        self._shards: dict[int, GroupShard] = {}
        self._timer = DeadlineTimer(clock)
        self._closed = False
        self._expires = False

    def partition_for(self, group_id: str) -> int:
        return partition_for(group_id, self._partitions)

    def all(self) -> Collection[GroupShard]:
        return self._shards.values()

    def locate(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard | ErrorCode:
        """The shard of a group, or why it cannot be asked."""
        if self._closed:
            return ErrorCode.coordinator_not_available
        if len(group_id) > MAX_ID_LENGTH or not (group_id or may_be_empty):
            return ErrorCode.invalid_group_id
        shard = self._shards.get(partition_for(group_id, self._partitions))
        if shard is None:
            return ErrorCode.not_coordinator
        return shard if shard.loaded else ErrorCode.coordinator_load_in_progress

    async def load(self, partition: int) -> None:
        """Replay a partition and serve it from then on; nothing to do when it is served already."""
        if partition in self._shards:
            return
        shard = GroupShard(partition, self._store, self._clock, self._config, self._timer)
        self._shards[partition] = shard
        try:
            await shard.load()
        except BaseException:
            if self._shards.get(partition) is shard:
                del self._shards[partition]
            raise
        if not self._expires:
            self._expires = True
            self._schedule_expiry()

    async def unload(self, partition: int) -> None:
        """Serve a partition no longer."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.unload(ErrorCode.not_coordinator)
            await shard.flush()

    async def close(self) -> None:
        """Serve nothing any more."""
        self._closed = True
        self._timer.close()
        shards, self._shards = list(self._shards.values()), {}
        for shard in shards:
            shard.unload(ErrorCode.coordinator_not_available)
        for shard in shards:
            await shard.flush()

    def run_timers(self) -> None:
        """Do now what is due by the clock."""
        self._timer.run_due()

    def _schedule_expiry(self) -> None:
        interval = self._config.offsets_retention_check_interval_ms / 1000
        self._timer.at(self._clock.monotonic() + interval, self._expire)

    def _expire(self) -> None:
        for shard in self._shards.values():
            shard.expire()
        self._schedule_expiry()
