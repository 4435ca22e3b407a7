"""When a disk counts as slow: a write took long, and the thread waited in it."""

from __future__ import annotations

import select
from pathlib import Path

from broker.log.disk import SLOW_PERIOD_S, SLOW_S, Disk, thread_waits

LATE_S = 2 * SLOW_S


def wait_for_something() -> None:
    """As a write does whose disk is busy: the thread sleeps in the kernel."""
    select.select([], [], [], 0.001)


def test_a_late_write_that_waited_makes_the_disk_slow_for_a_while(tmp_path: Path) -> None:
    disk, waits = Disk(tmp_path), thread_waits()
    wait_for_something()
    disk.wrote(10.0, 10.0 + LATE_S, waits)
    assert disk.slow_until == 10.0 + LATE_S + SLOW_PERIOD_S


def test_a_late_write_that_only_lacked_the_processor_does_not(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.wrote(10.0, 10.0 + LATE_S, thread_waits())
    assert disk.slow_until == 0


def test_a_write_in_time_does_not(tmp_path: Path) -> None:
    disk, waits = Disk(tmp_path), thread_waits()
    wait_for_something()
    disk.wrote(10.0, 10.0 + SLOW_S / 2, waits)
    assert disk.slow_until == 0
