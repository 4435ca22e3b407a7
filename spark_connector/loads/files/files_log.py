"""The commit log of loads whose offsets are kept in files: one JSON file per load in `<output>/_offsets/<group>`.

The entries are those of the files offset store, so that other readers can start from them, too. A mark beside an entry
(`<number>.published`) says that the load's directory is in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.commit import CommitLog, Newest
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.offset_store.base import OffsetConflict, check_expected
from spark_connector.offset_store.files import FilesEntry, FilesOffsetStore
from spark_connector.storage import Storage

_DIRECTORY = "_offsets"  # below the output directory; Spark and pyarrow do not read names with _
_PRUNED = ".pruned"  # <number>.pruned: the entries up to this number are removed, and stay taken (L8)


class FilesCommitLog(CommitLog):
    """The log below the output directory. Creating the entry's file exclusively is the commit."""

    kind = "files"

    def __init__(self, output: Storage, group: str) -> None:
        self._storage = output.below(_DIRECTORY)
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

    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        return self._store.read(self._group)

    def record(self, sequence: int) -> LoadRecord | None:
        entry = self._store.recall(self._group, sequence)
        return None if entry is None else self._load_of(entry)

    def sequences(self) -> list[int]:
        pruned = self._pruned_up_to()
        return [number for number in self._store.sequences(self._group, noted=True) if number > pruned]

    def append(self, record: LoadRecord) -> None:
        """The first process to create the file of this number has committed."""
        number = record.id.sequence
        before = self._store.find(self._group, number - 1) if number > 1 else FilesEntry(self._group, 0, {})
        if before is None:
            raise self._pruned(number)
        check_expected(self._group, before.offsets, record.expected, record.committed)
        details = {"load": record.without_files().to_json()}
        try:
            self._store.append(FilesEntry(self._group, number, {**before.offsets, **record.committed}, details))
        except OffsetConflict:
            if not self.has(record):
                raise
            return
        if self._pruned_up_to() >= number:
            self._store.forget(self._group, number)
            raise self._pruned(number)

    def prune(self, keep: int) -> list[int]:
        """Writes a mark first: a process that reserved one of these numbers long ago must not find it free."""
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

    def _load_of(self, entry: FilesEntry) -> LoadRecord | None:
        where = f"entry {entry.sequence} of group '{entry.group}' in {self._storage.shown}"
        if "load" not in entry.details:
            return None  # the commit of a stream or a consumer of the same group
        if not isinstance(entry.details["load"], dict):
            raise LoadError(f"{where} is not the record of a load")
        return LoadRecord.from_json(entry.details["load"], where)

    def _create_mark(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._storage.create(path, b"")

    def _pruned_marks(self) -> list[int]:
        names = self._storage.names(self._group)
        return [int(name.removesuffix(_PRUNED)) for name in names if name.endswith(_PRUNED)]

    def _pruned_up_to(self) -> int:
        return max(self._pruned_marks(), default=0)

    def _pruned(self, number: int) -> OffsetConflict:
        return OffsetConflict(f"group '{self._group}': commit {number} was made long ago and has been pruned")

    def _published_mark(self, sequence: int) -> str:
        return f"{self._group}/{sequence:020d}.published"
