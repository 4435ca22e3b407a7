"""Memory that is freed and taken again, without the kernel in between: for processes whose requests are large.

Called at the start of a broker, and by the connector's tasks that write.
"""

from __future__ import annotations

import ctypes
from typing import Final

# glibc's mallopt(3).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory(kept_bytes: int) -> bool:
    """Let the C library keep the memory of one request for the next. Returns False where there is no glibc.

    The heap keeps `kept_bytes` of freed memory; a single block of this size, which may be 32 MiB, goes back to the
    kernel at once. Otherwise the memory of a Produce request of a megabyte goes back to the kernel and is taken again
    page by page: more than half of the CPU time of producing large batches (docs/performance-history.md).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, kept_bytes) and mallopt(_M_TRIM_THRESHOLD, kept_bytes))
