"""A slow disk in the process of the test; the conftest of a folder that needs it imports its fixtures."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.clock import ManualClock
from broker.log import disk as disk_module
from broker.log.disk import SLOW_S
from tests.support.batches import NOW

LATE_MS = int(SLOW_S * 1000) + 1


class SlowDisk:
    """`os.pwrite` into log files takes `late_ms` of the clock; in other threads than ours it waits for `free`, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
        self.late_ms = 0
        self.error: OSError | None = None
        self.free = threading.Event()
        self.begun = threading.Semaphore(0)
        self.elsewhere = 0
        self.at_once = 0
        ours, pwrite = threading.current_thread(), os.pwrite
        self._lock = threading.Lock()

        def slow(fd: int, data: bytes, position: int) -> int:
            if not os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                return pwrite(fd, data, position)
            if threading.current_thread() is ours:
                self.at_once += 1
            else:
                assert self._lock.acquire(blocking=False), "two writes at a time"
                self.elsewhere += 1
                self.begun.release()
                assert self.free.wait(60)
                self._lock.release()
            clock.advance(self.late_ms)
            if self.error is not None:
                pwrite(fd, bytes(data)[:10], position)
                raise self.error
            return pwrite(fd, data, position)

        monkeypatch.setattr(os, "pwrite", slow)
        monkeypatch.setattr(disk_module, "thread_waits", itertools.count(-1, -1).__next__)  # never as before

    async def writing(self) -> None:
        """Until a write has begun in a thread, one for each call."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=60)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> SlowDisk:
    return SlowDisk(monkeypatch, clock)


@pytest.fixture
def threads(disk: SlowDisk) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads
        disk.free.set()
