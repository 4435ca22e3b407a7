"""The commit log of a group's loads: the one place that says which loads count, and how far the offsets are.

`append` is the commit point of a load: one atomic act that stores the offsets and the load together, or raises
OffsetConflict. This module holds the contract and the log in files (`<output>/_offsets`, entries of the files offset
store, so that readers can start from it too); loads/log_zookeeper.py holds the other. Called by loads/commit.py.

A load that is committed is still to be published (loads/commit.py); the log remembers whether that is done.
"""

from __future__ import annotations

from typing import Protocol

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.state import Newest
from spark_connector.offset_store.base import OffsetConflict, check_expected
from spark_connector.offset_store.files import FilesEntry, FilesOffsetStore
from spark_connector.storage import Storage

__all__ = ["OFFSETS_DIRECTORY", "FilesLoadLog", "LoadLog"]

OFFSETS_DIRECTORY = "_offsets"
"""Below the output directory; the name is hidden from Spark and pyarrow."""

_PRUNED = ".pruned"  # <number>.pruned: the entries up to this number are forgotten


class LoadLog(Protocol):
    """Loads of one group, numbered from 1."""

    kind: str

    def newest(self) -> Newest:
        """The entry with the highest number."""
        ...

    def offsets(self) -> dict[TopicPartition, int]:
        """Next offset of every partition the group has committed."""
        ...

    def record(self, sequence: int) -> LoadRecord | None:
        """The load committed under this number; None when there is none, or the entry is no load."""
        ...

    def sequences(self) -> list[int]:
        """All numbers, ascending."""
        ...

    def records(self) -> list[LoadRecord]:
        """All loads and rewinds, in order of number."""
        ...

    def check(self, record: LoadRecord) -> None:
        """Raise LoadTooLarge for a load that could not be committed, before its rows are written."""
        ...

    def append(self, record: LoadRecord) -> None:
        """Commit. Done already (by a repair elsewhere) is fine. Raises OffsetConflict when another came first."""
        ...

    def mark_published(self, record: LoadRecord) -> None:
        """Note that the load's data is in place. May be called again."""
        ...

    def prune(self, keep: int) -> list[int]:
        """Forget all entries but the newest `keep` (at least 1); gives their numbers, oldest first.

        The oldest goes first, so that at every moment what is left is without a gap.
        """
        ...

    def close(self) -> None: ...


class FilesLoadLog:
    """The log in the output directory itself: an exclusive create per load is the commit."""

    kind = "files"

    def __init__(self, output: Storage, group: str) -> None:
        self._storage = output.below(OFFSETS_DIRECTORY)
        self._store = FilesOffsetStore(self._storage)
        self._group = group

    def newest(self) -> Newest:
        entry = self._store.newest(self._group)
        if entry is None:
            return Newest()
        record = self._load_of(entry)
        if record is None:
            return Newest(entry.sequence)
        return Newest(entry.sequence, record.load_id, self._storage.exists(self._published_mark(entry.sequence)))

    def offsets(self) -> dict[TopicPartition, int]:
        return self._store.read(self._group)

    def record(self, sequence: int) -> LoadRecord | None:
        entry = self._store.recall(self._group, sequence)
        return None if entry is None else self._load_of(entry)

    def sequences(self) -> list[int]:
        pruned = self._pruned_up_to()
        return [number for number in self._store.sequences(self._group, noted=True) if number > pruned]

    def records(self) -> list[LoadRecord]:
        return [record for record in map(self.record, self.sequences()) if record is not None]

    def check(self, record: LoadRecord) -> None:
        """A file takes records of any size."""

    def append(self, record: LoadRecord) -> None:
        """The number decides: whoever creates the file first has committed, and goes on from the entry before it."""
        number = record.id.sequence
        before = self._store.find(self._group, number - 1) if number > 1 else FilesEntry(self._group, 0, {})
        if before is None:
            raise self._pruned(number)
        check_expected(self._group, before.offsets, record.expected, record.committed)
        details = {"load": record.without_files().to_json()}
        try:
            self._store.append(FilesEntry(self._group, number, {**before.offsets, **record.committed}, details))
        except OffsetConflict:
            winner = self.record(number)
            if winner is None or winner.load_id != record.load_id:
                raise
            return
        if self._pruned_up_to() >= number:
            self._store.forget(self._group, number)
            raise self._pruned(number)

    def prune(self, keep: int) -> list[int]:
        """A mark comes first: it says that these numbers are not free, to one who has slept since he took his."""
        pruned = self.sequences()[: -max(keep, 1)]
        if not pruned:
            return []
        older = self._pruned_marks()
        self._create_mark(f"{self._group}/{pruned[-1]:020d}{_PRUNED}")
        for number in pruned:
            self._store.forget(self._group, number)
            self._storage.remove(self._published_mark(number))
        for number in older:
            self._storage.remove(f"{self._group}/{number:020d}{_PRUNED}")
        return pruned

    def mark_published(self, record: LoadRecord) -> None:
        self._create_mark(self._published_mark(record.id.sequence))

    def close(self) -> None:
        self._store.close()

    def _load_of(self, entry: FilesEntry) -> LoadRecord | None:
        where = f"entry {entry.sequence} of group '{entry.group}' in {self._storage.url}"
        if "load" not in entry.details:
            return None  # a stream or a consumer of the same group has committed here
        if not isinstance(entry.details["load"], dict):
            raise LoadError(f"{where} is not the record of a load")
        return LoadRecord.from_json(entry.details["load"], where)

    def _create_mark(self, path: str) -> None:
        try:
            self._storage.create(path, b"")
        except FileExistsError:
            return

    def _pruned_marks(self) -> list[int]:
        names = self._storage.names(self._group)
        return [int(name.removesuffix(_PRUNED)) for name in names if name.endswith(_PRUNED)]

    def _pruned_up_to(self) -> int:
        return max(self._pruned_marks(), default=0)

    def _pruned(self, number: int) -> OffsetConflict:
        return OffsetConflict(f"group '{self._group}': others have made commit {number} long ago, it has been pruned")

    def _published_mark(self, sequence: int) -> str:
        return f"{self._group}/{sequence:020d}.published"
