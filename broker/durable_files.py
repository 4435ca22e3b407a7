"""Small files that are replaced whole and survive a power loss: the one way in which checkpoints are written.

Used by broker/log for its checkpoints and by meta_properties.py. The data is fsynced before the rename and the
directory after it, so that a start finds the old or the new file, never an empty one (Kafka: `CheckpointFile` over
`Utils.atomicMoveWithFallback`).
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["TEMPORARY_SUFFIX", "sync_directory", "write_atomically"]

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of a file that is being written; a start removes what a crash left of them."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file: readers, and a start after a crash or a power loss, see the old or the new one whole.

    Blocks for two fsyncs. Raises OSError.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
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
    """Make creations, renames and deletions in it durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
