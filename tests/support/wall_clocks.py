"""The wall clock of each broker process, which a test moves while the broker runs.

`install`, planted in the brokers (planted.py), replaces `time.time` and `time.time_ns`: they add what the broker's file
says. Only the wall clock moves; no machine's monotonic clock does.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.planted import planted

_DIRECTORY = "PYKAFKA_TEST_CLOCKS"
_SHIFT = struct.Struct("=q")
"""Nanoseconds that are added to the wall clock."""


class WallClocks:
    """The wall clocks of the brokers 1 to `count`."""

    def __init__(self, directory: Path, count: int) -> None:
        self._files = {number: directory / f"clock-{number}" for number in range(1, count + 1)}
        for file in self._files.values():
            file.write_bytes(_SHIFT.pack(0))

    def set(self, broker: int, ahead_s: float) -> None:
        """Let a broker's wall clock be so far ahead of the machine's, or behind it, from now on."""
        with self._files[broker].open("r+b") as file:
            file.write(_SHIFT.pack(int(ahead_s * 1e9)))


@contextmanager
def movable_clocks(directory: Path, count: int, *functions: str) -> Iterator[WallClocks]:
    """Brokers that start in this block have clocks that can be moved. `functions` are planted in them, too."""
    os.environ[_DIRECTORY] = str(directory)
    try:
        with planted(directory, f"{__name__}:install", *functions):
            yield WallClocks(directory, count)
    finally:
        del os.environ[_DIRECTORY]


def install() -> None:
    """In a broker's process: let the wall clock be what the file of the broker's id says."""
    ids = [word.partition("=")[2] for word in sys.orig_argv if word.startswith("broker.id=")]
    with (Path(os.environ[_DIRECTORY]) / f"clock-{ids[-1]}").open("rb") as file:
        shift = mmap.mmap(file.fileno(), _SHIFT.size, access=mmap.ACCESS_READ)
    real_ns, read = time.time_ns, _SHIFT.unpack_from

    def moved_ns() -> int:
        (ahead,) = read(shift)
        return real_ns() + int(ahead)

    time.time_ns = moved_ns
    time.time = lambda: moved_ns() / 1e9
