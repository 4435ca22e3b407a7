"""Tells an archive that is empty from one that is not there: a mount that is missing, a bucket that was deleted.

The first broker of a cluster puts a marker beside the cluster's topics. Each broker notes in its first log directory
that it has seen the marker. From then on, an archive without it is away: nothing is copied there, and so no record
leaves a disk for a copy in an empty directory below the mount point.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from broker.archive.layout import marker
from broker.durable_files import write_atomically
from broker.storage.storage import Storage

NOTE = "archive.url"
"""In the first log directory: the URL of the archive whose marker was seen, without secrets."""


class ArchiveMarker:
    """The marker of one cluster's archive, as one broker knows it. Blocks; for any thread."""

    def __init__(self, storage: Storage, cluster_id: str, directory: Path) -> None:
        self._storage = storage
        self._path = marker(cluster_id)
        self._note = directory / NOTE

    def check(self) -> None:
        """Make the marker the first time. Raises OSError if the store has it no more, or cannot be asked."""
        try:
            self._storage.read(self._path)
        except FileNotFoundError:
            if self._is_noted():
                raise OSError(
                    f"{self._storage.shown} was this cluster's archive and has no {self._path} now: is it mounted, "
                    f"and is it the same store? If all that it held is given up, delete {self._note}"
                ) from None
            with contextlib.suppress(FileExistsError):  # of another broker
                self._storage.create(self._path, b"{}\n")
        if not self._is_noted():
            write_atomically(self._note, f"{self._storage.shown}\n".encode())

    def _is_noted(self) -> bool:
        try:
            return self._note.read_text().strip() == self._storage.shown
        except FileNotFoundError:
            return False
