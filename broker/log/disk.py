"""The disk of a data directory: whether it takes appends, whether it is slow, and its errors as Kafka's error.

Each log of the directory reports its appends; /healthz asks. When a disk is full, producers get KAFKA_STORAGE_ERROR
and retry, and the next append that fits succeeds. (Kafka takes the directory offline.) The log says once that appends
fail, and once that they succeed again.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from broker.errors import BrokerError, ErrorCode

logger = logging.getLogger(__name__)

PROBE = ".probe"
LARGEST_PROBE = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

SLOW_S: Final = 0.02
"""A write into the page cache that took longer, and waited, had to wait for the disk: for writeback or for the
journal."""

SLOW_PERIOD_S: Final = 5.0
"""How long after such a write others are expected to wait as well."""


def thread_waits() -> int:
    """How often this thread has waited for something. Who only had to give the processor to others did not wait.

    Where the system does not tell, as on macOS, the number grows with each call.
    """
    if not hasattr(resource, "RUSAGE_THREAD"):
        return time.perf_counter_ns()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def storage_error(act: str, directory: Path, error: OSError) -> BrokerError:
    """KAFKA_STORAGE_ERROR that says what could not be done to which directory."""
    return BrokerError(ErrorCode.kafka_storage_error, f"cannot {act} {directory}: {error.strerror or error}")


@contextmanager
def wrap_disk_errors(act: str, directory: Path) -> Iterator[None]:
    """Turn an OSError of the block into a `storage_error`. Hot paths catch it themselves: this costs a microsecond."""
    try:
        yield
    except OSError as error:
        raise storage_error(act, directory, error) from error


class Disk:
    """The disk under one data directory. Appends report from the event loop. `wrote` and `works` suit any thread."""

    def __init__(self, directory: Path) -> None:
        self.failure = ""
        """Why the last append was refused; empty while appends succeed."""
        self.broken = ""
        """The same, if that was not for want of room: the disk needs a hand."""
        self.slow_until = 0.0
        """Until this time (monotonic clock, s) an append may have to wait for the disk."""
        self._directory = directory
        self._refused_bytes = 0

    def refused(self, log_directory: Path, size: int, error: OSError) -> BrokerError:
        """Report that an append of `size` bytes failed; returns the error for its producer."""
        refusal = storage_error(f"append {size} bytes to", log_directory, error)
        if not self.failure:
            logger.error("%s%s; appends are refused until it takes them again", refusal.message, self._room())
        self.failure = refusal.message
        self.broken = "" if error.errno in _FULL else refusal.message
        self._refused_bytes = size
        return refusal

    def taken(self) -> None:
        """Report that an append succeeded after one that failed."""
        self.failure = self.broken = ""
        logger.warning("%s takes appends again%s", self._directory, self._room())

    def wrote(self, began: float, ended: float, waits: int) -> None:
        """Report when the write of an append began and ended (monotonic clock, s), from its thread.

        `waits`: `thread_waits()` before it. On a busy machine a write takes long because others have the processor.
        """
        if ended - began > SLOW_S and thread_waits() != waits:
            self.slow_until = ended + SLOW_PERIOD_S

    def works(self) -> bool:
        """Whether an append would succeed now. After a failure, tries to write a file as large, at most 1 MiB."""
        if not self.failure:
            return True
        probe = self._directory / PROBE
        try:
            probe.write_bytes(bytes(min(self._refused_bytes, LARGEST_PROBE)))
        except OSError:
            return False
        finally:
            with suppress(OSError):
                probe.unlink()
        return True

    def _room(self) -> str:
        try:
            return f" ({shutil.disk_usage(self._directory).free} bytes are free)"
        except OSError as error:
            return f" ({os.strerror(error.errno or 0)})"
