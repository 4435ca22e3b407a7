"""Which leader epoch begins at which offset: what a follower asks before it cuts its log (KIP-101).

Used by log.py, which owns one per partition, and by recovery.py. Entries grow in both columns; the file
is replaced at every change, which is once per leader election. Idea: Kafka's `LeaderEpochFileCache`.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from broker.log.checkpoints import read_epochs, write_epochs

__all__ = ["NO_EPOCH", "LeaderEpochs"]

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """(epoch, start offset) pairs of one partition. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Reads the checkpoint at `path` if there is one. Raises ConfigError."""
        self._path = path
        self._entries = read_epochs(path)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch anything was appended in; -1 for none."""
        return self._entries[-1][0] if self._entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int, *, save: bool = True) -> None:
        """Note that records from `start_offset` on are of `epoch`, unless it is known already. Raises OSError."""
        if epoch <= self.latest:
            return
        entries = [*self._entries, (epoch, start_offset)]
        if save:
            write_epochs(self._path, entries)
        self._entries = entries

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, offset after its last record) for the largest epoch up to `epoch`; (-1, -1) if unknown."""
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        following = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        end = self._entries[following][1]
        return (self._entries[following - 1][0], end) if following else (epoch, end)

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
        """Raises OSError."""
        write_epochs(self._path, self._entries)

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._entries:
            write_epochs(self._path, entries)
            self._entries = entries
