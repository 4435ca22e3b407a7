"""`boot.id` in every log directory: the boot of the machine during which a broker last wrote there.

A killed process loses no record: the operating system's page cache keeps what it wrote. A machine that goes down may
lose the end of every log that was not on disk. Then the broker must not count as in sync before it has fetched that
end again (`state_at_start` in cluster/controller_state.py, promise P1). Kafka has no such file: KIP-966 compares broker
epochs, so there every kill counts as a loss.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from broker.durable_files import write_atomically

__all__ = ["has_boot", "may_have_lost_records", "record_boot"]

logger = logging.getLogger(__name__)

FILE_NAME = "boot.id"
_CURRENT = Path("/proc/sys/kernel/random/boot_id")
_LOST = "lost"
"""Instead of a boot: records may be lost, and the broker has not left the ISRs yet."""


def has_boot(directory: Path) -> bool:
    """Whether a broker has started with the directory. One without the file is new, or was emptied. Call it before
    `may_have_lost_records`."""
    return os.path.lexists(directory / FILE_NAME) and _read(directory / FILE_NAME) != _LOST


def may_have_lost_records(directories: Iterable[Path], clean_mark: str) -> bool:
    """Whether a log in the directories may lack records that this broker had appended.

    So it is in a directory without the mark of a clean stop, unless `boot.id` names the boot that the machine still
    runs. Call it before the logs are loaded, which removes the marks. The answer True is kept on disk until
    `record_boot`: if this start fails, the next one must give it, too.
    """
    current, directories = _current(), list(directories)
    if not any(_may_have_lost(directory, clean_mark, current) for directory in directories):
        return False
    _write(directories, _LOST)
    return True


def _may_have_lost(directory: Path, clean_mark: str, current: str) -> bool:
    recorded = _read(directory / FILE_NAME)
    return recorded == _LOST or (not (directory / clean_mark).exists() and (not current or recorded != current))


def record_boot(directories: Iterable[Path]) -> None:
    """Write the present boot into the directories. Call it when this broker is in no ISR wrongly any more, and before
    it appends: this also makes the removal of the marks durable, which are in the same directories."""
    _write(directories, _current())


def _write(directories: Iterable[Path], text: str) -> None:
    for directory in directories:
        try:
            write_atomically(directory / FILE_NAME, text.encode())
        except OSError as error:
            logger.warning("cannot write %s: %s", directory / FILE_NAME, error)


def _current() -> str:
    """Linux's id of the boot; empty where the system has none."""
    return _read(_CURRENT)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
