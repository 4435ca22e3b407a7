"""A directory in memory, for tests that sync hundreds of commits: on a disk each sync waits for all who write there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ENOUGH = 2 << 30  # bytes; a test writes some megabytes


def is_there() -> bool:
    """Whether this machine has one, with room."""
    if not os.access(_MEMORY, os.W_OK):
        return False
    found = os.statvfs(_MEMORY)
    return found.f_bavail * found.f_frsize > _ENOUGH


@contextmanager
def memory_directory() -> Iterator[Path]:
    """An empty one, which is removed in the end."""
    made = Path(tempfile.mkdtemp(prefix="pykafka-test-", dir=_MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
