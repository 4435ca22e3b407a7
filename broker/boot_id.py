"""`boot.id` in every log directory: the boot of the machine when a broker last started with it, and its `log.dirs`.

A killed process loses no record: the operating system's page cache keeps what it wrote. A machine that goes down may
lose the end of every log that was not on disk. Then the broker must not count as in sync before it has fetched that
end again (`state_at_start` in cluster/controller_state.py, promise P1). Kafka has no such file: KIP-966 compares broker
epochs, so there every kill counts as a loss.

The file also shows whether something is missing: a directory without it is new or was emptied, and one that it names
was taken out of `log.dirs`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from broker.durable_files import write_atomically

logger = logging.getLogger(__name__)

FILE_NAME = "boot.id"
_CURRENT = Path("/proc/sys/kernel/random/boot_id")
_LOST = "lost"
"""Instead of a boot: records may be lost, and the broker has not left the ISRs yet."""


def are_those_of_last_start(directories: Iterable[Path], log_dirs: Iterable[Path]) -> bool:
    """Whether these directories hold what the broker had: a start has used each of them, and with no directory that is
    not in `log_dirs` now. Call it before `may_have_lost_records`."""
    named = set(_texts(log_dirs))
    for directory in directories:
        boot, *others = _read(directory / FILE_NAME)
        if boot == _LOST or not (directory / FILE_NAME).exists() or not named.issuperset(others):
            return False
    return True


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
    recorded = _read(directory / FILE_NAME)[0]
    return recorded == _LOST or (not (directory / clean_mark).exists() and (not current or recorded != current))


def record_boot(directories: Iterable[Path], log_dirs: Iterable[Path] = ()) -> None:
    """Write the present boot and `log_dirs` into the directories.

    Call it when this broker is in no ISR wrongly any more, and before it appends: this also makes the removal of the
    marks durable, which are in the same directories.
    """
    _write(directories, "\n".join([_current(), *_texts(log_dirs)]))


def _texts(log_dirs: Iterable[Path]) -> list[str]:
    return [os.path.abspath(path) for path in log_dirs]


def _write(directories: Iterable[Path], text: str) -> None:
    for directory in directories:
        try:
            write_atomically(directory / FILE_NAME, text.encode())
        except OSError as error:
            logger.warning("cannot write %s: %s", directory / FILE_NAME, error)


def _current() -> str:
    """Linux's id of the boot; empty where the system has none."""
    return _read(_CURRENT)[0]


def _read(path: Path) -> list[str]:
    """The lines of the file, at least one."""
    try:
        return path.read_text().rstrip().split("\n")
    except (OSError, ValueError):
        return [""]
