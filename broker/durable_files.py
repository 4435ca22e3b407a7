"""Replaces small files such as checkpoints atomically and durably.

The data is synced before the rename and the directory after it, so that after a power loss a start finds the old or the
new file, never an empty one (Kafka: `CheckpointFile` over `Utils.atomicMoveWithFallback`).
"""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that is being written. A start deletes those that a crash left."""


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file. Readers, and a start after a crash or power loss, see the whole old or new file.

    Blocks for two fsyncs. Raises OSError.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make creations, renames and deletions in a directory durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
