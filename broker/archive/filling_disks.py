"""Which disks fill up because the archive lags: nothing leaves them before it is archived. archive_manager.py asks."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

WARN_FROM: Final = 0.8
"""Share of a disk that is in use."""


class FillingDisks:
    """The directories of `log.dirs` that a warning is about. `look` is called in a thread, the others anywhere."""

    def __init__(self) -> None:
        self._used: dict[Path, float] = {}

    def look(self, lagging: Collection[Path]) -> None:
        """Look at the disks of these directories, whose partitions wait to be archived. Logs each once, and its end."""
        used = {directory: used_share(directory) for directory in lagging}
        before, self._used = self._used, {one: share for one, share in used.items() if share >= WARN_FROM}
        for directory, share in self._used.items():
            if directory not in before:
                logger.warning("%s fills up: its %s", directory, _text(share))
        for directory in before.keys() - self._used.keys():
            logger.info("%s does not fill up any more, or its archives have caught up", directory)

    def warning(self, directory: Path) -> str:
        """What to say of a partition there whose archive lags; empty if there is room."""
        share = self._used.get(directory)
        return "" if share is None else f"its leader's {_text(share)}"

    @property
    def count(self) -> int:
        """Directories that a warning is about."""
        return len(self._used)


def _text(share: float) -> str:
    return f"disk is {share:.0%} full, and keeps what is not archived"


def used_share(directory: Path) -> float:
    """How much of the disk is in use, of what this process may use; 0 where that cannot be known."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0.0
    used = found.f_blocks - found.f_bfree
    return used / (used + found.f_bavail) if used + found.f_bavail else 0.0
