"""Appends to a slow disk: they write in a thread, in order, and nobody sees one that is half done."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError, ErrorCode
from broker.log.append_checks import BatchCheck
from broker.log.disk import SLOW_PERIOD_S
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.pending_append import AppendResult
from broker.log.segment import OpenSegments
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from broker.replica.partition import Partition
from tests.support.batches import NOW, append, batch, open_log, read_all
from tests.support.delayed import WaitingFetch
from tests.support.slow_disk import LATE_MS, SlowDisk


class Led:
    """A partition whose disk has been slow a moment ago: the batch at offset 0 was late."""

    def __init__(self, directory: Path, clock: ManualClock, threads: ThreadPoolExecutor, **settings: int) -> None:
        self.clock = clock
        self.config = LogConfig(**settings)  # type: ignore[arg-type]
        self.log = open_log(directory / "t-0", self.config, clock)
        self.partition = Partition(TopicPartition("t", 0), self.log, 0, threads, threads)

    def append(self, value: bytes, **producer: int) -> AppendResult | Awaitable[AppendResult]:
        check = BatchCheck(bytearray(batch(value, **producer)), self.config, self.clock.now_ms())  # type: ignore[arg-type]
        check.run()
        return self.partition.append_checked(check)

    def begin(self, value: bytes, **producer: int) -> asyncio.Future[AppendResult]:
        """One that has to wait."""
        waiting = self.append(value, **producer)
        assert not isinstance(waiting, AppendResult)
        return asyncio.ensure_future(waiting)

    def end(self, producer_id: int, commit: bool = True) -> asyncio.Future[AppendResult]:
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        waiting = self.partition.append_marker(EndMarker(producer_id, 0, kind, 0))
        assert not isinstance(waiting, AppendResult)
        return asyncio.ensure_future(waiting)


@pytest.fixture
def led(tmp_path: Path, clock: ManualClock, disk: SlowDisk, threads: ThreadPoolExecutor) -> Led:
    return made_slow(Led(tmp_path, clock, threads), disk)


def made_slow(led: Led, disk: SlowDisk) -> Led:
    disk.late_ms = LATE_MS
    assert isinstance(led.append(b"late"), AppendResult), "the first one is waited for"
    disk.late_ms = 0
    return led


async def test_a_slow_disk_is_written_to_in_a_thread_until_it_has_been_fast_for_a_while(
    led: Led, disk: SlowDisk, clock: ManualClock
) -> None:
    assert (disk.at_once, disk.elsewhere) == (1, 0)
    disk.free.set()
    disk.late_ms = LATE_MS
    assert (await led.begin(b"a")).base_offset == 1
    disk.late_ms = 0
    clock.advance(int(SLOW_PERIOD_S * 1000) - 1)
    assert (await led.begin(b"b")).base_offset == 2
    assert (disk.at_once, disk.elsewhere) == (1, 2)
    clock.advance(1)
    assert isinstance(led.append(b"c"), AppendResult)
    assert (disk.at_once, disk.elsewhere) == (2, 2)
    assert [value for _, value in read_all(led.log)] == [b"late", b"a", b"b", b"c"]


async def test_an_append_that_is_under_way_is_not_seen(led: Led, disk: SlowDisk) -> None:
    fetch = WaitingFetch([led.partition])
    first = led.begin(b"a", producer_id=1, producer_epoch=0, sequence=0, transactional=True)
    await disk.writing()
    log = led.log
    assert (log.log_end_offset, log.segments[-1].next_offset(), led.partition.high_watermark) == (1, 1, 1)
    assert led.partition.read(1, 1000) is None
    assert log.producers.get(1) is None
    assert log.first_unstable_offset is None
    assert log.max_timestamp() == (0, NOW)
    assert fetch in led.partition.waiters
    log.flush()
    assert log.recovery_point == 1
    disk.free.set()
    assert (await first).base_offset == 1
    await fetch.wait()
    assert (led.partition.high_watermark, led.partition.last_stable_offset) == (2, 1)


async def test_appends_keep_their_order_and_their_sequences(led: Led, disk: SlowDisk) -> None:
    sent = [(producer, sequence) for sequence in range(5) for producer in (7, 8)]
    waiting = [
        led.begin(b"%d:%d" % (producer, sequence), producer_id=producer, producer_epoch=0, sequence=sequence)
        for producer, sequence in sent
    ]
    again = led.begin(b"8:4", producer_id=8, producer_epoch=0, sequence=4)
    gap = led.begin(b"8:9", producer_id=8, producer_epoch=0, sequence=9)
    await disk.writing()
    assert not any(one.done() for one in waiting)
    disk.free.set()
    assert [(await one).base_offset for one in waiting] == list(range(1, 11))
    assert (await again).duplicate
    assert (await again).base_offset == 10
    with pytest.raises(BrokerError, match="expected 5"):
        await gap
    assert [value for _, value in read_all(led.log)][1:] == [b"%d:%d" % one for one in sent]


async def test_what_comes_when_the_disk_is_fast_again_waits_for_what_is_under_way(
    led: Led, disk: SlowDisk, clock: ManualClock
) -> None:
    first = led.begin(b"a")
    await disk.writing()
    clock.advance(int(SLOW_PERIOD_S * 1000))
    second = led.begin(b"b")
    disk.free.set()
    assert [(await one).base_offset for one in (first, second)] == [1, 2]


async def test_a_marker_stands_behind_the_records_that_came_before_it(led: Led, disk: SlowDisk) -> None:
    led_to = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    begun = [led.begin(b"%d" % n, sequence=n, **led_to) for n in range(2)]
    await disk.writing()
    aborted = led.end(1, commit=False)
    behind = led.begin(b"next", sequence=2, **led_to)
    disk.free.set()
    assert [(await one).base_offset for one in (*begun, aborted, behind)] == [1, 2, 3, 4]
    assert [tuple(one) for one in led.log.aborted.transactions_between(0, 9)] == [(1, 1)]
    assert led.partition.last_stable_offset == 4
    assert (await led.end(1)).base_offset == 5
    assert led.partition.last_stable_offset == led.partition.high_watermark == 6
    assert disk.at_once == 1, "markers are written in a thread, too"


async def test_a_write_that_fails_is_told_and_leaves_nothing_behind(led: Led, disk: SlowDisk) -> None:
    size = led.log.segments[-1].path().stat().st_size
    waiting = [led.begin(b"%d" % n, producer_id=1, producer_epoch=0, sequence=n) for n in range(2)]
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    disk.free.set()
    for one in waiting:
        with pytest.raises(BrokerError, match=r"append \d+ bytes to .*t-0: No space left") as raised:
            await one
        assert raised.value.code is ErrorCode.kafka_storage_error
    assert led.log.segments[-1].path().stat().st_size == size
    assert led.log.producers.get(1) is None
    disk.error = None
    assert (await led.begin(b"0", producer_id=1, producer_epoch=0, sequence=0)).base_offset == 1
    assert [value for _, value in read_all(led.log)] == [b"late", b"0"]


async def test_rolls_retention_and_truncation_keep_off_a_segment_that_is_written_to(
    tmp_path: Path, clock: ManualClock, disk: SlowDisk, threads: ThreadPoolExecutor
) -> None:
    led = made_slow(Led(tmp_path, clock, threads, segment_ms=10_000, retention_ms=1, preallocate=True), disk)
    first = led.begin(b"a")
    await disk.writing()
    clock.advance(60_000)
    led.log.roll_if_aged()
    assert led.log.apply_retention() == 0
    for forbidden in (
        led.log.close,
        lambda: led.log.truncate_to(0),
        lambda: append(led.log, batch(b"x")),
    ):
        with pytest.raises(BrokerError, match="under way"):
            forbidden()
    disk.free.set()
    assert (await first).base_offset == 1
    assert [value for _, value in read_all(led.log)] == [b"late", b"a"]
    led.log.roll_if_aged()
    assert led.log.active_base_offset == 2


async def test_a_segment_that_is_released_meanwhile_is_opened_again(
    tmp_path: Path, clock: ManualClock, disk: SlowDisk, threads: ThreadPoolExecutor
) -> None:
    led = Led(tmp_path, clock, threads)
    opened = OpenSegments(1)
    led.log = Log.open(tmp_path / "t-1", led.config, clock, clean=True, opened=opened)
    led.partition = Partition(TopicPartition("t", 1), led.log, 0, threads, threads)
    other = Log.open(tmp_path / "o-0", led.config, clock, clean=True, opened=opened)
    made_slow(led, disk)
    first = led.begin(b"a")
    await disk.writing()
    append(other, batch(b"x"))
    assert len(opened) == 1
    disk.free.set()
    assert (await first).base_offset == 1
    led.log.close()
    reopened = Log.open(tmp_path / "t-1", led.config, clock, clean=True)
    assert [value for _, value in read_all(reopened)] == [b"late", b"a"]


async def test_what_was_deleted_meanwhile_is_not_acknowledged(led: Led, disk: SlowDisk) -> None:
    waiting = [led.begin(b"a"), led.begin(b"b")]
    await disk.writing()
    led.partition.close()
    led.log.delete()
    disk.free.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    codes = [error.code for error in outcomes if isinstance(error, BrokerError)]
    assert codes == [ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower]


async def test_an_append_whose_client_left_is_made_all_the_same(led: Led, disk: SlowDisk) -> None:
    gone = [led.begin(b"a"), led.begin(b"b")]
    await disk.writing()
    for one in gone:
        one.cancel()
    drained = asyncio.ensure_future(led.partition.queue.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    disk.free.set()
    await drained
    assert [value for _, value in read_all(led.log)] == [b"late", b"a", b"b"]


async def test_what_the_topic_wants_on_disk_is_acknowledged_after_that(
    tmp_path: Path, clock: ManualClock, disk: SlowDisk, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = made_slow(Led(tmp_path, clock, threads, flush_messages=2), disk)
    synced, fsync = threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.wait(60) and fsync(fd))
    disk.free.set()
    waiting = led.begin(b"a")
    while led.log.log_end_offset < 2:
        await asyncio.sleep(0.001)
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    assert led.partition.high_watermark == 1
    synced.set()
    assert (await waiting).base_offset == 1
    assert led.partition.high_watermark == 2


async def test_a_marker_that_fails_leaves_the_transaction_open_until_it_comes_again(led: Led, disk: SlowDisk) -> None:
    fetch = WaitingFetch([led.partition])
    disk.free.set()
    await led.begin(b"a", producer_id=1, producer_epoch=0, sequence=0, transactional=True)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(BrokerError, match=r"append \d+ bytes to .*t-0: No space left"):
        await led.end(1)
    assert (led.log.log_end_offset, led.partition.last_stable_offset) == (2, 1)
    disk.error = None
    assert (await led.end(1)).base_offset == 2
    assert led.partition.last_stable_offset == 3
    await fetch.wait()


async def test_an_fsync_during_the_write_of_a_marker_shows_no_less_after_it(
    tmp_path: Path, clock: ManualClock, disk: SlowDisk, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = made_slow(Led(tmp_path, clock, threads, flush_messages=1), disk)
    synced, fsync = threading.Semaphore(0), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.acquire(timeout=60) and fsync(fd))
    disk.free.set()
    waiting = [led.begin(b"a"), led.begin(b"b", producer_id=1, producer_epoch=0, sequence=0, transactional=True)]
    await led.partition.queue.drain()
    assert led.partition.high_watermark == 0
    disk.free.clear()
    for _ in waiting:
        await disk.writing()
    ended = led.end(1)
    await disk.writing()
    synced.release(10)
    await asyncio.gather(*waiting)
    assert (led.partition.high_watermark, led.partition.last_stable_offset) == (3, 2)
    while synced.acquire(blocking=False):
        pass
    disk.free.set()
    await led.partition.queue.drain()
    assert (led.partition.high_watermark, led.partition.last_stable_offset) == (3, 2)
    synced.release(10)
    await ended
    assert led.partition.last_stable_offset == 4


async def test_a_coordinators_batch_is_written_in_a_thread_and_told_at_once_when_it_is_too_large(
    tmp_path: Path, clock: ManualClock, disk: SlowDisk, threads: ThreadPoolExecutor
) -> None:
    led = made_slow(Led(tmp_path, clock, threads, max_message_bytes=1_000), disk)
    waiting = led.partition.append(batch(b"a"))
    assert not isinstance(waiting, AppendResult)
    with pytest.raises(BrokerError) as raised:
        led.partition.append(batch(bytes(1_000)))
    assert raised.value.code is ErrorCode.message_too_large
    disk.free.set()
    assert (await waiting).base_offset == 1
    assert (disk.at_once, disk.elsewhere) == (1, 1)
