"""The rows of loads in a Delta table: `WHERE load = …`, wherever OPTIMIZE or an UPDATE has moved them.

Needs `deltalake`, of the extra `delta`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from spark_connector.loads.destination import Held
from spark_connector.loads.history import History, HistoryEntry
from spark_connector.loads.layout import LOAD_COLUMN
from spark_connector.loads.record import LoadFile, LoadId, LoadRange, LoadRecord
from spark_connector.loads.row_offsets import first_line, held_rows, refuse_unnamed_rows, strange_loads
from spark_connector.storage import Storage

__all__ = ["DeltaHoldings", "check_delete", "files_by_load", "groups_of_rows", "loads_are"]

_COLUMNS = pa.schema(
    [(LOAD_COLUMN, pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
_ERRORS = (DeltaError, pa.ArrowException, OSError, ValueError)
"""What `deltalake` raises when a file is missing or damaged."""


class DeltaHoldings:
    """The rows of one group's loads. Memory: 8 bytes a row of the loads that one query reads (row_offsets.py)."""

    place = "the table"

    def __init__(self, storage: Storage, table: DeltaTable | None, group: str, history: History) -> None:
        self._storage = storage
        self._table = table
        self._group = group
        self._history = history

    def of(self, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, Held]]:
        missing = [name for name in _COLUMNS.names if name not in _column_names(self._table)]
        if self._table is None or missing:
            note = f"the Delta table has no column {', '.join(missing)}: its rows cannot be told apart"
            yield from ((entry, Held(None, notes=(note,))) for entry in entries)
            return
        table, files = self._table, files_by_load(self._table)
        for entry, held in held_rows(lambda load_ids: _read(table, load_ids), entries, _ERRORS):
            load_id = entry.record.load_id
            damage = [problem for file in files.get(load_id, ()) if (problem := self._damage(load_id, file.name))]
            yield entry, replace(held, problems=(*held.problems, *damage))

    def strangers(self) -> list[str]:
        if self._table is None or LOAD_COLUMN not in _column_names(self._table):
            return []
        try:
            rows = _rows_by_load(self._table)
        except _ERRORS as error:
            return [f"the rows of {self._storage.url} cannot be counted: {first_line(error)}"]
        return strange_loads(self._group, self._history, rows)

    def _damage(self, load_id: str, name: str) -> str | None:
        """What is wrong with a file that the load itself has written, by Hadoop's checksums."""
        try:
            is_whole = self._storage.agrees_with_checksums(f"{load_id}/{name}")
        except FileNotFoundError:
            return f"{load_id}/{name} is missing"
        return None if is_whole else f"{load_id}/{name} is damaged: its bytes do not agree with the checksums beside it"


def _read(table: DeltaTable, load_ids: Sequence[str]) -> Iterator[pa.Table]:
    columns = ", ".join(f'"{name}"' for name in _COLUMNS.names)
    found = _query(table, f"SELECT {columns} FROM t WHERE {loads_are(load_ids)}")
    for part in pa.RecordBatchReader.from_stream(found):
        yield pa.Table.from_batches([part]).cast(_COLUMNS)


def _rows_by_load(table: DeltaTable, where: str = "true") -> dict[str | None, int]:
    query = f"SELECT {LOAD_COLUMN}, count(*) AS rows FROM t WHERE {where} GROUP BY {LOAD_COLUMN}"
    return {row[LOAD_COLUMN]: row["rows"] for row in pa.table(_query(table, query)).to_pylist()}


def check_delete(table: DeltaTable, undone: Sequence[LoadRecord]) -> None:
    """Raise ConfigError when rows of these loads may not name them."""

    def unnamed(range: LoadRange) -> int:
        position = f"topic = '{range.topic}' AND partition = {range.partition}"
        offsets = f'"offset" >= {range.start} AND "offset" < {range.end}'
        return _rows_by_load(table, f"{LOAD_COLUMN} IS NULL AND {position} AND {offsets}").get(None, 0)

    if set(_COLUMNS.names) <= _column_names(table):
        rows = _rows_by_load(table, f"{LOAD_COLUMN} IS NULL OR {loads_are(load.load_id for load in undone)}")
        refuse_unnamed_rows(undone, rows, unnamed)


def loads_are(load_ids: Iterable[str]) -> str:
    """The SQL condition for the rows of these loads."""
    quoted = ("'" + load_id.replace("'", "''") + "'" for load_id in load_ids)
    return f"{LOAD_COLUMN} IN ({', '.join(quoted)})"


def files_by_load(table: DeltaTable | None) -> dict[str, tuple[LoadFile, ...]]:
    """Load id → the files that the load has written and the table still has, by name below the load's directory."""
    found: dict[str, list[LoadFile]] = {}
    for file in pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist() if table else ():
        directory, _, name = unquote(file["path"]).partition("/")
        if LoadId.parse(directory) is not None:
            found.setdefault(directory, []).append(LoadFile(name, file["size_bytes"]))
    return {load_id: tuple(sorted(files, key=lambda file: file.name)) for load_id, files in found.items()}


def groups_of_rows(table: DeltaTable | None) -> dict[str, set[str]]:
    """Group → the topics of its rows. Reads two columns of the whole table."""
    found: dict[str, set[str]] = {}
    if table is not None and {LOAD_COLUMN, "topic"} <= _column_names(table):
        for row in pa.table(_query(table, f"SELECT DISTINCT {LOAD_COLUMN}, topic FROM t")).to_pylist():
            load_id = LoadId.parse(str(row[LOAD_COLUMN]))
            if load_id is not None:
                found.setdefault(load_id.group, set()).add(row["topic"])
    return found


def _query(table: DeltaTable, sql: str) -> Any:
    return QueryBuilder().register("t", table).execute(sql)


def _column_names(table: DeltaTable | None) -> set[str]:
    return set() if table is None else {field.name for field in table.schema().fields}
