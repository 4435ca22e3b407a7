"""What a broker's process asks of its operating system before it starts. Called by `pykafka broker start`."""

from __future__ import annotations

import contextlib
import ctypes
import resource

__all__ = ["allow_many_files", "keep_freed_memory"]

# glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 16 << 20
"""Freed memory at the top of the heap that stays ours; a single block of this size goes back at once."""


def allow_many_files() -> None:
    """Connections and segments are descriptors; the soft limit, often 1024, is meant for `select` (as the JVM does)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses what its kernel does not give
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_freed_memory() -> bool:
    """Let the C library keep what a request freed for the next one; whether it could be told.

    Produce requests of a megabyte each would otherwise be given back to the kernel and taken, page by page, anew:
    more than half of the CPU of producing large batches (docs/performance.md). A no-op where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
