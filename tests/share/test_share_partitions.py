"""The share partitions of a broker: answers after the write, one write at a time, locks, fencing, loading."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError, ErrorCode
from broker.share import share_partitions
from broker.share.persister import Persister, SharePartitionKey, ShareState, ShareWrite, StateBatch
from broker.share.share_partition_state import (
    AcquiredRecords,
    DeadLetters,
    FetchedBatch,
    ShareLimits,
    Wanted,
    acknowledgements,
)
from broker.share.share_partitions import SharePartition, SharePartitions
from tests.share.test_share_coordinator import running

KEY = SharePartitionKey("g", uuid.UUID(int=1), 0)
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class MemoryPersister(Persister):
    """Writes wait while `gate` is closed. The next ones fail with `fail_with`."""

    def __init__(self) -> None:
        self.state = ShareState(0, 1)
        self.writes: list[ShareWrite] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail_with: ErrorCode | None = None

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        await self.gate.wait()
        if self.fail_with is not None:
            raise BrokerError(self.fail_with)
        return self.state

    async def write(self, key: SharePartitionKey, write: ShareWrite) -> None:
        self.writes.append(write)
        await self.gate.wait()
        if self.fail_with is not None:
            raise BrokerError(self.fail_with)


class Topics:
    """The metadata of one topic, whose partition 0 this broker leads."""

    def __init__(self) -> None:
        self.metadata = self
        self.elect()
        self.listeners: list[Callable[[Collection[str]], None]] = []
        self.is_led = True

    def elect(self, epoch: int = 3, log_end: int = 100) -> None:
        log = SimpleNamespace(log_start_offset=0, log_end_offset=log_end)
        self.led = SimpleNamespace(leader_epoch=epoch, log=log)

    def topic_by_id(self, topic_id: uuid.UUID) -> Any:
        return SimpleNamespace(name="t") if topic_id == KEY.topic_id else None

    def partition(self, tp: object) -> Any:
        if not self.is_led:
            raise BrokerError(ErrorCode.not_leader_or_follower)
        return self.led

    def add_change_listener(self, on_change: Callable[[Collection[str]], None]) -> None:
        self.listeners.append(on_change)

    def changed(self) -> None:
        for listener in self.listeners:
            listener(["t"])


class World:
    def __init__(self) -> None:
        self.persister = MemoryPersister()
        self.topics = Topics()
        self.clock = ManualClock()
        self.reset = 40
        self.limits = ShareLimits()
        self.dead: list[list[DeadLetters]] = []
        self.buried: list[DeadLetters] = []
        self.grave = asyncio.Event()
        self.grave.set()

        async def reset_offset(group_id: str, partition: object) -> int:
            return self.reset

        self.partitions = SharePartitions(
            self.topics,  # type: ignore[arg-type]
            self.persister,
            self.clock,
            lambda group_id: self.limits,
            reset_offset,
            self.write_dead_letters,
        )

    async def write_dead_letters(self, key: object, source: object, due: Sequence[DeadLetters]) -> int:
        self.dead.append(list(due))
        await self.grave.wait()
        self.buried += due
        return due[-1].last_offset

    async def get(self) -> SharePartition:
        return await self.partitions.get(KEY)

    def advance(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        self.partitions.timer.run_due()


@pytest.fixture
def world() -> World:
    return World()


def fetch(share: SharePartition, member: str = "a", first: int = 0, size: int = 10) -> list[AcquiredRecords]:
    batch = FetchedBatch(first, first + size - 1)
    return share.acquire(member, first, [batch], Wanted(size, size))


def acknowledging(share: SharePartition, first: int, last: int, kind: int = ACCEPT) -> asyncio.Future[ErrorCode]:
    return asyncio.ensure_future(share.acknowledge("a", acknowledgements([(first, last, [kind])])))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_acknowledgement_is_answered_once_it_is_stored(world: World) -> None:
    share = await world.get()
    fetch(share)
    world.persister.gate.clear()
    answer = acknowledging(share, 0, 4)
    await settle()
    assert not answer.done()
    world.persister.gate.set()
    assert await answer is ErrorCode.none
    assert world.persister.writes == [ShareWrite(1, 3, 5, 0, [])]


async def test_acknowledgements_during_a_write_are_stored_together(world: World) -> None:
    share = await world.get()
    fetch(share)
    world.persister.gate.clear()
    answers = [acknowledging(share, 9, 9)]
    await settle()
    answers += [acknowledging(share, 3, 4), acknowledging(share, 6, 7)]
    await settle()
    world.persister.gate.set()
    assert await asyncio.gather(*answers) == [ErrorCode.none] * 3
    assert [write.state_batches for write in world.persister.writes] == [
        [StateBatch(9, 9, ACCEPT + 1, 1)],
        [StateBatch(3, 4, 2, 1), StateBatch(6, 7, 2, 1)],
    ]


async def test_what_renews_only_is_answered_at_once_and_keeps_the_lock(world: World) -> None:
    share = await world.get()
    fetch(share)
    world.advance(20)
    assert await acknowledging(share, 0, 9, RENEW) is ErrorCode.none
    world.advance(20)
    assert await acknowledging(share, 0, 9) is ErrorCode.none
    assert len(world.persister.writes) == 1


async def test_a_refused_acknowledgement_changes_nothing(world: World) -> None:
    share = await world.get()
    fetch(share)
    with pytest.raises(BrokerError) as caught:
        await share.acknowledge("b", acknowledgements([(0, 4, [ACCEPT])]))
    assert caught.value.code is ErrorCode.invalid_record_state
    assert not world.persister.writes


async def test_after_a_failed_write_the_records_are_the_members_again(world: World) -> None:
    share = await world.get()
    fetch(share)
    world.persister.fail_with = ErrorCode.not_coordinator
    assert await acknowledging(share, 0, 9) is ErrorCode.coordinator_not_available
    assert fetch(share, "b") == []
    world.persister.fail_with = None
    assert await acknowledging(share, 0, 9) is ErrorCode.none


async def test_a_write_that_breaks_keeps_nobody_waiting(world: World, caplog: pytest.LogCaptureFixture) -> None:
    share = await world.get()
    fetch(share)
    write, broken = world.persister.write, asyncio.Event()

    async def breaks(key: SharePartitionKey, asked: ShareWrite) -> None:
        world.persister.write = write  # type: ignore[method-assign]
        await broken.wait()
        raise KeyError("a bug")

    world.persister.write = breaks  # type: ignore[method-assign,assignment]
    first = acknowledging(share, 0, 4)
    await settle()
    second = acknowledging(share, 5, 9)
    await settle()
    broken.set()
    async with asyncio.timeout(5):
        assert [await first, await second] == [ErrorCode.unknown_server_error, ErrorCode.none]
    assert "a bug" in caplog.text


async def test_an_expired_lock_wakes_who_waits_and_is_stored(world: World) -> None:
    share = await world.get()
    fetch(share)
    woken: list[int] = []
    share.waiters.add(lambda: woken.append(1))
    world.advance(29)
    assert not woken
    world.advance(2)
    assert woken
    await settle()
    assert world.persister.writes[-1].state_batches == [StateBatch(0, 9, 0, 1)]
    assert fetch(share, "b") == [AcquiredRecords(0, 9, 2)]


async def test_an_expired_lock_that_cannot_be_stored_is_stored_later(world: World) -> None:
    share = await world.get()
    fetch(share)
    world.persister.fail_with = ErrorCode.coordinator_not_available
    world.advance(31)
    await settle()
    assert len(world.persister.writes) == 1
    world.persister.fail_with = None
    world.advance(share_partitions.RETRY_S)
    await settle()
    assert world.persister.writes[-1].state_batches == [StateBatch(0, 9, 0, 1)]


async def test_a_released_member_gives_all_it_has(world: World) -> None:
    share = await world.get()
    fetch(share)
    for _ in range(2):
        world.partitions.member_left("g", "a", lambda: False)
        await settle()
    assert fetch(share, "b") == [AcquiredRecords(0, 9, 2)]


async def test_a_member_that_comes_back_at_once_keeps_what_it_gets_then(world: World) -> None:
    share = await world.get()
    fetch(share)
    world.partitions.member_left("g", "a", lambda: False)
    assert fetch(share, first=10) == [AcquiredRecords(10, 19, 1)]
    await settle()
    assert await acknowledging(share, 10, 19) is ErrorCode.none


async def test_what_is_loaded_for_a_group_that_has_left_is_forgotten(world: World) -> None:
    """Else a request that its client has given up would leave it here, whatever is done to the group elsewhere."""
    world.persister.gate.clear()
    loading = asyncio.ensure_future(world.get())
    await settle()
    world.partitions.member_left("g", "a", lambda: True)
    await settle()
    world.persister.gate.set()
    assert (await loading).state.start_offset == 0
    await settle()
    assert world.partitions.loaded(KEY) is None


async def test_what_is_fenced_answers_at_once(world: World) -> None:
    share = await world.get()
    share.fence()
    assert await share.stored() is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("code", [ErrorCode.fenced_leader_epoch, ErrorCode.fenced_state_epoch])
async def test_a_fenced_leader_answers_so_and_loads_again(world: World, code: ErrorCode) -> None:
    share = await world.get()
    fetch(share)
    world.persister.fail_with = code
    assert await acknowledging(share, 0, 4) is ErrorCode.not_leader_or_follower
    assert share.is_fenced
    assert fetch(share, "b") == []
    assert await acknowledging(share, 5, 9) is ErrorCode.not_leader_or_follower
    world.persister.fail_with = None
    assert await world.get() is not share


async def test_a_deposed_leader_answers_who_waits_and_wakes_fetches(world: World) -> None:
    share = await world.get()
    fetch(share)
    woken: list[int] = []
    share.waiters.add(lambda: woken.append(1))
    world.persister.gate.clear()
    first = acknowledging(share, 0, 4)
    await settle()
    second = acknowledging(share, 5, 9)
    await settle()
    world.topics.elect(4)
    world.topics.changed()
    assert await second is ErrorCode.not_leader_or_follower
    assert woken
    world.persister.gate.set()
    assert await first is ErrorCode.none  # it was stored
    later = await world.get()
    assert later is not share
    assert later.state.leader_epoch == 4


async def test_other_changes_of_the_metadata_fence_nobody(world: World) -> None:
    share = await world.get()
    world.topics.changed()
    assert await world.get() is share


async def test_a_new_group_begins_where_its_reset_says_and_stores_that_first(world: World) -> None:
    world.persister.state = ShareState(-1, 1)
    world.persister.gate.clear()
    loading = asyncio.ensure_future(world.get())
    await settle()
    world.persister.gate.set()
    share = await loading
    assert (share.state.start_offset, world.persister.writes) == (40, [ShareWrite(1, 3, 40, 0, [])])


async def test_a_start_that_cannot_be_stored_is_not_used(world: World) -> None:
    world.persister.state = ShareState(-1, 1)

    async def write(key: SharePartitionKey, write: ShareWrite) -> None:
        raise BrokerError(ErrorCode.network_exception)

    world.persister.write = write  # type: ignore[method-assign]
    with pytest.raises(BrokerError) as caught:
        await world.get()
    assert caught.value.code is ErrorCode.coordinator_not_available


async def test_those_who_ask_during_a_load_share_it(world: World) -> None:
    world.persister.gate.clear()
    loads = [asyncio.ensure_future(world.get()) for _ in range(3)]
    await settle()
    loads[0].cancel()
    world.persister.gate.set()
    one, other = await asyncio.gather(*loads[1:])
    assert one is other


async def test_a_leader_that_is_deposed_during_a_load_serves_nothing(world: World) -> None:
    world.persister.gate.clear()
    loading = asyncio.ensure_future(world.get())
    await settle()
    world.topics.elect(4)
    world.topics.changed()
    world.persister.gate.set()
    with pytest.raises(BrokerError) as caught:
        await loading
    assert caught.value.code is ErrorCode.not_leader_or_follower
    assert (await world.get()).state.leader_epoch == 4


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower),
        (ErrorCode.invalid_request, ErrorCode.invalid_request),
        (ErrorCode.network_exception, ErrorCode.coordinator_not_available),
    ],
)
async def test_a_state_that_cannot_be_read_is_an_error(world: World, code: ErrorCode, shown: ErrorCode) -> None:
    world.persister.fail_with = code
    with pytest.raises(BrokerError) as caught:
        await world.get()
    assert caught.value.code is shown
    world.persister.fail_with = None
    await world.get()


async def test_a_load_that_fails_when_nobody_waits_any_more_is_no_error(world: World) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    world.persister.gate.clear()
    asking = asyncio.ensure_future(world.get())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    world.persister.fail_with = ErrorCode.invalid_request
    world.persister.gate.set()
    await world.partitions.tasks.wait()
    del asking  # it keeps the load alive
    gc.collect()
    assert not told


async def test_records_at_the_offsets_of_lost_ones_come_under_every_leader(world: World) -> None:
    """After an unclean election: at 100 other records follow than those that the group had."""
    async with running() as shares:
        world.partitions.persister = shares.coordinator
        await shares.coordinator.initialize(KEY, 1, 90)
        done = [StateBatch(95, 97, 2, 1), StateBatch(99, 130, 2, 1)]
        await shares.coordinator.write(KEY, ShareWrite(1, 3, 90, state_batches=done))
        world.topics.elect(4)
        assert (await world.get()).state.start_offset == 90
        world.topics.elect(5, log_end=200)
        world.topics.changed()
        got = fetch(await world.get(), first=90, size=110)
        assert got == [AcquiredRecords(90, 94, 1), AcquiredRecords(98, 98, 1), AcquiredRecords(100, 199, 1)]


async def test_what_this_broker_does_not_lead_is_refused(world: World) -> None:
    world.topics.is_led = False
    with pytest.raises(BrokerError) as caught:
        await world.get()
    assert caught.value.code is ErrorCode.not_leader_or_follower
    with pytest.raises(BrokerError) as caught:
        await world.partitions.get(KEY._replace(topic_id=uuid.UUID(int=9)))
    assert caught.value.code is ErrorCode.unknown_topic_id


async def test_a_dropped_group_is_loaded_again(world: World) -> None:
    share = await world.get()
    assert world.partitions.loaded(KEY) is share
    world.partitions.drop_group("other")
    assert not share.is_fenced
    world.partitions.drop_group("g")
    assert share.is_fenced
    assert world.partitions.loaded(KEY) is None


async def test_a_load_waits_for_the_write_of_what_was_dropped(world: World) -> None:
    """Else the write could be stored after the read, and records come again that were answered."""
    share = await world.get()
    fetch(share)
    write, stored = world.persister.write, asyncio.Event()

    async def slow(key: SharePartitionKey, asked: ShareWrite) -> None:
        await stored.wait()
        world.persister.state = ShareState(asked.start_offset, 1)

    world.persister.write = slow  # type: ignore[method-assign,assignment]
    answer = acknowledging(share, 0, 4)
    await settle()
    world.partitions.drop_group("g")
    world.persister.write = write  # type: ignore[method-assign]
    loading = asyncio.ensure_future(world.get())
    await settle()
    stored.set()
    assert await answer is ErrorCode.none
    assert (await loading).state.start_offset == 5


async def test_a_lower_delivery_limit_archives_at_once(world: World) -> None:
    share = await world.get()
    fetch(share)
    share.state.release("a")
    await share.stored()
    fetch(share)
    share.state.release("a")
    await share.stored()
    world.limits = ShareLimits(2)
    world.partitions.limits_changed("g")
    await settle()
    assert world.persister.writes[-1] == ShareWrite(1, 3, 10, 0, [])
    assert share.state.next_fetch_offset() == 10


async def test_closing_ends_what_waits(world: World) -> None:
    share = await world.get()
    fetch(share)
    world.persister.gate.clear()
    answer = acknowledging(share, 0, 4)
    await settle()
    await world.partitions.close()
    assert await answer is not ErrorCode.none


ARCHIVING, ARCHIVED = 3, 4
LETTERS = ShareLimits(has_dead_letters=True)


class TestDeadLetters:
    async def test_they_are_written_between_the_two_states(self, world: World) -> None:
        world.limits = LETTERS
        share = await world.get()
        fetch(share)
        world.grave.clear()
        assert await acknowledging(share, 3, 4, REJECT) is ErrorCode.none
        await settle()
        assert world.persister.writes[-1].state_batches == [StateBatch(3, 4, ARCHIVING, 1)]
        assert world.dead == [[DeadLetters(3, 4, 1, is_rejected=True)]]
        world.grave.set()
        await settle()
        assert world.persister.writes[-1].state_batches == [StateBatch(3, 4, ARCHIVED, 1)]
        assert len(world.dead) == 1

    async def test_what_is_stored_as_archiving_gets_them_from_the_next_leader(self, world: World) -> None:
        world.persister.state = ShareState(2, 1, 0, [StateBatch(2, 3, ARCHIVING, 5), StateBatch(5, 5, ARCHIVING, 1)])
        share = await world.get()
        await settle()
        assert world.dead == [[DeadLetters(2, 3, 5, is_rejected=False), DeadLetters(5, 5, 1, is_rejected=True)]]
        assert world.persister.writes[-1].start_offset == 4
        assert share.state.start_offset == 4

    async def test_none_before_it_is_stored_that_they_are_due(self, world: World) -> None:
        world.limits = LETTERS
        share = await world.get()
        fetch(share)
        world.persister.gate.clear()
        answer = acknowledging(share, 0, 0, REJECT)
        await settle()
        assert not world.dead
        world.persister.fail_with = ErrorCode.coordinator_not_available
        world.persister.gate.set()
        await answer
        assert not world.dead
        assert share.state.locked == 10

    async def test_those_of_a_lock_that_expired_too_often(self, world: World) -> None:
        world.limits = LETTERS._replace(delivery_count_limit=2)
        share = await world.get()
        for _ in range(2):
            fetch(share, size=1)
            world.advance(31)
            await settle()
        assert world.dead == [[DeadLetters(0, 0, 2, is_rejected=False)]]
        assert share.state.start_offset == 1

    async def test_a_group_without_a_topic_has_none(self, world: World) -> None:
        share = await world.get()
        fetch(share)
        await acknowledging(share, 0, 4, REJECT)
        await settle()
        assert not world.dead
        assert share.state.start_offset == 5

    async def test_the_last_member_leaves_before_they_are_written(self, world: World) -> None:
        world.limits = LETTERS
        share = await world.get()
        fetch(share)
        world.grave.clear()
        await acknowledging(share, 0, 4, REJECT)
        world.partitions.member_left("g", "a", lambda: True)
        await settle()
        assert not share.is_fenced
        world.grave.set()
        await settle()
        assert share.is_fenced
        assert world.persister.writes[-1].start_offset == 5

    async def test_a_deposed_leader_leaves_them_to_the_next_one(self, world: World) -> None:
        """Else both write them."""
        world.limits = LETTERS
        share = await world.get()
        fetch(share)
        world.grave.clear()
        await acknowledging(share, 0, 4, REJECT)
        await settle()
        assert world.dead
        world.topics.elect(4)
        world.topics.changed()
        world.grave.set()
        await settle()
        assert world.buried == []
