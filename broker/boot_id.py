"""`boot.id` in every log directory: the boot of the machine during which a broker last wrote there.

A killed process loses no record: the operating system's page cache keeps what it wrote. A machine that goes down may
lose the end of every log that was not on disk. Then the broker must not count as in sync before it has fetched that
end again (`state_at_start` in cluster/controller_state.py, promise P1). Kafka has no such file: KIP-966 compares broker
epochs, so there every kill counts as a loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from broker.durable_files import write_atomically

__all__ = ["may_have_lost_records", "record_boot"]

logger = logging.getLogger(__name__)

FILE_NAME = "boot.id"
_CURRENT = Path("/proc/sys/kernel/random/boot_id")


def may_have_lost_records(directories: Iterable[Path], clean_mark: str) -> bool:
    """Whether a log in the directories may lack records that this broker had appended.

    So it is in a directory without the mark of a clean stop, unless `boot.id` names the boot that the machine still
    runs. Call it before the logs are loaded, which removes the marks.
    """
    current = _current()
    return any(
        not (directory / clean_mark).exists() and (not current or _read(directory / FILE_NAME) != current)
        for directory in directories
    )


def record_boot(directories: Iterable[Path]) -> None:
    """Write the present boot into the directories. Call it after the logs were loaded: this also makes the removal of
    the marks durable, which are in the same directories."""
    for directory in directories:
        try:
            write_atomically(directory / FILE_NAME, _current().encode())
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
