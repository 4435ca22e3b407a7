"""What all tables share as destinations of loads: rows and offsets are one commit, and every row names its load.

Nothing has to be published: a committed load is complete, and what a killed attempt leaves behind is no part of the
table. Every row names its load in the column `load`, by which a rewind deletes rows and a verification finds them.

A kind of table is a folder with two classes: a `TableLog` and a `TableDestination`. All of them must pass
tests/spark_connector/loads/test_tables.py and test_table_history.py. A kind without rows says so by `why_unreadable`,
and overrides `check_rewind`, which would refuse every rewind for that reason.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute

from broker.errors import ConfigError
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.destination import HeldRows, LoadedDestination, NewSession, RowOffsets
from spark_connector.loads.file_check import FileNotAsWritten, check_sizes
from spark_connector.loads.grammar import identify_rows
from spark_connector.loads.history import History, HistoryEntry, LoadState, gaps
from spark_connector.loads.record import LoadFile, LoadId, LoadRange, LoadRecord
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.rewind import undone_by
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.outages import is_out_of_reach

ROW_SCHEMA = pa.schema(
    [(LOAD_COLUMN, pa.string()), ("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64())]
)
"""The columns of a table that identify a row, and the load that wrote it."""

T = TypeVar("T")

_MOST_OFFSETS = 16 << 20  # 128 MiB
_MOST_LOADS = 200  # names in one statement


class TableLog(CommitLog):
    """The commit log of loads into a table. Other groups may load into the same table."""

    def __init__(self, group: str) -> None:
        self._group = group

    @abstractmethod
    def records_of_all(self) -> list[LoadRecord]:
        """The records of all groups, each group's in order of number."""

    def records(self) -> list[LoadRecord]:
        return [record for record in self.records_of_all() if record.id.group == self._group]


class TableDestination(LoadedDestination, Generic[T]):
    """A table, and the loads of one group in it. `T` is an open table of the library behind it, or its name."""

    log: TableLog

    unreadable: tuple[type[Exception], ...] = (ValueError,)
    """What `read_rows` and `rows_by_load` raise for damaged data."""

    def __init__(self, url: str, log: TableLog, group: str) -> None:
        self.url = url
        self.log = log
        self._group = group

    def check_there(
        self, record: LoadRecord, url_of: Callable[[str], str], sizes: Mapping[str, int], files: WrittenFiles
    ) -> None:
        """Look at the files of a load once more, right before `append`; raises FileNotAsWritten.

        Those of a load whose number another has taken may be gone: it is for `append` to refuse it.
        """
        try:
            check_sizes(f"load {record.load_id}", url_of, sizes, files)
        except FileNotAsWritten:
            if not self.log.is_overtaken(record):
                raise

    @abstractmethod
    def staged(self) -> Mapping[str, int]:
        """What the group's attempts have left in the staging area: name → number of the load."""

    @abstractmethod
    def clear(self, name: str) -> None:
        """Remove what `staged` names. Its number is taken: by another load, or by this one, which is committed then."""

    @abstractmethod
    def staged_entries(self, newest: int, known: Collection[str]) -> list[HistoryEntry]:
        """The attempts that are not committed, with their states; `known` are the ids of committed loads."""

    @abstractmethod
    def table_of(self, output: str) -> T:
        """The table that the loads with this `output` in their records went to, as it is now."""

    @abstractmethod
    def why_unreadable(self, table: T, columns: Sequence[str]) -> str | None:
        """Why rows cannot be told apart by these columns: the table or one of them is missing. None when they can."""

    @abstractmethod
    def read_rows(self, table: T, load_ids: Sequence[str]) -> Iterable[pa.Table]:
        """The rows of these loads, in parts of ROW_SCHEMA."""

    @abstractmethod
    def rows_by_load(self, table: T, load_ids: Collection[str] | None = None) -> Mapping[str | None, int]:
        """Load id → number of rows, with None for rows without one; at least of `load_ids`, None for all loads."""

    @abstractmethod
    def unnamed_rows(self, table: T, range: LoadRange) -> int:
        """The number of rows of a range whose `load` is NULL."""

    def files_of_loads(self, records: Sequence[LoadRecord]) -> Mapping[str, tuple[str, tuple[LoadFile, ...]]]:
        """Load id → the URL of the load's files, and those of them that the table still has."""
        return {}

    def repair(self) -> list[str]:
        """Remove attempts that can no longer be committed. Gives nothing: a committed load is complete."""
        staged = self.staged()
        newest = self.log.newest().sequence if staged else 0
        for name, number in staged.items():
            if number <= newest:
                self.clear(name)
        return []

    def history(self) -> History:
        """All that is committed is visible. Only the log knows a load, so numbers that it has lost are `forgotten`."""
        newest, records = self.log.newest().sequence, self.log.records()
        undone, files = undone_by(records), self.files_of_loads(records)
        entries = []
        for record in records:
            directory, listed = files.get(record.load_id, (None, ()))
            state = LoadState.REWOUND if record.load_id in undone else LoadState.PUBLISHED
            manifest = replace(record, files=listed) if listed else None
            entries.append(HistoryEntry(record, LoadState.REWIND if record.rewind else state, directory, manifest))
        forgotten = gaps(newest, {record.id.sequence for record in records})
        entries += self.staged_entries(newest, {record.load_id for record in records})
        entries.sort(key=lambda entry: (entry.record.id.sequence, entry.record.load_id))
        return History(entries, forgotten)

    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        """Wherever the rows are in the table. Memory: 8 bytes a row of what one query reads."""

        def kind(entry: HistoryEntry) -> tuple[str, bool]:
            return entry.record.output, identify_rows(entry.record.columns)

        for (output, identified), group in itertools.groupby(entries, kind):
            table = self.table_of(output)
            reason = self.why_unreadable(table, ROW_SCHEMA.names if identified else [LOAD_COLUMN])
            if reason is None and not identified:
                yield from self._counted(table, list(group))
            elif reason is not None:
                yield from ((entry, HeldRows(None, unread=(reason,))) for entry in group)
            else:
                for batch in _batches(group):
                    yield from self._held_together(table, batch)

    def _counted(self, table: T, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        """The number of rows of each load, of a table without the columns that identify rows."""
        try:
            rows = self.rows_by_load(table, [entry.record.load_id for entry in entries])
        except Exception as error:  # of whatever library is behind it
            problems, unread = self._said(error, "its rows cannot be counted")
            yield from ((entry, HeldRows(None, problems, unread=unread)) for entry in entries)
        else:
            yield from ((entry, HeldRows(None, rows=rows.get(entry.record.load_id, 0))) for entry in entries)

    def _held_together(self, table: T, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        try:
            found = _by_load(self.read_rows(table, [entry.record.load_id for entry in entries]))
        except Exception as error:  # of whatever library is behind it
            if len(entries) > 1:  # find out which loads cannot be read
                for entry in entries:
                    yield from self._held_together(table, [entry])
            else:
                problems, unread = self._said(error, "its rows cannot be read")
                yield entries[0], HeldRows(None, problems, unread=unread)
        else:
            for entry in entries:
                yield entry, HeldRows(found.get(entry.record.load_id, RowOffsets()).sorted())

    def _said(self, error: Exception, what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(problems, unread): rows that are damaged, or that could not be looked at."""
        text = f"{what}: {first_line(error)}"
        is_damage = isinstance(error, self.unreadable) and not is_out_of_reach(error)
        return ((text,), ()) if is_damage else ((), (text,))

    def unknown_loads(self, history: History) -> tuple[list[str], list[str]]:
        """Rows of other groups, and rows without a load, belong to other writers. Rows of loads that the log has
        forgotten, or that were committed after `history` was read, are not judged; an attempt that ran then may be one.
        """
        table = self.table_of(self.url)
        if (reason := self.why_unreadable(table, [LOAD_COLUMN])) is not None:
            return [], [reason]
        try:
            rows = self.rows_by_load(table)
        except Exception as error:  # of whatever library is behind it
            told, unread = self._said(error, f"the rows of {self.url} cannot be counted")
            return list(told), list(unread)
        known = {entry.record.load_id: entry.state for entry in history.entries}
        newest = max((entry.record.id.sequence for entry in history.entries if not entry.state.is_staged), default=0)
        problems = []
        for text, count in sorted((text, count) for text, count in rows.items() if isinstance(text, str)):
            load_id = LoadId.parse(text)
            if load_id is None or load_id.group != self._group or load_id.sequence > newest:
                continue
            if any(first <= load_id.sequence <= last for first, last in history.forgotten):
                continue
            state = known.get(text)
            if state is None or not state.is_committed:
                why = "was taken back by a rewind" if state is LoadState.REWOUND else "is not in the commit log"
                problems.append(f"the table has {count:,} rows of load {text}, which {why}")
        return problems, []

    def check_rewind(self, rewind: LoadRecord) -> None:
        """Also raises when rows of a load to be taken back may no longer name it: they would be loaded twice.

        The table may have had no column `load` when they were loaded, or another program has written them anew without
        it.
        """
        undone = rewind.rewind.undone if rewind.rewind else ()
        for output in {load.output: None for load in undone}:
            load_ids = [load.load_id for load in undone if load.output == output]
            table = self.table_of(output)
            if (reason := self.why_unreadable(table, [LOAD_COLUMN])) is not None:
                raise ConfigError(f"the rows of load {load_ids[0]} cannot be deleted: {reason}")
            loads = [load for load in self.log.records() if load.load_id in load_ids]
            if self.why_unreadable(table, ROW_SCHEMA.names) is not None:
                loads = [load for load in loads if not identify_rows(load.columns)]
            self._refuse_unnamed_rows(table, loads)

    def _refuse_unnamed_rows(self, table: T, undone: Sequence[LoadRecord]) -> None:
        if not undone:
            return  # the log knows none of them
        rows = self.rows_by_load(table, [load.load_id for load in undone])
        unnamed = functools.partial(self.unnamed_rows, table)
        for load in undone if rows.get(None) else ():
            if rows.get(load.load_id, 0) >= load.rows:
                continue
            identified = identify_rows(load.columns)
            count = sum(map(unnamed, load.ranges)) if identified else rows[None]
            if count:
                of = "of its offsets" if identified else "of the table"
                raise ConfigError(
                    f"load {load.load_id} has written {load.rows:,} rows, of which the table has "
                    f"{rows.get(load.load_id, 0):,}, and {count:,} rows {of} have no {LOAD_COLUMN}: a rewind "
                    f"would leave them, and the next load would load them again. Set their {LOAD_COLUMN} to "
                    f"'{load.load_id}' if they are its rows, or delete them"
                )


def first_line(error: Exception) -> str:
    """The message of a library or, in SQLAlchemy's errors, of the database, without the statement behind it."""
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


def _by_load(parts: Iterable[pa.Table]) -> dict[str, RowOffsets]:
    found: dict[str, RowOffsets] = {}
    for part in parts:
        loads = part.column(LOAD_COLUMN)
        for load_id in loads.unique().to_pylist():
            found.setdefault(load_id, RowOffsets()).add(part.filter(pa.compute.equal(loads, load_id)))
    return found


def _batches(entries: Iterable[HistoryEntry]) -> Iterator[list[HistoryEntry]]:
    """The loads in groups that one query reads together: of at most 16 million offsets, or one load."""
    batch: list[HistoryEntry] = []
    size = 0
    for entry in entries:
        more = sum(range.size for range in entry.record.ranges)
        if batch and (size + more > _MOST_OFFSETS or len(batch) == _MOST_LOADS):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch
