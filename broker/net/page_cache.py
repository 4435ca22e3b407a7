"""Whether a range of a file lies in the page cache; a `sendfile` of what does not stops the event loop for a disk.

Used by response_writer.py. The probe is a read of one byte that refuses to wait (preadv2's RWF_NOWAIT), at both ends of
the range: the kernel reads ahead and evicts in runs, so what lies between is as they are.
"""

from __future__ import annotations

import os
from typing import Final

from broker.net.response import FileRange

__all__ = ["PROBED_BYTES", "is_cached", "warm"]

PROBED_BYTES: Final = 1 << 20
"""The longest range that two probes speak for."""

SHORT_BYTES: Final = 1 << 16
"""One probe is enough for a range that the kernel reads ahead in one go."""

_SCRATCH: Final = [bytearray(1)]


def is_cached(descriptor: int, position: int, length: int) -> bool:
    """Whether reading this range waits for no disk. True, too, where the file system cannot tell (tmpfs)."""
    try:
        os.preadv(descriptor, _SCRATCH, position, os.RWF_NOWAIT)
        if length > SHORT_BYTES:
            os.preadv(descriptor, _SCRATCH, position + length - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def warm(part: FileRange, length: int) -> None:
    """Bring the first `length` bytes of `part` into the page cache; waits for the disk. sendfile tells of an error."""
    try:
        os.pread(part.file.fileno(), length, part.position)
    except OSError:
        return
