"""Whether the disk of a data directory takes appends, said once when it stops and once when it goes on; and how fast.

Each log of the directory tells of its appends; /healthz asks. A full disk ends nothing: producers are refused with
KAFKA_STORAGE_ERROR, which they retry, and the next append that fits is taken. (Kafka takes the directory offline.)
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.errors import BrokerError
from broker.log.storage_errors import storage_error

__all__ = ["Disk"]

logger = logging.getLogger(__name__)

PROBE = ".probe"
LARGEST_PROBE = 1 << 20

SLOW_S: Final = 0.02
"""A write into the page cache that took longer has waited: for other pages to be written out, or for the journal."""

SPELL_S: Final = 5.0
"""How long after it the next such wait is to be expected."""


class Disk:
    """The disk under one data directory. Appends tell it from the event loop; `wrote` and `works` suit any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failure = ""
        self._refused_bytes = 0
        self.slow_until = 0.0
        """On the monotonic clock, s: appends wait for it now and then until then."""

    @property
    def failure(self) -> str:
        """Why the last append was refused; empty while appends are taken."""
        return self._failure

    def refused(self, log_directory: Path, size: int, error: OSError) -> BrokerError:
        """An append of `size` bytes to a log failed; gives the error for its producer."""
        refusal = storage_error(f"append {size} bytes to", log_directory, error)
        if not self._failure:
            logger.error("%s%s; appends are refused until it takes them again", refusal.message, self._room())
        self._failure = refusal.message
        self._refused_bytes = size
        return refusal

    def taken(self) -> None:
        """An append succeeded; to be called after one failed."""
        self._failure = ""
        logger.warning("%s takes appends again%s", self._directory, self._room())

    def wrote(self, began: float, ended: float) -> None:
        """A write of an append took so long, on the monotonic clock."""
        if ended - began > SLOW_S:
            self.slow_until = ended + SPELL_S

    def works(self) -> bool:
        """Whether an append would be taken now. After a failure it is tried with a file as large, at most 1 MiB."""
        if not self._failure:
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
