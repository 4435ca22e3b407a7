"""The leader of several replicas: the high watermark and who waits for it, without followers' brokers."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError, ErrorCode
from broker.log.log_config import LogConfig
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from broker.replica.delayed_fetch import DelayedFetch
from broker.replica.partition import Partition
from broker.zookeeper.cluster_metadata import PartitionInfo
from tests.support.batches import append, batch, open_log

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
        self.partition = Partition(
            TopicPartition("t", 0),
            self.log,
            info.leader_epoch,
            info=info,
            max_lag_s=LAG_S,
            clock=self.clock,
            on_isr=self.note,
        )

    def note(self, partition: Partition) -> None:
        self.joining += 1

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.partition.append(batch(b"a"))

    def fetch(self, *replicas: int, offset: int | None = None) -> None:
        """Followers ask for the end of the log, or for `offset`."""
        for replica in replicas:
            self.partition.fetched_by(replica, self.log.log_end_offset if offset is None else offset)

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
    assert leader.partition.read_as_replica(2, 1000) is not None
    leader.append()
    leader.fetch(3)
    assert leader.high_watermark == leader.log.committed == 3


async def test_an_append_waits_for_all_in_sync_replicas(leader: Leader) -> None:
    leader.append(2)
    first, second = leader.partition.committed(0), leader.partition.committed(1)
    assert first is not None
    assert second is not None
    assert leader.partition.committed(1) is second, "a retry shares the wait"
    leader.fetch(2)
    leader.fetch(3, offset=1)
    assert (first.done(), second.done()) == (True, False)
    leader.fetch(3)
    assert second.result() is None
    assert leader.partition.committed(1) is None


async def test_those_that_wait_learn_when_too_few_replicas_are_in_sync(leader: Leader) -> None:
    leader.append()
    waiting = leader.partition.committed(0)
    leader.state(1, 2, version=8)
    assert waiting is not None
    assert not waiting.done()
    leader.state(1, version=9)
    assert code_of(waiting) is ErrorCode.not_enough_replicas_after_append
    with pytest.raises(BrokerError, match=r"min.insync.replicas=2, but the in-sync replicas are \[1\]"):
        leader.partition.check_min_isr()
    with pytest.raises(BrokerError):
        leader.partition.committed(0)
    assert leader.high_watermark == 0, "one replica alone commits nothing"
    leader.fetch(2)
    leader.state(1, 2, version=10)
    leader.fetch(2)
    assert leader.high_watermark == 1
    leader.partition.check_min_isr()


async def test_those_that_wait_learn_when_the_leader_is_deposed(leader: Leader) -> None:
    leader.append()
    waiting = leader.partition.committed(0)
    leader.partition.close()
    assert code_of(waiting) is ErrorCode.not_leader_or_follower
    with pytest.raises(BrokerError):
        leader.partition.committed(0)


async def test_a_new_epoch_of_the_same_leader_keeps_watermark_and_waits_and_forgets_positions(leader: Leader) -> None:
    leader.append(2)
    leader.fetch(2, 3)
    leader.append()
    waiting = leader.partition.committed(2)
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


async def test_a_consumer_waits_for_the_watermark_and_a_follower_for_the_append(leader: Leader) -> None:
    consumer = DelayedFetch([leader.partition], 1, 20)
    follower = DelayedFetch([leader.partition], 1, 20, replica=True)
    leader.append()
    await asyncio.wait_for(follower.wait(), 5)
    assert consumer in leader.partition.waiters
    leader.fetch(2, 3)
    await asyncio.wait_for(consumer.wait(), 5)


async def test_a_transaction_is_stable_when_its_marker_is_committed(leader: Leader) -> None:
    leader.partition.append(batch(b"a", producer_id=9, producer_epoch=0, transactional=True))
    leader.fetch(2, 3)
    assert (leader.high_watermark, leader.partition.last_stable_offset) == (1, 0)
    waiter = DelayedFetch([leader.partition], 1, 20, committed=True)
    leader.partition.append_marker(EndMarker(9, 0, ControlType.COMMIT, 0))
    leader.fetch(2)
    assert (leader.high_watermark, leader.partition.last_stable_offset) == (1, 0)
    assert waiter in leader.partition.waiters
    leader.fetch(3)
    assert (leader.high_watermark, leader.partition.last_stable_offset) == (2, 2)
    await asyncio.wait_for(waiter.wait(), 5)


async def test_a_new_leader_knows_when_it_may_lag_behind_what_was_shown(tmp_path: Path) -> None:
    leader = Leader(tmp_path, records=3)
    assert (leader.high_watermark, leader.partition.is_catching_up) == (0, True)
    leader.fetch(2, 3)
    assert (leader.high_watermark, leader.partition.is_catching_up) == (3, False)


async def test_one_replica_becomes_two(tmp_path: Path) -> None:
    leader = Leader(tmp_path, dataclasses.replace(THREE, replicas=(1,), isr=(1,)), min_isr=1)
    leader.append()
    assert (leader.partition.in_sync, leader.high_watermark) == (None, 1)
    assert leader.partition.committed(0) is None
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
