"""Which leader epoch begins at which offset: what a follower or a consumer asks to find a cut log (KIP-101, KIP-320).

Used by log.py, which owns one per partition, and by recovery.py. Entries grow in both columns. A change is kept in
memory and written by `save`, which blocks for two fsyncs and so runs in a worker thread: with the next flush, before
the recovery point passes the first record of the epoch, else with the next tick. What a crash takes of it recovery
finds in the batches past the recovery point.
Idea: Kafka's `LeaderEpochFileCache`.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from pathlib import Path

from broker.errors import ConfigError
from broker.log.checkpoints import read_epochs, write_epochs

__all__ = ["NO_EPOCH", "LeaderEpochs"]

logger = logging.getLogger(__name__)

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """(epoch, start offset) pairs of one partition. Not thread-safe, except `save`."""

    def __init__(self, path: Path) -> None:
        """Reads the checkpoint at `path`; when there is none, or none that can be read, `is_lost`."""
        self._path = path
        self._saving = threading.Lock()
        self._is_abandoned = False
        self.is_lost = not path.exists()
        """The batches have to be asked; of a new log there are none."""
        try:
            entries = read_epochs(path)
        except ConfigError as error:
            logger.warning("%s; finding the leader epochs in the batches", error)
            entries, self.is_lost = [], True
        self._entries = self._saved = entries

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch anything was appended in; -1 for none."""
        return self._entries[-1][0] if self._entries else NO_EPOCH

    @property
    def is_saved(self) -> bool:
        return self._entries is self._saved

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that records from `start_offset` on are of `epoch`, unless it is known already."""
        if epoch > self.latest:
            self._entries = [*self._entries, (epoch, start_offset)]

    def end_offset(self, epoch: int, leader_epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, offset after its last record) for the largest epoch up to `epoch`; (-1, -1) if unknown.

        What is appended from `log_end_offset` on will be of `leader_epoch`.
        """
        entries = self._entries
        if leader_epoch > self.latest:
            entries = [*entries, (leader_epoch, log_end_offset)]
        if epoch == NO_EPOCH or not entries or epoch > entries[-1][0]:
            return NO_EPOCH, NO_OFFSET
        following = bisect_right(entries, epoch, key=lambda entry: entry[0])
        end = entries[following][1] if following < len(entries) else log_end_offset
        return (entries[following - 1][0], end) if following else (epoch, end)

    def truncate_from_end(self, offset: int) -> None:
        """Forget epochs that begin at `offset` or after."""
        self._replace([entry for entry in self._entries if entry[1] < offset])

    def truncate_from_start(self, offset: int) -> None:
        """Forget epochs that end before `offset`; the one that holds it begins there."""
        following = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        if following:
            epoch, _ = self._entries[following - 1]
            self._replace([(epoch, offset), *self._entries[following:]])

    def save(self) -> None:
        """Bring the file up to date; from any thread. Raises OSError."""
        with self._saving:
            entries = self._entries
            if entries is not self._saved and not self._is_abandoned:
                write_epochs(self._path, entries)
                self._saved = entries

    def abandon(self) -> None:
        """The partition is deleted: nothing is saved any more, for a new one may be in its directory soon."""
        with self._saving:
            self._is_abandoned = True

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._entries:
            self._entries = entries
