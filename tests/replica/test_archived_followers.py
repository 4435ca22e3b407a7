"""Followers of a leader whose first records are in the archive only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.log.archived_log import ArchivedState
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.records.control import ControlType
from tests.replica.test_replica_fetcher import Cluster, cluster
from tests.support.batches import append, append_marker, batch, fill, open_log
from tests.support.follower_log import stored

ARCHIVED = LogConfig(segment_bytes=600, remote_storage_enable=True, retention_ms=-1, local_retention_bytes=0)
"""Three of `fill`'s batches a segment."""
PRODUCER: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "transactional": True}


def state_at(log: Log, offset: int, start: int = 0) -> ArchivedState:
    """As the archive has it, of a log that has it, too."""
    snapshot = log.directory / f"{offset:020}.snapshot"
    epochs = tuple(entry for entry in log.epochs.entries if entry[1] < offset)
    return ArchivedState(offset, start, epochs, snapshot.read_bytes())


def archive(log: Log, end: int) -> None:
    """Let the archive have the records before `end`, and the disk no more than it must."""
    log.told_archived_end = end
    log.apply_retention()


def own_log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "own" / "t-0", ARCHIVED)


async def copied(c: Cluster, log: Log) -> None:
    led = c.led().log
    await c.until(lambda: log.log_end_offset == led.log_end_offset)
    assert stored(log, log.local_start_offset) == stored(led, log.local_start_offset)


async def test_a_new_follower_begins_at_the_local_start_with_the_archives_epochs_and_producers(tmp_path: Path) -> None:
    """So it may lead one day: it knows a duplicate, and a transaction that began in the archive."""
    async with cluster(tmp_path, config=ARCHIVED) as c:
        led = c.led()
        for number in range(6):
            append(led.log, batch(bytes(150), sequence=number, **PRODUCER), leader_epoch=number // 3)
        led.log.roll()
        led.log.flush()
        state = state_at(led.log, 6)
        append(led.log, batch(bytes(150), sequence=6, **PRODUCER), leader_epoch=2)
        archive(led.log, 6)
        led.epoch = 2
        own, asked = own_log(tmp_path), []

        def archived_state(offset: int) -> ArchivedState:
            asked.append(offset)
            return state

        own.archived_state = archived_state
        follower = c.follow(log=own)
        await copied(c, own)
        assert asked == [6]
        assert (own.log_start_offset, own.local_start_offset, own.log_end_offset) == (0, 6, 7)
        assert own.epochs.entries == [(0, 0), (1, 3), (2, 6)]
        assert own.first_unstable_offset == 0
        assert follower.high_watermark == 7
        append_marker(led.log, 5, 0, ControlType.ABORT, 0, leader_epoch=2)
        c.leader.changed()
        await copied(c, own)
        assert own.aborted.transactions_between(6, 8) == [(5, 0)]
        c.fetcher.stop()
        assert append(own, batch(bytes(150), sequence=6, **PRODUCER), leader_epoch=3).duplicate


async def test_while_the_archive_cannot_be_read_the_follower_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, config=ARCHIVED) as c:
        led = c.led()
        fill(led.log, 10)
        led.log.flush()
        state = state_at(led.log, 9)
        archive(led.log, 9)
        own = own_log(tmp_path)
        fill(own, 2)
        calls = 0

        def archived_state(offset: int) -> ArchivedState:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise BrokerError(ErrorCode.kafka_storage_error, "the store is away")
            return state

        own.archived_state = archived_state
        c.follow(log=own)
        await copied(c, own)
        assert calls == 3
        assert (own.log_start_offset, own.local_start_offset) == (0, 9)
        assert "the store is away" in caplog.text


async def test_a_follower_deletes_what_its_leader_has_archived(tmp_path: Path) -> None:
    async with cluster(tmp_path, config=ARCHIVED) as c:
        led = c.led()
        fill(led.log, 10)
        own = own_log(tmp_path)
        c.follow(log=own)
        await copied(c, own)
        own.apply_retention()
        assert own.local_start_offset == 0
        led.log.told_archived_end = 6
        c.leader.changed()
        await c.until(lambda: own.told_archived_end == 6)
        own.apply_retention()
        assert (own.log_start_offset, own.local_start_offset) == (0, 6)


async def test_an_end_that_diverges_in_the_archived_part_lets_the_follower_begin_again(tmp_path: Path) -> None:
    """It has deleted locally what it has to cut, so it lacks the epochs and producers there."""
    async with cluster(tmp_path, config=ARCHIVED) as c:
        led, own = c.led(), own_log(tmp_path)
        for log in (led.log, own):
            fill(log, 7)
        fill(own, 5)
        archive(own, 9)
        assert own.local_start_offset == 9
        for number in range(4):
            append(led.log, batch(b"of another leader %d" % number), leader_epoch=2)
        led.epoch = 2
        follower = c.follow(log=own, high_watermark=12)
        await copied(c, own)
        assert (own.log_start_offset, own.local_start_offset) == (0, 0), "the leader has it all on its disk"
        assert follower.log.epochs.entries == led.log.epochs.entries
