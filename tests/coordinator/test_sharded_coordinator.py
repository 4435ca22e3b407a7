"""The partition of an id, and the partitions that a coordinator gets and loses (P7)."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from broker.clock import ManualClock
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.record_store import RecordRun
from broker.coordinator.sharded_coordinator import MAX_ID_LENGTH, partition_for
from broker.errors import BrokerError, ErrorCode
from tests.support.coordinators import Groups, running_groups, settle
from tests.support.record_stores import GatedRecordStore, MemoryRecordStore


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("polygenelubricants", -(2**31)),  # of which Java has no absolute value
        ("x" * 200, None),  # too long to be kept
    ],
)
def test_partition_is_javas_hash_code_modulo_the_partitions(name: str, hashed: int | None) -> None:
    if hashed is None:
        hashed = 0
        for letter in name:
            hashed = (31 * hashed + ord(letter)) % 2**32
        hashed -= 2**32 if hashed >= 2**31 else 0
    expected = 0 if hashed == -(2**31) else abs(hashed) % 50
    assert [partition_for(name, 50) for _ in range(2)] == [expected, expected]


def test_long_ids_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(20):
            partition_for(f"{number}".ljust(MAX_ID_LENGTH, "x"), 50)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10 * MAX_ID_LENGTH


class Store(MemoryRecordStore):
    """Reads wait for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.reads = 0

    async def read(self, partition: int) -> AsyncIterator[RecordRun]:
        self.reads += 1
        gate = self.gate
        await gate.wait()
        async for run in super().read(partition):
            yield run


async def described(coordinator: GroupCoordinator) -> ErrorCode:
    return (await coordinator.describe("g")).error


async def test_a_coordinator_that_is_deposed_during_its_load_and_elected_again_serves_the_second_load() -> None:
    store = Store()
    coordinator = GroupCoordinator(store, ManualClock(), GroupSettings(), 1)
    first = coordinator.load(0)
    await settle()
    assert await described(coordinator) is ErrorCode.coordinator_load_in_progress
    coordinator.unload(0)
    assert await described(coordinator) is ErrorCode.not_coordinator
    gate, store.gate = store.gate, asyncio.Event()
    second = coordinator.load(0)
    gate.set()
    await first
    assert await described(coordinator) is ErrorCode.coordinator_load_in_progress
    store.gate.set()
    await second
    assert await described(coordinator) is ErrorCode.none
    assert store.reads == 2
    await coordinator.load(0)
    assert store.reads == 2, "it is served already"
    await coordinator.close()


async def test_a_load_that_fails_after_the_coordinator_was_deposed_harms_nobody() -> None:
    class Failing(Store):
        async def read(self, partition: int) -> AsyncIterator[RecordRun]:
            async for run in super().read(partition):
                yield run
            if self.reads == 1:
                raise BrokerError(ErrorCode.not_leader_or_follower)

    store = Failing()
    coordinator = GroupCoordinator(store, ManualClock(), GroupSettings(), 1)
    first = coordinator.load(0)
    await settle()
    coordinator.unload(0)
    second = coordinator.load(0)
    store.gate.set()
    await asyncio.gather(first, second)
    assert await described(coordinator) is ErrorCode.none
    await coordinator.close()


async def test_close_ends_a_load_that_waits_for_followers() -> None:
    coordinator = GroupCoordinator(Store(), ManualClock(), GroupSettings(), 1)
    load = coordinator.load(0)
    await settle()
    await coordinator.close()
    with pytest.raises(asyncio.CancelledError):
        await load


async def test_a_deposed_coordinator_stores_nothing_more() -> None:
    store = GatedRecordStore()
    groups = Groups(store)
    async with running_groups(groups):
        store.gate.clear()
        under_way = asyncio.ensure_future(groups.commit(1))
        await store.until_waiting()
        queued = asyncio.ensure_future(groups.commit(2))
        await settle()
        groups.coordinator.unload(groups.coordinator.partition_for("g"))
        store.gate.set()
        assert (await under_way, await queued) == (ErrorCode.none, ErrorCode.not_coordinator)
        assert store.appends == 1
