"""The share coordinator: what is stored before an answer, fencing, replay, pruning, slow and failing appends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

import pytest

from broker.clock import ManualClock
from broker.config.setting_groups import ShareCoordinatorSettings
from broker.coordinator.record_format import KeyValue
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.share.persister import SharePartitionKey, ShareState, ShareWrite, StateBatch
from broker.share.share_coordinator import ShareCoordinator, replay
from broker.share.share_records import decode_key, encode_snapshot_key, encode_update_key
from tests.support.record_stores import GatedRecordStore, MemoryRecordStore

KEY = SharePartitionKey("g", uuid.UUID(int=1), 0)
OTHER = KEY._replace(partition=1)
PARTITIONS = 3


class StateLog(GatedRecordStore):
    """One record has one offset; what was deleted is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[int, int] = {}

    def bounds(self, partition: int) -> tuple[int, int]:
        start = self.starts.get(partition, 0)
        return start, start + len(self.records.get(partition, []))

    def delete_before(self, partition: int, offset: int) -> None:
        left = offset - self.starts.get(partition, 0)
        self.starts[partition] = offset
        runs = self.runs[partition]
        while left > 0:
            run = runs.pop(0)
            if len(run.records) > left:
                runs.insert(0, run._replace(records=run.records[left:]))
            left -= len(run.records)


class LazyStateLog(StateLog):
    """Records stand in the log at once, and are safe when the gate is open."""

    def append(  # type: ignore[override]
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[object]:
        MemoryRecordStore.append(self, partition, records, producer)
        return self.gate.wait()


class Shares:
    """A coordinator of all partitions and what stands around it."""

    def __init__(self, store: StateLog | None = None, **settings: int) -> None:
        self.store = store or StateLog()
        self.topics = {KEY.topic_id}
        self.coordinator = ShareCoordinator(
            self.store,  # type: ignore[arg-type]
            ManualClock(),
            ShareCoordinatorSettings(share_coordinator_state_topic_num_partitions=PARTITIONS, **settings),
            lambda key: key.topic_id in self.topics,
        )

    async def load(self) -> None:
        for partition in range(PARTITIONS):
            await self.coordinator.load(partition)

    @property
    def shard(self) -> int:
        return self.coordinator.partition_for(KEY.coordinator_key)

    def records(self) -> Sequence[KeyValue]:
        return [record for records in self.store.records.values() for record in records]

    async def prune(self) -> None:
        for shard in self.coordinator._shards.values():
            await shard.prune()


@asynccontextmanager
async def running(store: StateLog | None = None, **settings: int) -> AsyncIterator[Shares]:
    shares = Shares(store, **settings)
    await shares.load()
    yield shares
    shares.store.gate.set()
    await shares.coordinator.close()


def write(start: int, *batches: tuple[int, int, int, int], state_epoch: int = 1, leader_epoch: int = 5) -> ShareWrite:
    return ShareWrite(state_epoch, leader_epoch, start, 0, [StateBatch(*batch) for batch in batches])


async def test_what_was_written_is_read() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, -1)
        assert await shares.coordinator.read(KEY, 5) == ShareState(-1, 1, 5, [])
        await shares.coordinator.write(KEY, write(10, (12, 14, 2, 1)))
        await shares.coordinator.write(KEY, write(13, (20, 20, 0, 3)))
        read = await shares.coordinator.read(KEY, 6)
        assert read == ShareState(13, 1, 6, [StateBatch(13, 14, 2, 1), StateBatch(20, 20, 0, 3)], 0)
        assert await shares.coordinator.summary(KEY) == ShareState(13, 1, 6, read.state_batches, 0)
        assert await shares.coordinator.summary(OTHER) == ShareState()


async def test_another_coordinator_replays_the_same() -> None:
    async with running(share_coordinator_snapshot_update_records_per_snapshot=2) as shares:
        await shares.coordinator.initialize(KEY, 1, -1)
        await shares.coordinator.read(KEY, 5)
        for start in range(10):
            await shares.coordinator.write(KEY, write(start, (start + 5, start + 5, 2, 1)))
        kinds = [decoded[1] for key, _ in shares.records() if (decoded := decode_key(key)) is not None]
        assert kinds == [True, False, False, *[True, False, False] * 3]  # a snapshot after two updates
        known = await shares.coordinator.read(KEY, 5)
        async with running(shares.store) as later:
            assert await later.coordinator.read(KEY, 5) == known


async def test_an_answer_waits_until_the_record_is_stored() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 0)
        shares.store.gate.clear()
        writing = asyncio.ensure_future(shares.coordinator.write(KEY, write(7)))
        await shares.store.until_waiting()
        assert not writing.done()
        assert (await shares.coordinator.summary(KEY)).start_offset == 0  # memory has what is stored
        shares.store.gate.set()
        await writing
        assert (await shares.coordinator.summary(KEY)).start_offset == 7


async def test_changes_of_one_key_are_stored_one_after_the_other() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 0)
        shares.store.gate.clear()
        writing = asyncio.ensure_future(shares.coordinator.write(KEY, write(7, leader_epoch=5)))
        await shares.store.until_waiting()
        reading = asyncio.ensure_future(shares.coordinator.read(KEY, 6))
        await asyncio.sleep(0)
        shares.store.gate.set()
        await writing
        assert (await reading).start_offset == 7


async def test_a_deposed_leader_cannot_write_and_not_read() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 0)
        await shares.coordinator.read(KEY, 6)
        await refused(shares.coordinator.write(KEY, write(7, leader_epoch=5)), ErrorCode.fenced_leader_epoch)
        await refused(shares.coordinator.read(KEY, 5), ErrorCode.fenced_leader_epoch)
        async with running(shares.store) as later:  # fenced by the record as well
            await refused(later.coordinator.write(KEY, write(7, leader_epoch=5)), ErrorCode.fenced_leader_epoch)
            await later.coordinator.initialize(KEY, 2, 0)
            await refused(
                later.coordinator.write(KEY, write(7, leader_epoch=5, state_epoch=2)), ErrorCode.fenced_leader_epoch
            )


async def test_a_leader_of_an_old_state_is_fenced() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 0)
        await shares.coordinator.initialize(KEY, 2, 100)
        await refused(shares.coordinator.write(KEY, write(7, state_epoch=1)), ErrorCode.fenced_state_epoch)
        await refused(shares.coordinator.initialize(KEY, 1, 0), ErrorCode.fenced_state_epoch)
        assert await shares.coordinator.summary(KEY) == ShareState(100, 2, 0, (), 0)


async def test_the_same_initialization_again_keeps_what_was_consumed() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, -1)
        await shares.coordinator.write(KEY, write(7))
        await shares.coordinator.initialize(KEY, 1, -1)
        assert (await shares.coordinator.summary(KEY)).start_offset == 7


async def test_what_was_never_initialized_is_refused() -> None:
    async with running() as shares:
        await refused(shares.coordinator.write(KEY, write(7)), ErrorCode.invalid_request)
        await refused(shares.coordinator.read(KEY, 1), ErrorCode.invalid_request)
        await shares.coordinator.delete(KEY)
        assert not shares.records()


async def test_deleted_state_is_gone_after_a_replay_too() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 3)
        await shares.coordinator.delete(KEY)
        await refused(shares.coordinator.read(KEY, 1), ErrorCode.invalid_request)
        assert shares.records()[-1] == (encode_snapshot_key(KEY), None)
        async with running(shares.store) as later:
            await refused(later.coordinator.read(KEY, 1), ErrorCode.invalid_request)


async def test_an_unknown_partition_is_refused() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 3)
        shares.topics.clear()
        await refused(shares.coordinator.write(KEY, write(7)), ErrorCode.unknown_topic_or_partition)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
async def test_a_failed_append_changes_nothing(code: ErrorCode, shown: ErrorCode) -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 3)

        def fail(*asked: object) -> None:
            raise BrokerError(code)

        append, shares.store.append = shares.store.append, fail  # type: ignore[method-assign,assignment]
        await refused(shares.coordinator.write(KEY, write(7)), shown)
        shares.store.append = append  # type: ignore[method-assign]
        assert (await shares.coordinator.summary(KEY)).start_offset == 3
        await shares.coordinator.write(KEY, write(8))


async def test_slow_followers_are_not_waited_for_for_ever() -> None:
    async with running(share_coordinator_write_timeout_ms=250) as shares:
        await shares.coordinator.initialize(KEY, 1, 3)
        shares.store.gate.clear()
        await refused(shares.coordinator.write(KEY, write(7)), ErrorCode.coordinator_not_available)
        await refused(shares.coordinator.write(KEY, write(8)), ErrorCode.coordinator_not_available)
        shares.store.gate.set()
        while (await shares.coordinator.summary(KEY)).start_offset != 7:  # it was stored nevertheless
            await asyncio.sleep(0)
        await shares.coordinator.write(KEY, write(9))


async def test_an_unloaded_shard_stores_nothing_more() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 3)
        shares.store.gate.clear()
        first = asyncio.ensure_future(shares.coordinator.write(KEY, write(7)))
        await shares.store.until_waiting()
        second = asyncio.ensure_future(shares.coordinator.write(KEY, write(8)))
        await asyncio.sleep(0)
        shares.coordinator.unload(shares.shard)
        shares.store.gate.set()
        await first  # it was with the store
        await refused(second, ErrorCode.not_coordinator)
        await refused(shares.coordinator.write(KEY, write(9)), ErrorCode.not_coordinator)


async def test_pruning_deletes_what_later_records_replace() -> None:
    async with running() as shares:
        for key in (KEY, OTHER):
            await shares.coordinator.initialize(key, 1, -1)
            for start in range(20):
                await shares.coordinator.write(key, write(start, (start + 5, start + 5, 0, 2)))
        await shares.coordinator.delete(OTHER)
        known = await shares.coordinator.read(KEY, 9)
        await shares.prune()
        assert [key for key, _ in shares.records() if key[2:] == encode_snapshot_key(KEY)[2:]] == [
            encode_snapshot_key(KEY)
        ]
        async with running(shares.store) as later:
            assert await later.coordinator.read(KEY, 9) == known
            await refused(later.coordinator.read(OTHER, 9), ErrorCode.invalid_request)


async def test_pruning_a_short_log_writes_nothing() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, -1)
        await shares.prune()
        assert len(shares.records()) == 1


async def test_a_write_between_snapshot_and_deletion_is_kept() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, -1)
        for start in range(20):
            await shares.coordinator.write(KEY, write(start))
        shares.store.gate.clear()
        pruning = asyncio.ensure_future(shares.prune())
        await shares.store.until_waiting()
        writing = asyncio.ensure_future(shares.coordinator.write(KEY, write(50)))
        shares.store.gate.set()
        await asyncio.gather(pruning, writing)
        async with running(shares.store) as later:
            assert (await later.coordinator.read(KEY, 9)).start_offset == 50


async def test_a_state_that_is_being_initialized_survives_a_prune() -> None:
    store = LazyStateLog()
    async with running(store) as shares:
        store.gate.set()
        await shares.coordinator.initialize(KEY, 1, -1)
        for start in range(20):
            await shares.coordinator.write(KEY, write(start))
        other = next(
            key
            for n in range(1, 100)
            if shares.coordinator.partition_for((key := KEY._replace(partition=n)).coordinator_key) == shares.shard
        )
        store.gate.clear()
        initializing = asyncio.ensure_future(shares.coordinator.initialize(other, 1, 3))
        await asyncio.sleep(0)
        pruning = asyncio.ensure_future(shares.prune())
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(initializing, pruning)
        async with running(shares.store) as later:
            assert (await later.coordinator.read(other, 9)).start_offset == 3


async def test_states_of_a_deleted_topic_go_with_the_second_prune() -> None:
    async with running() as shares:
        await shares.coordinator.initialize(KEY, 1, 3)
        shares.topics.clear()
        await shares.prune()
        assert (await shares.coordinator.summary(KEY)).start_offset == 3  # the metadata may only lag
        await shares.prune()
        assert await shares.coordinator.summary(KEY) == ShareState()


def test_records_that_cannot_be_read_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    states: dict[SharePartitionKey, object] = {}
    records = [(encode_snapshot_key(KEY), b"\0\0x"), (b"\0\1", b""), (b"\0\7later", b""), (encode_update_key(KEY), b"")]
    replay(states, records)  # type: ignore[arg-type]
    assert not states
    assert caplog.text.count("cannot be read") == 3


async def refused(work: object, code: ErrorCode) -> None:
    with pytest.raises(BrokerError) as caught:
        await work  # type: ignore[misc]
    assert caught.value.code is code
