"""At which offset each leader epoch begins, so that followers and consumers can detect truncation (KIP-101, KIP-320).

Owned by log.py, one for each partition; recovery.py fills it. Entries grow in both columns. Changes stay in memory
until `save`, which blocks for two fsyncs and therefore runs in a worker thread: before a flush moves the recovery point
past the first record of an epoch, and with the next tick. After a crash, recovery finds unsaved epochs in the batches
after the recovery point. Idea: Kafka's `LeaderEpochFileCache`.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from broker.errors import ConfigError
from broker.log.checkpoints import read_epochs, write_epochs

logger = logging.getLogger(__name__)

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """(epoch, start offset) pairs of one partition. Not thread-safe, except `save`."""

    def __init__(self, path: Path) -> None:
        """Read the checkpoint at `path`. Without a readable one, `is_lost` is True."""
        self._path = path
        self._saving = threading.Lock()
        self._is_abandoned = False
        self.is_lost = not path.exists()
        """Whether the epochs must be read from the log's batches."""
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
        """The newest epoch with records; -1 for none."""
        return self._entries[-1][0] if self._entries else NO_EPOCH

    @property
    def is_saved(self) -> bool:
        return self._entries is self._saved

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let `epoch` begin at `start_offset`, the end of the log before it, unless the epoch is known already.

        In a copy of a compacted log the epoch's first batch may lie behind a gap. If the epoch began there, a replica
        with records of an older epoch in the gap would not be told to drop them.
        """
        if epoch > self.latest:
            self._entries = [*self._entries, (epoch, start_offset)]

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at `offset`; -1 before the first epoch."""
        following = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[following - 1][0] if following else NO_EPOCH

    def end_offset(self, epoch: int, leader_epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, offset after its last record) for the largest epoch up to `epoch`; (-1, -1) if unknown.

        `leader_epoch` begins at `log_end_offset` if it has no records yet.
        """
        entries = self._entries
        if leader_epoch > self.latest:
            entries = [*entries, (leader_epoch, log_end_offset)]
        if epoch == NO_EPOCH or not entries or epoch > entries[-1][0]:
            return NO_EPOCH, NO_OFFSET
        following = bisect_right(entries, epoch, key=lambda entry: entry[0])
        end = entries[following][1] if following < len(entries) else log_end_offset
        return (entries[following - 1][0], end) if following else (epoch, end)

    def begin_with(self, entries: Sequence[tuple[int, int]]) -> None:
        """Begin with the epochs of records before the log, in place of all that are known."""
        self._replace(list(entries))

    def truncate_from_end(self, offset: int) -> None:
        """Forget epochs that begin at `offset` or later."""
        self._replace([entry for entry in self._entries if entry[1] < offset])

    def truncate_from_start(self, offset: int) -> None:
        """Forget epochs that end before `offset`, and let the epoch that contains it begin there."""
        following = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        if following:
            epoch, _ = self._entries[following - 1]
            self._replace([(epoch, offset), *self._entries[following:]])

    def save(self) -> None:
        """Write the file if needed; from any thread. Raises OSError."""
        with self._saving:
            entries = self._entries
            if entries is not self._saved and not self._is_abandoned:
                write_epochs(self._path, entries)
                self._saved = entries

    def save_truncation(self) -> None:
        """Write the file if it names epochs that were dropped, which would come back after a crash. Raises OSError."""
        if self._saved and self._saved[-1][0] > self.latest:
            self.save()

    def abandon(self) -> None:
        """Save nothing any more: the partition was deleted, and a new one may get its directory."""
        with self._saving:
            self._is_abandoned = True

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._entries:
            self._entries = entries
