"""Records that must be on disk first: who waits shares fsyncs, and nothing is read before."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.log.log_config import LogConfig
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from broker.replica.partition import Partition
from tests.support.batches import append, batch, open_log
from tests.support.delayed import WaitingFetch
from tests.support.waiting import eventually


class Disk:
    """`os.fsync` of log files waits until it is let go on; each is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fsyncs = 0
        self.error: OSError | None = None
        self.free = threading.Event()
        fsync = os.fsync

        def held(fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                self.fsyncs += 1
                assert self.free.wait(60)
                if self.error is not None:
                    raise self.error
            fsync(fd)

        monkeypatch.setattr(os, "fsync", held)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def threads(disk: Disk) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads
        disk.free.set()


def partition(directory: Path, threads: ThreadPoolExecutor, flush_messages: int = 1) -> Partition:
    log = open_log(directory / "t-0", LogConfig(flush_messages=flush_messages))
    return Partition(TopicPartition("t", 0), log, 0, threads)


async def test_all_who_wait_share_an_fsync(tmp_path: Path, disk: Disk, threads: ThreadPoolExecutor) -> None:
    led = partition(tmp_path, threads)
    waiting = []
    for number in range(50):
        led.append(batch(b"%d" % number))
        waiting.append(led.flushed())
        await asyncio.sleep(0)
    assert all(one is not None and not one.done() for one in waiting)
    disk.free.set()
    await asyncio.gather(*(one for one in waiting if one is not None))
    assert led.log.recovery_point == 50
    assert disk.fsyncs <= 3


async def test_nothing_is_read_before_it_is_on_disk(tmp_path: Path, disk: Disk, threads: ThreadPoolExecutor) -> None:
    led = partition(tmp_path, threads)
    for committed in (False, True):
        disk.free.clear()
        start = led.log.log_end_offset
        fetch = WaitingFetch([led], committed=committed)
        led.append(batch(b"a"))
        waiting = led.flushed()
        assert waiting is not None
        assert (led.high_watermark, led.last_stable_offset) == (start, start)
        assert led.read(start, 1000, committed=committed) is None
        assert fetch in led.waiters, "an append is no news yet"
        disk.free.set()
        await waiting
        assert (led.high_watermark, led.last_stable_offset) == (start + 1, start + 1)
        await fetch.wait()
        assert led.read(start, 1000, committed=committed) is not None


async def test_a_marker_shows_its_transaction_once_it_is_on_disk(
    tmp_path: Path, disk: Disk, threads: ThreadPoolExecutor
) -> None:
    led = partition(tmp_path, threads)
    disk.free.set()
    led.append(batch(b"a", producer_id=1, producer_epoch=0, sequence=0, transactional=True))
    await flushed(led)
    assert (led.high_watermark, led.last_stable_offset) == (1, 0)
    disk.free.clear()
    led.append_marker(EndMarker(1, 0, ControlType.COMMIT, 0))
    waiting = led.flushed()
    assert (led.high_watermark, led.last_stable_offset) == (1, 0)
    disk.free.set()
    assert waiting is not None
    await waiting
    assert (led.high_watermark, led.last_stable_offset) == (2, 2)


async def test_what_a_failed_fsync_lost_is_neither_acknowledged_nor_read(
    tmp_path: Path, disk: Disk, threads: ThreadPoolExecutor
) -> None:
    led = partition(tmp_path, threads)
    disk.error = OSError(5, "Input/output error")
    disk.free.set()
    led.append(batch(b"a"))
    with pytest.raises(BrokerError, match="cannot flush") as raised:
        await flushed(led)
    assert raised.value.code is ErrorCode.kafka_storage_error
    assert (led.high_watermark, led.last_stable_offset) == (0, 0)
    with pytest.raises(BrokerError, match="fsync failed"):
        led.append(batch(b"b"))


async def test_what_the_topic_does_not_want_flushed_is_read_at_once(
    tmp_path: Path, disk: Disk, threads: ThreadPoolExecutor
) -> None:
    led = partition(tmp_path, threads, flush_messages=3)
    for end in (1, 2):
        led.append(batch(b"a"))
        assert led.flushed() is None
        assert led.high_watermark == end
    led.append(batch(b"a"))
    waiting = led.flushed()
    assert waiting is not None
    assert led.high_watermark == 2
    disk.free.set()
    await waiting
    assert led.high_watermark == 3


async def flushed(led: Partition) -> None:
    waiting = led.flushed()
    assert waiting is not None
    await waiting


def test_who_flushes_from_another_thread_meanwhile_need_not_do_it_again(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, batch(b"a"))
    flushing = [threading.Thread(target=log.flush) for _ in range(5)]
    for thread in flushing:
        thread.start()
    eventually(lambda: disk.fsyncs == 1)
    disk.free.set()
    for thread in flushing:
        thread.join()
    assert disk.fsyncs == 1
