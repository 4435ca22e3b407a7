"""The leader of several replicas: the high watermark and who waits for it, without followers' brokers."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.api.produce import _DelayedProduce, _Part, _Produce
from broker.clock import ManualClock
from broker.cluster.metadata_cache import MetadataCache
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.record_store import LogRecordStore
from broker.errors import BrokerError, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.segment_file import ColdRead
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from broker.replica.cluster_metadata import PartitionInfo
from broker.replica.partition import Partition
from tests.support.batches import append, batch, open_log
from tests.support.delayed import WaitingFetch, committed

THREE = PartitionInfo(1, 5, (1, 2, 3), (1, 2, 3), version=7)
LAG_S = 30.0


class Leader:
    """Broker 1 leads, 2 and 3 follow; whoever may join the ISR is noted in `joining`."""

    def __init__(self, directory: Path, info: PartitionInfo = THREE, *, records: int = 0, min_isr: int = 2) -> None:
        self.clock = ManualClock()
        self.log = open_log(directory / "t-0", LogConfig(min_insync_replicas=min_isr))
        for _ in range(records):
            append(self.log, batch(b"old"))
        self.joining = 0
        self.brokers = {1: 10, 2: 20, 3: 30}
        """The broker epochs of those that are registered."""
        self.partition = Partition(
            TopicPartition("t", 0),
            self.log,
            info.leader_epoch,
            info=info,
            max_lag_s=LAG_S,
            clock=self.clock,
            on_isr=self.note,
            broker_epochs=self.brokers,
        )

    def note(self, partition: Partition) -> None:
        self.joining += 1

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.partition.append(batch(b"a"))

    def fetch(self, *replicas: int, offset: int | None = None, epoch: int = -1) -> None:
        """Followers ask for the end of the log, or for `offset`, in the registration `epoch`."""
        for replica in replicas:
            self.partition.fetched_by(replica, self.log.log_end_offset if offset is None else offset, epoch)

    def state(self, *isr: int, version: int, **changed: object) -> None:
        """Another broker has written the state."""
        info = dataclasses.replace(THREE, isr=isr, version=version, **changed)  # type: ignore[arg-type]
        self.partition.update_state(info)

    @property
    def high_watermark(self) -> int:
        return self.partition.high_watermark

    @property
    def wanted(self) -> set[int] | None:
        isr = self.partition.isr_to_write()
        return None if isr is None else set(isr)


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def code_of(future: asyncio.Future[None] | None) -> ErrorCode:
    assert future is not None
    error = future.exception()
    assert isinstance(error, BrokerError)
    return error.code


async def test_the_watermark_is_the_lowest_position_in_the_isr(leader: Leader) -> None:
    leader.append(3)
    assert leader.high_watermark == 0
    leader.fetch(2)
    assert leader.high_watermark == 0, "nobody knows yet where 3 is"
    leader.fetch(3, offset=1)
    assert leader.high_watermark == 1
    leader.fetch(3, offset=2)
    assert leader.high_watermark == 2
    assert leader.partition.read(2, 1000) is None
    assert leader.partition.log.read(2, 1000) is not None
    leader.append()
    leader.fetch(3)
    assert leader.high_watermark == leader.log.committed == 3


async def test_a_consumer_is_woken_when_its_records_are_not_in_the_page_cache(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower's fetch moves the watermark. It is repeated when it would have to wait for the disk, and moves it only
    the first time."""
    leader.append()
    leader.fetch(2)
    waiting = WaitingFetch([leader.partition])

    def cold(*arguments: object, **named: object) -> None:
        raise ColdRead(leader.log.segments[0].file(), 0, 1)

    monkeypatch.setattr(leader.log, "read", cold)
    leader.fetch(3)
    await waiting.wait()


async def test_an_append_waits_for_all_in_sync_replicas(leader: Leader) -> None:
    leader.append(2)
    first, second = committed(leader.partition, 0), committed(leader.partition, 1)
    assert first is not None
    assert second is not None
    again = committed(leader.partition, 1)
    assert again is not None
    leader.fetch(2)
    leader.fetch(3, offset=1)
    assert (first.done(), second.done()) == (True, False)
    leader.fetch(3)
    assert (second.result(), again.result()) == (None, None)
    assert committed(leader.partition, 1) is None


async def test_an_append_goes_on_waiting_while_too_few_replicas_are_in_sync(leader: Leader) -> None:
    leader.append()
    waiting = committed(leader.partition, 0)
    leader.state(1, version=9)
    assert waiting is not None
    assert not waiting.done()
    with pytest.raises(BrokerError, match=r"min.insync.replicas=2, but the in-sync replicas are \[1\]"):
        leader.partition.check_min_isr()
    assert leader.high_watermark == 0, "one replica alone commits nothing"
    late = committed(leader.partition, 0)
    assert late is not None
    assert not late.done()
    leader.fetch(2)
    leader.state(1, 2, version=10)
    leader.fetch(2)
    assert leader.high_watermark == 1
    assert (waiting.result(), late.result()) == (None, None)
    leader.partition.check_min_isr()


async def test_a_produce_that_nobody_waits_for_is_forgotten(leader: Leader) -> None:
    """The ISR may be too small for hours, and clients repeat their requests."""
    leader.append()
    unsafe = _Part(leader.partition.tp, leader.partition, last_offset=0)
    produce = _DelayedProduce(cast(_Produce, SimpleNamespace(unsafe=[unsafe])))
    assert produce.begin(60)
    kept = weakref.ref(produce)
    produce.answer.cancel()
    del produce
    assert kept() is None
    leader.fetch(2, 3)
    assert leader.high_watermark == 1


async def test_those_that_wait_learn_when_the_leader_is_deposed(leader: Leader) -> None:
    leader.append()
    waiting = committed(leader.partition, 0)
    leader.partition.close()
    assert code_of(waiting) is ErrorCode.not_leader_or_follower
    with pytest.raises(BrokerError):
        committed(leader.partition, 0)


async def test_a_new_epoch_of_the_same_leader_keeps_watermark_and_waits_and_forgets_positions(leader: Leader) -> None:
    leader.append(2)
    leader.fetch(2, 3)
    leader.append()
    waiting = committed(leader.partition, 2)
    leader.state(1, 2, 3, version=8, leader_epoch=6)
    assert (leader.partition.leader_epoch, leader.high_watermark) == (6, 2)
    leader.fetch(2)
    assert leader.high_watermark == 2
    leader.fetch(3)
    assert waiting is not None
    assert waiting.done()
    leader.state(1, version=9, leader_epoch=5)
    assert leader.partition.in_sync is not None
    assert leader.partition.in_sync.isr == {1, 2, 3}, "an older epoch changes nothing"


async def test_states_that_come_late_or_twice_change_nothing(leader: Leader) -> None:
    leader.append()
    leader.fetch(2, 3)
    leader.state(1, version=7)
    leader.state(1, version=6)
    assert leader.wanted is None
    assert leader.partition.is_known(2)


async def test_a_slow_follower_leaves_the_isr_and_comes_back(leader: Leader) -> None:
    leader.append()
    leader.fetch(2, 3)
    leader.append()
    for _ in range(31):
        leader.clock.advance(1000)
        leader.fetch(2)
    assert leader.wanted == {1, 2}
    assert "broker 3 has not caught up for 31.0 s (it is at 1 of 2)" in leader.partition.begin_isr_write(
        frozenset({1, 2})
    )
    assert leader.high_watermark == 1, "not before ZooKeeper has it"
    leader.state(1, 2, version=8)
    leader.fetch(2)
    assert leader.high_watermark == 2
    assert not leader.partition.is_known(3)
    leader.fetch(3, offset=1)
    assert leader.joining == 0
    assert leader.wanted is None
    leader.fetch(3)
    assert leader.joining == 1
    assert leader.wanted == {1, 2, 3}
    leader.partition.begin_isr_write(frozenset({1, 2, 3}))
    leader.append()
    leader.fetch(2)
    assert leader.high_watermark == 2, "it may be in the ISR already"


async def test_a_follower_that_seems_dead_leaves_the_isr_at_once_unless_it_has_fetched_since(leader: Leader) -> None:
    leader.append()
    leader.clock.advance(1)
    leader.fetch(2, 3)
    since = leader.clock.monotonic()
    leader.append()
    leader.clock.advance(1)
    leader.fetch(2)
    leader.partition.suspect(2, since)
    assert leader.wanted is None
    leader.partition.suspect(3, since)
    leader.partition.suspect(4, since)
    assert leader.wanted == {1, 2}
    assert leader.partition.begin_isr_write(frozenset({1, 2})) == "broker 3 seems to be dead"
    assert leader.high_watermark == 1, "it is in the ISR until ZooKeeper has another one"
    leader.state(1, 2, version=8)
    assert leader.high_watermark == 2


async def test_nobody_joins_before_the_start_of_the_leader_epoch(tmp_path: Path) -> None:
    """Below it the log may hold records that are committed, though this leader does not know it."""
    leader = Leader(tmp_path, dataclasses.replace(THREE, isr=(1, 2)), records=3)
    leader.fetch(3, offset=2)
    assert (leader.high_watermark, leader.joining) == (0, 0)
    leader.fetch(3)
    assert leader.joining == 1


async def test_an_idle_hour_makes_nobody_slow(leader: Leader) -> None:
    leader.append()
    leader.fetch(2, 3)
    leader.clock.advance(3_600_000)
    leader.append()
    assert leader.wanted is None
    leader.clock.advance(int(LAG_S * 1000) + 1)
    assert leader.wanted == {1}


async def test_an_unknown_outcome_is_written_again_and_counts_until_it_is_known(leader: Leader) -> None:
    leader.append()
    leader.fetch(2)
    leader.clock.advance(31_000)
    leader.fetch(2)
    assert leader.wanted == {1, 2}
    leader.partition.begin_isr_write(frozenset({1, 2}))
    leader.fetch(3)
    assert leader.wanted == {1, 2}
    leader.state(1, 2, version=8)
    assert leader.wanted is None, "3 has to fetch again"
    leader.fetch(3)
    assert leader.wanted == {1, 2, 3}


async def test_a_write_that_a_follower_began_counts_when_it_ends_under_its_leadership(leader: Leader) -> None:
    """On a slow disk the write runs in a thread while the broker becomes leader, so no append tells of it."""
    append(leader.log, batch(b"late"), leader_epoch=4)
    leader.fetch(2, 3)
    assert leader.partition.high_watermark == leader.log.log_end_offset == 1
    assert committed(leader.partition, 0) is None


async def test_waiting_fetches_end_when_the_log_cannot_be_read(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their next read says why. The watermark's advance must not fail because of them."""
    leader.append()
    waiting = WaitingFetch([leader.partition])

    def broken(*_: object, **__: object) -> None:
        raise BrokerError(ErrorCode.kafka_storage_error)

    monkeypatch.setattr(leader.log, "read", broken)
    leader.fetch(2, 3)
    await waiting.wait()
    assert leader.partition.high_watermark == 1


async def test_a_consumer_waits_for_the_watermark_and_a_follower_for_the_append(leader: Leader) -> None:
    consumer = WaitingFetch([leader.partition])
    follower = WaitingFetch([leader.partition], replica=True)
    leader.append()
    await follower.wait()
    assert consumer in leader.partition.waiters
    leader.fetch(2, 3)
    await consumer.wait()


async def test_a_transaction_is_stable_when_its_marker_is_committed(leader: Leader) -> None:
    leader.partition.append(batch(b"a", producer_id=9, producer_epoch=0, transactional=True))
    leader.fetch(2, 3)
    assert (leader.high_watermark, leader.partition.last_stable_offset) == (1, 0)
    waiter = WaitingFetch([leader.partition], committed=True)
    leader.partition.append_marker(EndMarker(9, 0, ControlType.COMMIT, 0))
    leader.fetch(2)
    assert (leader.high_watermark, leader.partition.last_stable_offset) == (1, 0)
    assert waiter in leader.partition.waiters
    leader.fetch(3)
    assert (leader.high_watermark, leader.partition.last_stable_offset) == (2, 2)
    await waiter.wait()


async def test_a_new_leader_knows_when_it_may_lag_behind_what_was_shown(tmp_path: Path) -> None:
    leader = Leader(tmp_path, records=3)
    assert (leader.high_watermark, leader.partition.is_catching_up) == (0, True)
    leader.fetch(2, 3)
    assert (leader.high_watermark, leader.partition.is_catching_up) == (3, False)


async def test_only_a_registered_broker_joins(leader: Leader) -> None:
    leader.state(1, 2, version=8)
    leader.append()
    del leader.brokers[3]
    leader.fetch(2, 3)
    assert (leader.wanted, leader.joining) == (None, 0)
    leader.brokers[3] = 30
    leader.partition.brokers_changed()
    assert (leader.wanted, leader.joining) == ({1, 2, 3}, 1)


async def test_a_fetch_of_an_earlier_registration_counts_for_nothing(leader: Leader) -> None:
    leader.state(1, 2, version=8)
    leader.append()
    leader.fetch(2)
    leader.fetch(3, epoch=30)
    assert leader.wanted == {1, 2, 3}
    leader.brokers[3] = 31
    leader.partition.brokers_changed()
    assert leader.wanted is None
    assert not leader.partition.is_known(3), "its session must name the partition again"
    leader.fetch(3, epoch=30)
    assert leader.wanted is None
    with pytest.raises(BrokerError) as raised:
        leader.partition.check_replica(3, 30)
    assert raised.value.code is ErrorCode.not_leader_or_follower
    leader.fetch(3, epoch=32)
    assert (leader.wanted, leader.partition.is_known(3)) == (None, True), "this broker does not know that one yet"
    leader.fetch(3, epoch=31)
    assert leader.wanted == {1, 2, 3}


async def test_one_replica_becomes_two(tmp_path: Path) -> None:
    leader = Leader(tmp_path, dataclasses.replace(THREE, replicas=(1,), isr=(1,)), min_isr=1)
    leader.append()
    assert (leader.partition.in_sync, leader.high_watermark) == (None, 1)
    assert committed(leader.partition, 0) is None
    leader.state(1, version=8, replicas=(1, 2))
    leader.append()
    assert leader.high_watermark == 2
    leader.fetch(2)
    assert leader.wanted == {1, 2}


async def test_a_position_above_the_log_end_or_of_a_stranger_does_not_count(leader: Leader) -> None:
    with pytest.raises(BrokerError) as raised:
        leader.fetch(2, offset=1)
    assert raised.value.code is ErrorCode.offset_out_of_range
    with pytest.raises(BrokerError) as raised:
        leader.partition.check_replica(4)
    assert raised.value.code is ErrorCode.unknown_leader_epoch


async def test_where_a_log_has_diverged(tmp_path: Path) -> None:
    leader = Leader(tmp_path, records=3)
    epoch_of_old = leader.log.epochs.latest
    leader.append(2)
    diverging = leader.partition.diverging_epoch
    assert diverging(epoch_of_old, 3) is None
    assert diverging(epoch_of_old, 4) == (epoch_of_old, 3)
    assert diverging(5, 5) is None
    assert diverging(3, 4) == (epoch_of_old, 3)
    with pytest.raises(BrokerError, match="leader epoch 6"):
        diverging(6, 5)


async def test_a_broken_disk_gives_up_leadership_if_another_may_lead(leader: Leader) -> None:
    leader.log.disk.refused(leader.log.directory, 1, OSError(errno.ENOSPC, "No space left"))
    assert leader.wanted is None, "there may be room again soon"
    leader.log.disk.refused(leader.log.directory, 1, OSError(errno.EIO, "Input/output error"))
    del leader.brokers[2]
    assert leader.wanted == {2, 3}
    assert "broker 1 gives up leadership: cannot append" in leader.partition.begin_isr_write(frozenset({2, 3}))
    leader.state(1, 2, version=8)
    assert leader.wanted is None, "broker 2 is not there"
    leader.brokers[2] = 21
    assert leader.wanted == {2}
    leader.partition.suspect(2, leader.clock.monotonic())
    assert leader.wanted == {1}, "broker 2 seems to be dead: it leaves, and this one stays to be read from"
    leader.fetch(2, epoch=21)
    assert leader.wanted == {2}
    leader.log.disk.taken()
    assert leader.wanted is None


# --- coordinators (P7)


def safe(leader: Leader) -> asyncio.Future[object]:
    """What a coordinator waits for after an append."""
    waiting = leader.partition.until_safe(leader.partition.append(batch(b"a")))
    assert waiting is not None
    return asyncio.ensure_future(waiting)


async def test_a_coordinator_waits_for_all_in_sync_replicas_also_while_too_few_are_in_sync(leader: Leader) -> None:
    waiting = safe(leader)
    leader.state(1, version=8)
    await asyncio.sleep(0)
    assert not waiting.done(), "the record may be committed later"
    leader.fetch(2, 3)
    leader.state(1, 2, version=9)
    leader.fetch(2)
    await waiting
    leader.fetch(2)
    assert leader.high_watermark == 1


async def test_a_commit_is_refused_at_once_while_too_few_are_in_sync_whatever_waits(leader: Leader) -> None:
    """As in Kafka. Behind the commit that waits it would wait until the replicas are back."""
    topics = cast(MetadataCache, SimpleNamespace(partition=lambda tp: leader.partition))
    groups = GroupCoordinator(LogRecordStore(topics, "t", leader.clock), leader.clock, GroupSettings(), 1)
    loading = groups.load(0)
    leader.fetch(2, 3)
    await loading

    def commit(offset: int) -> asyncio.Task[Mapping[TopicPartition, ErrorCode]]:
        return asyncio.ensure_future(
            groups.commit_offsets(CommitRequest("g", {leader.partition.tp: OffsetAndMetadata(offset)}, -1, ""))
        )

    waiting = commit(1)
    while not leader.log.log_end_offset:
        await asyncio.sleep(0)
    leader.state(1, version=8)
    async with asyncio.timeout(4):
        assert set((await commit(2)).values()) == {ErrorCode.coordinator_not_available}
    leader.state(1, 2, version=9)
    leader.fetch(2)
    assert set((await waiting).values()) == {ErrorCode.none}
    await groups.close()


async def test_a_deposed_coordinator_is_acknowledged_nothing_and_appends_nothing(leader: Leader) -> None:
    waiting = safe(leader)
    leader.partition.close()
    with pytest.raises(BrokerError, match="not led here any more"):
        await waiting
    marker = EndMarker(7, 0, ControlType.COMMIT, 0)
    for append_more in (leader.append, lambda: leader.partition.append_marker(marker)):
        with pytest.raises(BrokerError, match="not led here any more"):
            append_more()
    assert leader.log.log_end_offset == 1


async def test_records_that_must_be_on_disk_and_on_all_replicas_wait_for_both(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.log.update_config(LogConfig(min_insync_replicas=2, flush_messages=1))
    waiting = safe(leader)
    leader.fetch(2, 3)
    await waiting
    assert leader.log.recovery_point == leader.high_watermark == 1
    waiting = safe(leader)
    while leader.log.recovery_point < 2:
        await asyncio.sleep(0)
    assert not waiting.done()
    leader.fetch(2, 3)
    await waiting


async def test_one_replica_alone_is_safe_at_once(tmp_path: Path) -> None:
    leader = Leader(tmp_path, PartitionInfo(1, 5, (1,), (1,), version=7))
    assert leader.partition.until_safe(leader.partition.append(batch(b"a"))) is None
    assert leader.partition.caught_up() is None


async def test_a_coordinator_loads_when_the_watermark_has_reached_the_epoch(tmp_path: Path) -> None:
    leader = Leader(tmp_path, records=3)
    waiting = leader.partition.caught_up()
    assert waiting is not None
    leader.fetch(2)
    leader.fetch(3, offset=2)
    assert not waiting.done()
    leader.fetch(3)
    assert waiting.result() is None
    leader.append()
    assert leader.partition.caught_up() is None, "later records are those of this epoch"
    leader.partition.close()


async def test_who_waits_for_the_epoch_learns_when_the_leader_is_deposed(tmp_path: Path) -> None:
    leader = Leader(tmp_path, records=1)
    waiting = leader.partition.caught_up()
    leader.partition.close()
    assert code_of(waiting) is ErrorCode.not_leader_or_follower


async def test_a_marker_makes_the_verification_of_its_producer_invalid(leader: Leader) -> None:
    """KIP-890: records after the marker would open a transaction that nobody ends."""
    partition = leader.partition
    guards = {producer: partition.begin_verification(producer) for producer in (7, 8)}
    assert partition.begin_verification(7) is guards[7]
    partition.append_marker(EndMarker(7, 0, ControlType.ABORT, 0))
    assert not partition.end_verification(7, guards[7])
    assert partition.end_verification(8, guards[8])
    assert not partition.end_verification(8, guards[8]), "it holds for one append"


async def test_a_marker_of_version_2_ends_the_transaction_before_the_one_that_is_verified(leader: Leader) -> None:
    partition = leader.partition
    partition.append(batch(b"a", producer_id=7, producer_epoch=3, transactional=True))
    guard = partition.begin_verification(7)  # for the first records of epoch 4
    partition.append_marker(EndMarker(7, 4, ControlType.COMMIT, 0, 2))
    assert partition.end_verification(7, guard)


async def test_an_open_transaction_is_one_of_the_same_epoch(leader: Leader) -> None:
    partition = leader.partition
    assert not partition.has_open_transaction(7, 3)
    partition.append(batch(b"a", producer_id=7, producer_epoch=3, transactional=True))
    assert [partition.has_open_transaction(7, epoch) for epoch in (2, 3, 4)] == [False, True, False]
    partition.append_marker(EndMarker(7, 3, ControlType.COMMIT, 0))
    assert not partition.has_open_transaction(7, 3)
