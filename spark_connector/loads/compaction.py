"""Compaction: many small files of a table become few large ones; the rows, and the load that each names, stay.

    <staging>/compaction/<attempt>/intent.json   1. which attempt, of which process
    <data>/compacted/<attempt>/part-…            2. the new files; no snapshot names them yet
    one commit of the table                      3. adds them and removes the small ones, in one step

Compactions of a group are numbered, as its loads are, and the commit takes the number. So an attempt whose number is
taken can never be committed, and the next compaction removes what it has left, even if its process still writes. The
commit is made against a state of the table in which all the small files are still there. Loads and other writers may
commit in between: then it is tried against the new state. If one of the files is gone, or the number is taken, the new
files are dropped, and the next compaction plans anew.

Files that are younger than `rewindable` stay as they are, so that a rewind of the newest loads removes whole files. A
file never gets rows of two partition values.

The classes that know a kind of table are delta/delta_compaction.py and iceberg/iceberg_compaction.py.
"""

from __future__ import annotations

import json
import posixpath
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from broker.storage.storage import Storage
from spark_connector.loads.file_check import FileNotAsWritten, check_written
from spark_connector.loads.history import Owner, is_of, owner_of
from spark_connector.loads.load_loop import parse_interval
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted
from spark_connector.loads.request import TARGET_FILE_SIZE, parse_file_size
from spark_connector.loads.sorted_rows import SortKey, sorted_rows
from spark_connector.loads.table_rows import write_rows
from spark_connector.loads.tasks.file_writer import MOST_WAITING
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFile

REWINDABLE_S = 24 * 3600.0

COMPACTED = "compacted"
"""The directory of the new files, below the table's data."""

_STAGING = "_staging/compaction"
_FULL = 0.75  # of the target size: such a file is not worth writing anew
_GIANT = 2  # times as large as all others together
_TRIES = 20  # beside writers that commit all the time
_QUICKER = "another compaction of the group was quicker"


@dataclass(frozen=True)
class CompactionOptions:
    """`rewindable_s`: files of younger loads stay (seconds). `target_file_size`: bytes of a new file. `vacuum`: also
    delete the files that the table has not needed for the time of its own retention."""

    rewindable_s: float = REWINDABLE_S
    target_file_size: int = TARGET_FILE_SIZE
    vacuum: bool = False

    @classmethod
    def parse(
        cls, rewindable: str | None = None, target_file_size: int | str | None = None, *, vacuum: bool = False
    ) -> CompactionOptions:
        """`rewindable` is like 24h, 30m or 0, `target_file_size` like 128MB. Raises ConfigError."""
        horizon = "rewindable (--rewindable)"
        return cls(
            REWINDABLE_S if rewindable is None else parse_interval(rewindable, horizon, least=0),
            parse_file_size(target_file_size),
            vacuum,
        )


@dataclass(frozen=True)
class TableFile:
    """A data file of a table: bytes, rows (None where the table does not say), its partition values, and when its rows
    came into the table (milliseconds since 1970; negative when this is not known: it stays)."""

    path: str
    size: int
    rows: int | None
    values: Hashable
    added_ms: int


@dataclass(frozen=True)
class NewFile:
    """A file that replaces others, and the newest of the times of these."""

    written: WrittenFile
    values: Hashable
    added_ms: int


@dataclass(frozen=True)
class CompactionResult:
    """What a compaction has done. `dropped`: why its new files were dropped; None when they are in the table, or there
    was nothing to compact. `swept` are attempts that were killed, `vacuumed` files that nothing needs any more."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    dropped: str | None = None
    swept: tuple[str, ...] = ()
    vacuumed: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.dropped is not None:
            text = f"Nothing was compacted: {self.dropped}; the next compaction tries again."
        elif not self.files_before:
            text = "Nothing to compact."
        else:
            text = f"Compacted {self.files_before:,} files ({self.bytes_before:,} bytes) into {self.files_after:,} "
            text += f"({self.bytes_after:,} bytes) with {self.rows:,} rows."
        text += f" Removed what {len(self.swept)} killed compactions had left." if self.swept else ""
        return text + (f" Deleted {self.vacuumed:,} files that the table no longer needs." if self.vacuumed else "")


def is_small(file: TableFile, options: CompactionOptions) -> bool:
    """Whether it is worth to be written anew."""
    return file.size < options.target_file_size * _FULL


def plan_bins(files: Collection[TableFile], options: CompactionOptions, now_ms: int) -> list[list[TableFile]]:
    """The files that become one another, oldest first; each bin has one partition value and at least two files.

    A file that is more than twice as large as all others of its bin together waits until more have come. So files grow
    by half at least whenever they are written anew, and a row is written anew few times.
    """
    horizon = now_ms - options.rewindable_s * 1000
    by_values: dict[Hashable, list[TableFile]] = {}
    for file in sorted(files, key=lambda file: (file.added_ms, file.path)):
        if is_small(file, options) and 0 <= file.added_ms <= horizon:
            by_values.setdefault(file.values, []).append(file)
    bins = (chosen for group in by_values.values() for chosen in _filled(group, options.target_file_size))
    return [chosen for chosen in map(_without_giants, bins) if len(chosen) > 1]


def _filled(files: Sequence[TableFile], target: int) -> Iterator[list[TableFile]]:
    chosen: list[TableFile] = []
    size = 0
    for file in files:
        if chosen and size + file.size > target:
            yield chosen
            chosen, size = [], 0
        chosen.append(file)
        size += file.size
    yield chosen


def _without_giants(chosen: list[TableFile]) -> list[TableFile]:
    while len(chosen) > 1:
        largest = max(chosen, key=lambda file: file.size)
        if largest.size <= _GIANT * (sum(file.size for file in chosen) - largest.size):
            break
        chosen = [file for file in chosen if file is not largest]
    return chosen


T = TypeVar("T")


class Compaction(ABC, Generic[T]):
    """The compactions of one group in one table. `T` is an open table of the library behind it, in one state."""

    place: ClassVar[str] = COMPACTED
    """The directory of the table that has a directory for each attempt's files."""

    def __init__(self, group: str, shown: str, storage: Storage, output: Callable[[str], TaskOutput]) -> None:
        """`storage` is the table's directory; `output` gives the place of new files in a directory of it."""
        self._group = group
        self._shown = shown
        self._staging = storage
        self._output = output

    @abstractmethod
    def table(self) -> T:
        """The table as it is now. Raises ConfigError when there is none, or its files cannot be written anew."""

    @abstractmethod
    def number(self, table: T) -> int:
        """The number of the group's newest compaction; 0 when there is none."""

    @abstractmethod
    def files(self, table: T) -> list[TableFile]:
        """All data files."""

    def dated(self, table: T, files: Sequence[TableFile]) -> list[TableFile]:
        """The files with their times, where `files` does not know them: only small ones are asked for."""
        return list(files)

    @abstractmethod
    def rows_of(self, table: T, files: Sequence[TableFile]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows of the files, in their order, in the columns that a file of the table has; lazily."""

    def order(self, table: T) -> tuple[SortKey, ...]:
        """By what the table wants the rows of each file sorted; empty for as they come."""
        return ()

    def directory(self, table: T, values: Any) -> str:
        """The directories of files with these partition values, below the attempt's; empty for none."""
        return ""

    @abstractmethod
    def commit(self, table: T, attempt: LoadId, removed: Sequence[TableFile], added: Sequence[NewFile]) -> bool:
        """Replace files, and take the attempt's number, in one commit against this state of the table.

        False when the table is no longer in this state; then nothing is changed.
        """

    @abstractmethod
    def is_winner(self, table: T, attempt: LoadId) -> bool | None:
        """Whether this attempt has taken its number; None when nobody knows any more."""

    def place_of(self, attempt: LoadId, directory: str = "") -> str:
        """The directory of the attempt's files, or one in it."""
        return posixpath.join(self.place, str(attempt), *filter(None, [directory]))

    def vacuum(self, table: T) -> int:
        """Delete the files that the table no longer needs, by its own rules; gives their number."""
        return 0

    def run(self, options: CompactionOptions) -> CompactionResult:
        """Compact what is old enough. Raises LoadError when a file does not hold the rows that the table counts."""
        table = self.table()
        small = [file for file in self.files(table) if is_small(file, options)]
        bins = plan_bins(self.dated(table, small), options, time.time_ns() // 1_000_000)
        attempt = LoadId(self._group, self.number(table) + 1, secrets.token_hex(4))
        if not bins and not self._is_left(attempt.sequence):
            done = CompactionResult(swept=self.sweep())
        else:
            done = self._replace(table, attempt, bins, options)
        vacuumed = self.vacuum(self.table()) if options.vacuum else 0
        return CompactionResult(**{**done.to_json(), "vacuumed": vacuumed})

    def sweep(self) -> tuple[str, ...]:
        """Remove what attempts have left whose number is taken; gives the ids of those that were no winners."""
        names = [name for name in self._staging.names(_STAGING) if is_of(self._group, name)]
        if not names:
            return ()
        table, swept = self.table(), []
        number = self.number(table)
        for attempt in map(LoadId.of, names):
            if attempt.sequence <= number:
                if self.is_winner(table, attempt) is False:
                    self._staging.remove(self.place_of(attempt))
                    swept.append(str(attempt))
                self._staging.remove(f"{_STAGING}/{attempt}")
        return tuple(swept)

    def _replace(
        self, table: T, attempt: LoadId, bins: Sequence[Sequence[TableFile]], options: CompactionOptions
    ) -> CompactionResult:
        """Without a bin, only the number is taken."""
        intent = {"owner": asdict(Owner.this_process()), "started_ms": time.time_ns() // 1_000_000}
        removed = [file for chosen in bins for file in chosen]
        try:
            self._staging.create(f"{_STAGING}/{attempt}/intent.json", json.dumps(intent, indent=1).encode())
            added = [file for chosen in bins for file in self._rewritten(table, attempt, chosen, options)]
            check_written(
                f"compaction {attempt}", self._output(self.place_of(attempt)), [file.written for file in added]
            )
        except BaseException as error:
            self._discard(attempt)
            swept = isinstance(error, OSError | FileNotAsWritten) and self._is_taken(attempt)
            if swept:  # the winner has swept where this one writes
                return CompactionResult(dropped=_QUICKER, swept=self.sweep())
            raise
        # After an error here nobody knows whether it is committed: nothing is deleted, the next compaction finds out.
        dropped = self._commit(attempt, removed, added)
        if dropped is not None:
            self._discard(attempt)
        else:
            self._staging.remove(f"{_STAGING}/{attempt}")
        return CompactionResult(
            files_before=len(removed),
            files_after=len(added),
            bytes_before=sum(file.size for file in removed),
            bytes_after=sum(file.written.size for file in added),
            rows=sum(file.written.metadata().num_rows for file in added),
            dropped=dropped,
            swept=self.sweep(),
        )

    def _rewritten(
        self, table: T, attempt: LoadId, chosen: Sequence[TableFile], options: CompactionOptions
    ) -> list[NewFile]:
        schema, batches = self.rows_of(table, chosen)
        if keys := self.order(table):
            batches = sorted_rows(lambda: self.rows_of(table, chosen)[1], keys, MOST_WAITING)
        place = self.directory(table, chosen[0].values)
        rows = 0

        def counted() -> Iterator[pa.Table]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                yield pa.Table.from_batches([batch])

        output = self._output(self.place_of(attempt, place))
        files = write_rows(schema, counted(), output, target_file_size=options.target_file_size)
        written = [replace(file, name=posixpath.join(place, file.name)) for file in files]
        expected = sum(file.rows or 0 for file in chosen)
        found = sum(file.metadata().num_rows for file in written)
        if found != rows or (rows != expected and all(file.rows is not None for file in chosen)):
            raise LoadError(
                f"{self._shown}: {len(chosen)} files, such as {chosen[0].path}, hold {rows:,} rows, but the table "
                f"counts {expected:,} in them; they are not compacted"
            )
        newest = max(file.added_ms for file in chosen)
        return [NewFile(file, chosen[0].values, newest) for file in written]

    def _commit(self, attempt: LoadId, removed: Sequence[TableFile], added: Sequence[NewFile]) -> str | None:
        """Why the files were dropped; None when the commit is made."""
        for _ in range(_TRIES):
            table = self.table()
            if self.number(table) >= attempt.sequence:
                is_winner = self.is_winner(table, attempt)
                if is_winner:
                    return None
                if is_winner is None:
                    raise LoadInterrupted(f"{self._shown} no longer tells whether compaction {attempt} is in it")
                return _QUICKER
            there = {file.path for file in self.files(table)} if removed else set()
            if gone := [file.path for file in removed if file.path not in there]:
                return f"another writer has replaced {len(gone)} of the files, such as {gone[0]}"
            try:
                if self.commit(table, attempt, removed, added):
                    return None
            except FileNotFoundError:  # a winner has swept the new files, or somebody else has removed them
                if not self._is_taken(attempt):
                    raise
        return f"other writers were quicker {_TRIES} times"

    def _is_taken(self, attempt: LoadId) -> bool:
        """Whether a compaction, perhaps this attempt, has its number."""
        return self.number(self.table()) >= attempt.sequence

    def _discard(self, attempt: LoadId) -> None:
        self._staging.remove(self.place_of(attempt))
        self._staging.remove(f"{_STAGING}/{attempt}")

    def _is_left(self, number: int) -> bool:
        """Whether a process of this host that has ended has left an attempt with this number, or a later one."""
        for name in self._staging.names(_STAGING):
            if is_of(self._group, name) and LoadId.of(name).sequence >= number:
                try:
                    owner = owner_of(self._staging.read(f"{_STAGING}/{name}/intent.json"))
                except FileNotFoundError:
                    continue  # it ended a moment ago
                if owner is not None and owner.is_alive() is False:
                    return True
        return False
