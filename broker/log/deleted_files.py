"""Files of deleted segments that wait for file.delete.delay.ms before they are unlinked.

Owned by log.py. The files are renamed already and out of the log; a start finds and removes what a crash
left of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["DeletedFiles"]


class DeletedFiles:
    """Paths with the time, ms, at which each is due."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Path]] = []

    def add(self, due_ms: int, paths: Iterable[Path]) -> None:
        self._waiting += [(due_ms, path) for path in paths]

    def take(self, now_ms: int) -> list[Path]:
        """What is due by now, for the caller to unlink; it is forgotten here."""
        due = [path for when, path in self._waiting if when <= now_ms]
        if due:
            self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        return due
