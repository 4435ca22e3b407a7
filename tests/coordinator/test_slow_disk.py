"""A coordinator with a slow disk: the event loop never writes, and memory is never ahead of the log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.clock import ManualClock
from broker.cluster.metadata_cache import MetadataCache
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.record_store import LogRecordStore
from broker.coordinator.transaction_markers import LogMarkerWriter
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.log.log_config import LogConfig
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from broker.replica.partition import Partition
from tests.support.batches import open_log
from tests.support.slow_disk import LATE_MS, SlowDisk

OFFSETS = TopicPartition("__consumer_offsets", 0)
T0 = TopicPartition("t", 0)


class Broker:
    """One partition of offsets with its groups, and markers for it."""

    def __init__(self, directory: Path, clock: ManualClock, threads: ThreadPoolExecutor) -> None:
        self.log = open_log(directory / "__consumer_offsets-0", LogConfig(), clock)
        self.partition = Partition(OFFSETS, self.log, 0, threads, threads)
        topics = cast(MetadataCache, SimpleNamespace(partition=lambda tp: {OFFSETS: self.partition}[tp]))
        self.store = LogRecordStore(topics, OFFSETS.topic, clock)
        self._clock = clock
        self.groups = self.coordinator()
        self.markers = LogMarkerWriter(topics, self._ended)

    def _ended(self, partition: int, producer: int, commit: bool, waiting: Awaitable[object] | None) -> None:
        self.groups.transaction_ended(partition, producer, commit, waiting)

    def coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.store, self._clock, GroupSettings(), 1)

    def commit(self, offset: int, producer: int = -1) -> asyncio.Task[ErrorCode]:
        """A plain commit or one in the transaction of `producer`."""
        named = None if producer < 0 else ProducerIdAndEpoch(producer, 0)
        request = CommitRequest("g", {T0: OffsetAndMetadata(offset)}, -1, "", producer=named)

        async def code() -> ErrorCode:
            return (await self.groups.commit_offsets(request))[T0]

        return asyncio.ensure_future(code())

    def end(self, producer: int, *, commit: bool = True) -> asyncio.Future[object]:
        waiting = self.markers.write(OFFSETS, EndMarker(producer, 0, ControlType(commit), 0))
        assert waiting is not None
        return asyncio.ensure_future(waiting)

    async def state(self, groups: GroupCoordinator | None = None) -> tuple[int, bool]:
        """(committed offset, whether a transaction may still move it)."""
        found = await (groups or self.groups).fetch_offsets("g", [T0])
        stable = await (groups or self.groups).fetch_offsets("g", [T0], require_stable=True)
        return found.offsets[T0].offset, bool(stable.unstable)

    async def check_replay(self) -> None:
        """What is in memory is what the log tells."""
        again = self.coordinator()
        await again.load(0)
        assert await self.state(again) == await self.state()


@pytest.fixture
async def slow(
    tmp_path: Path, clock: ManualClock, disk: SlowDisk, threads: ThreadPoolExecutor
) -> AsyncIterator[Broker]:
    """The commit of offset 1 was still queued at its end."""
    broker = Broker(tmp_path, clock, threads)
    await broker.groups.load(0)
    disk.late_ms = LATE_MS
    assert await broker.commit(1) is ErrorCode.none
    disk.late_ms = 0
    yield broker
    disk.free.set()
    await broker.groups.close()


async def test_a_commit_waits_for_its_write_and_nobody_else_does(slow: Broker, disk: SlowDisk) -> None:
    first = slow.commit(2)
    await disk.writing()
    rest = [slow.commit(3), slow.commit(4)]
    assert await slow.state() == (1, False)
    disk.free.set()
    assert await asyncio.gather(first, *rest) == [ErrorCode.none] * 3
    assert await slow.state() == (4, False)
    assert (disk.at_once, disk.elsewhere) == (1, 2), "what came meanwhile is written together"
    await slow.check_replay()


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_ends_all_that_came_before_it(slow: Broker, disk: SlowDisk, commit: bool) -> None:
    first = slow.commit(5, producer=7)
    await disk.writing()
    second = slow.commit(6, producer=7)
    plain = slow.commit(2)
    await asyncio.sleep(0)
    ended = slow.end(7, commit=commit)
    behind = slow.commit(3)
    await asyncio.sleep(0)
    assert await slow.state() == (1, True)
    disk.free.set()
    assert await first is await second is ErrorCode.none
    await ended
    assert [await plain, await behind] == [ErrorCode.none] * 2
    assert await slow.state() == (3, False)
    assert slow.partition.last_stable_offset == slow.log.log_end_offset
    assert disk.at_once == 1
    await slow.check_replay()


async def test_what_a_transaction_committed_holds_no_earlier_than_its_marker_is_written(
    slow: Broker, disk: SlowDisk
) -> None:
    disk.free.set()
    await slow.commit(5, producer=7)
    await disk.writing()
    disk.free.clear()
    ended = slow.end(7)
    await disk.writing()
    next_one = slow.commit(6, producer=8)
    await asyncio.sleep(0)
    assert await slow.state() == (1, True)
    disk.free.set()
    await ended
    assert await next_one is ErrorCode.none
    assert await slow.state() == (5, True)
    await slow.check_replay()


async def test_a_disk_that_is_full_is_told_to_each_and_changes_nothing(slow: Broker, disk: SlowDisk) -> None:
    disk.free.set()
    await slow.commit(5, producer=7)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    ended, plain = slow.end(7), slow.commit(2)
    with pytest.raises(BrokerError, match="No space left"):
        await ended
    assert await plain is ErrorCode.not_coordinator
    assert await slow.state() == (1, True)
    disk.error = None
    await slow.end(7)
    assert await slow.state() == (5, False)
    await slow.check_replay()


async def test_a_partition_that_is_lost_or_deleted_is_told_to_who_waits(slow: Broker, disk: SlowDisk) -> None:
    first = slow.commit(2)
    await disk.writing()
    ended = slow.end(7)
    slow.partition.close()
    slow.log.delete()
    disk.free.set()
    assert await first is ErrorCode.not_coordinator
    with pytest.raises(BrokerError) as raised:
        await ended
    assert raised.value.code is ErrorCode.not_leader_or_follower


async def test_a_client_that_hangs_up_leaves_its_commit_and_its_marker_under_way(slow: Broker, disk: SlowDisk) -> None:
    disk.free.set()
    await slow.commit(5, producer=7)
    await disk.writing()
    disk.free.clear()
    ended = slow.end(7)
    await disk.writing()
    plain = slow.commit(6)
    await asyncio.sleep(0)
    ended.cancel()
    plain.cancel()
    await asyncio.sleep(0)
    disk.free.set()
    assert await slow.commit(7) is ErrorCode.none
    assert await slow.state() == (7, False)
    await slow.check_replay()


async def test_a_load_reads_what_is_being_written(slow: Broker, disk: SlowDisk) -> None:
    disk.free.set()
    await slow.commit(5, producer=7)
    await disk.writing()
    disk.free.clear()
    slow.groups.unload(0)
    slow.groups = slow.coordinator()
    ended = slow.end(7)
    await disk.writing()
    loading = asyncio.ensure_future(slow.groups.load(0))
    await asyncio.sleep(0)
    assert not loading.done()
    disk.free.set()
    await asyncio.gather(loading, ended)
    assert await slow.state() == (5, False)
