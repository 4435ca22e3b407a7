"""What Delta and Iceberg tables share: files that a commit adds to the table's log, and a staging area beside them.

    <table>/_staging/…/<load id>/intent.json   1. what will be loaded; `changes/` beside it: the records of an upsert
    <table>/<directory of the load>/part-…     2. the rows; not in the table's log, so no reader sees them
    the table's log                            3. committed: files, number and offsets in one entry

Nothing has to be published: what a crash leaves behind is committed or no part of the table, and committing twice does
nothing. Every row names its load in the column `load`; a rewind is one commit that removes the rows of loads by it. An
attempt that can no longer be committed is removed when its number is taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, TypeVar

from broker.errors import PykafkaError
from broker.storage.storage import Storage
from spark_connector.loads.change_files import ReadChanges, changes_of
from spark_connector.loads.file_check import FileNotAsWritten
from spark_connector.loads.history import HistoryEntry, intent_of, is_of, staged_entries
from spark_connector.loads.record import LoadId, LoadRecord, TableGone
from spark_connector.loads.table import TableDestination
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.offset_store.base import OffsetConflict

T = TypeVar("T")


class LakeDestination(TableDestination[T | None]):
    """A table of files, and the loads of one group in it. `T` is the table as its library has it."""

    title: ClassVar[str]
    """What kind of table it is, for messages."""

    staging: ClassVar[str] = "_staging"

    hopeless: ClassVar[tuple[type[Exception], ...]] = (OffsetConflict, FileNotAsWritten)
    """What `commit` raises when the attempt cannot be committed any more, or nothing was tried."""

    @abstractmethod
    def table_of(self, output: str = "") -> T | None:
        """The table as it is now; None if there is none yet."""

    @abstractmethod
    def storage(self) -> Storage | None:
        """The directory of the table; None if there is none yet."""

    @abstractmethod
    def directories(self, load_id: str) -> Sequence[str]:
        """The directory of a load's files, and others that hold what an attempt leaves behind."""

    @abstractmethod
    def column_names(self, table: T | None) -> Collection[str]:
        """Those of the table; none if there is no table."""

    @abstractmethod
    def append(self, record: LoadRecord, files: WrittenFiles, layout: FileLayout | None) -> Collection[str]:
        """Commit; gives the names of the files that an upsert has made in the load's directory."""

    def there(self) -> T:
        """The table. Raises TableGone."""
        table = self.table_of()
        if table is None:
            raise TableGone(self.url)
        return table

    def storage_there(self) -> Storage:
        """The directory of the table. Raises TableGone."""
        storage = self.storage()
        if storage is None:
            raise TableGone(self.url)
        return storage

    def place_of(self, record: LoadRecord) -> str:
        """Where the tasks write: for an upsert where no reader of data files and no sweep of orphans looks."""
        load_id = record.load_id
        return self.directories(load_id)[0] if record.upsert is None else f"{self.staging}/{load_id}/changes"

    def changes(self, record: LoadRecord, files: WrittenFiles) -> ReadChanges:
        """Reads the records of an upsert, which the tasks have written."""
        storage, place = self.storage_there(), self.place_of(record)
        return changes_of(record, lambda name: storage.open_input(f"{place}/{name}"), [file.name for file in files])

    def stage(self, record: LoadRecord) -> str:
        """Write the intent, if it is not there. Where there is no table yet, whatever makes one does it."""
        storage, intent = self.storage(), intent_of(record)
        if storage is not None:
            path = f"{self.staging}/{record.load_id}/intent.json"
            try:
                storage.create(path, intent)
            except FileExistsError:  # on an object store also our own, when the answer was lost
                if storage.read(path) != intent:
                    raise
        return self.place_of(record)

    def seal(self, record: LoadRecord) -> None:
        """Sync the files: after a power failure, a table whose log names empty files could not be read."""
        if record.upsert is None:
            self.storage_there().sync(self.place_of(record))

    def commit(self, record: LoadRecord, files: WrittenFiles = (), layout: FileLayout | None = None) -> None:
        directory = self.directories(record.load_id)[0]
        there, kept = dict[str, int](), {file.name for file in files}
        try:
            self.decide(record, files)
            storage = self.storage_there()
            if files and record.upsert is None:
                there = storage.data_files(directory)
                self.check_there(record, storage.below(directory).url_of, there, files)
            if record.rewind is not None:
                self.stage(record)  # by which a repair removes the files that it writes anew, if it is killed
            made = self.append(record, files, layout)
        except PykafkaError as error:
            if isinstance(error, self.hopeless) or (record.upsert is not None and not error.retriable):
                self.discard(record.load_id)
            raise
        if files and made:
            there, kept = storage.data_files(directory), {*made}
        for name in there.keys() - kept:  # of an attempt that does not count
            storage.remove(f"{directory}/{name}")
        storage.remove(f"{self.staging}/{record.load_id}")
        self.repair()

    def discard(self, load_id: str) -> None:
        storage = self.storage()
        if storage is not None:
            for directory in (*self.directories(load_id), f"{self.staging}/{load_id}"):
                storage.remove(directory)

    def staged(self) -> dict[str, int]:
        storage = self.storage()
        names = storage.names(self.staging) if storage is not None else ()
        return {name: LoadId.of(name).sequence for name in names if is_of(self._group, name)}

    def clear(self, name: str) -> None:
        """Remove the intent, and also the files when they are certainly no part of the table."""
        winner = self.log.record(LoadId.of(name).sequence)
        if winner is not None and winner.load_id != name:
            self.discard(name)
        else:  # committed, or so old that the log does not tell: a sweep of orphans (VACUUM) finds out
            self.storage_there().remove(f"{self.staging}/{name}")

    def staged_entries(self, newest: int, known: Collection[str]) -> list[HistoryEntry]:
        storage = self.storage()
        if storage is None:
            return []
        return staged_entries(storage, self.staging, self._group, newest=newest, known=known)

    def why_unreadable(self, table: T | None, columns: Sequence[str]) -> str | None:
        missing = [name for name in columns if name not in self.column_names(table)]
        told = f"the {self.title} has no column {', '.join(missing)}: its rows cannot be told apart"
        return told if missing else None
