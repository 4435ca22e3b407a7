"""A Delta table as the destination of loads: Spark writes parquet files into it, and one commit adds them.

    <table>/_staging/table/<load id>/intent.json   1. what will be loaded
    <table>/<load id>/part-…                       2. Spark writes; not in the table's log, so no reader sees it
    <table>/_delta_log/<version>.json              3. committed: files, number and offsets in one entry (delta_log.py)

Nothing has to be published: what a crash leaves behind is committed or no part of the table, and committing twice does
nothing. Every row names its load in the column `load`; a rewind is one commit that deletes the rows of loads by it. An
attempt that can no longer be committed is removed when its number is taken.

Imported only for format=delta, because `deltalake` is an extra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.exceptions import DeltaError

from broker.errors import ConfigError
from spark_connector.loads.delta.delta_log import DeltaCommitLog, loads_are
from spark_connector.loads.destination import Destination, HeldRows, NewSession
from spark_connector.loads.history import (
    History,
    HistoryEntry,
    Trace,
    intent_of,
    is_of,
    staged_entries,
    table_history,
    topics_by_group,
)
from spark_connector.loads.layout import LOAD_COLUMN
from spark_connector.loads.record import LoadError, LoadFile, LoadId, LoadRange, LoadRecord, failed_load
from spark_connector.loads.rewind import standing
from spark_connector.loads.row_offsets import (
    ROW_SCHEMA,
    first_line,
    held_rows,
    refuse_unnamed_rows,
    rows_of_unknown_loads,
)
from spark_connector.loads.visibility import refuse_within_table
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.storage import Storage

_STAGING = "_staging/table"
_MISREAD = re.compile(r"[#%?^|\[\]\\\x00-\x1f\x7f]")
"""Characters of a path that `deltalake` misreads or cannot open, and Spark takes literally."""
_FORGETS = "delta.setTransactionRetentionDuration"
_APPEND_ONLY = "delta.appendOnly"

_UNREADABLE = (DeltaError, pa.ArrowException, OSError, ValueError)
"""What `deltalake` raises when a file is missing or damaged."""


def open_delta(output: Storage, group: str) -> DeltaDestination:
    """The table in the directory `output`, which need not exist yet. Raises ConfigError for loads into files."""
    if found := _MISREAD.search(output.url.partition("://")[2]):
        raise ConfigError(f"'{output.shown}': the name of a Delta table's directory cannot hold a {_shown(found[0])}")
    if output.names("_offsets"):
        raise ConfigError(f"{output.shown} holds loads into files: a Delta table needs its own directory")
    return DeltaDestination(output, DeltaCommitLog(output, group), group)


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)


class DeltaDestination(Destination):
    """The table, and the loads of one group in it."""

    log: DeltaCommitLog
    output: Storage

    def __init__(self, output: Storage, log: DeltaCommitLog, group: str) -> None:
        self.url = output.shown
        self.output = output
        self.log = log
        self._group = group

    def repair(self) -> list[str]:
        """Remove attempts that can no longer be committed. Gives nothing: a committed load is complete."""
        staged = [name for name in self.output.names(_STAGING) if is_of(self._group, name)]
        newest = self.log.newest().sequence if staged else 0
        for name in staged:
            if LoadId.of(name).sequence <= newest:
                self._clear(name)
        return []

    def stage(self, record: LoadRecord) -> str:
        self.output.create(f"{_STAGING}/{record.load_id}/intent.json", intent_of(record))
        return record.load_id

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Create the table, or check that it takes these columns. Raises ConfigError, LoadError."""
        fields = [*_fields(schema), {"name": LOAD_COLUMN, "type": "string", "nullable": True, "metadata": {}}]
        table = self.log.table()
        if table is None:
            refuse_within_table(self.output)
            table = self._create(fields, record.partition_by)
        _check_table(table, self.url, fields, record.partition_by)

    def seal(self, record: LoadRecord) -> None:
        """Sync the files: after a power failure, a table whose log names empty files could not be read."""
        self.output.sync(record.load_id)

    def commit(self, record: LoadRecord) -> None:
        try:
            self.log.append(record)
        except OffsetConflict:
            self.discard(record.load_id)
            raise
        self.output.remove(f"{_STAGING}/{record.load_id}")
        self.repair()

    def discard(self, load_id: str) -> None:
        self.output.remove(load_id)
        self.output.remove(f"{_STAGING}/{load_id}")

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """By the rows, two columns of the whole table, and by the log for loads whose rows do not name them."""
        found: dict[str, set[str]] = {}
        table = self.log.table()
        if table is not None and {LOAD_COLUMN, "topic"} <= _column_names(table):
            for row in pa.table(_query(table, f"SELECT DISTINCT {LOAD_COLUMN}, topic FROM t")).to_pylist():
                load_id = LoadId.parse(str(row[LOAD_COLUMN]))
                if load_id is not None:
                    found.setdefault(load_id.group, set()).add(row["topic"])
        for group, topics in topics_by_group(standing(self.log.records_of_all())).items():
            found.setdefault(group, set()).update(topics)
        return found

    def history(self) -> History:
        newest = self.log.newest().sequence
        records, files = self.log.records(), _files_by_load(self.log.table())

        def trace_of(record: LoadRecord) -> Trace:
            listed = files.get(record.load_id, ())
            exists = listed or self.output.exists(record.load_id)  # until VACUUM
            return (self.output.url_of(record.load_id) if exists else None), listed

        known = {record.load_id for record in records}
        staged = staged_entries(self.output, _STAGING, self._group, newest=newest, known=known)
        return table_history(records, newest, staged, trace_of)

    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        """Wherever OPTIMIZE or an UPDATE has moved the rows. Memory: 8 bytes a row of what one query reads."""
        table = self.log.table()
        missing = [name for name in ROW_SCHEMA.names if name not in _column_names(table)]
        if table is None or missing:
            note = f"the Delta table has no column {', '.join(missing)}: its rows cannot be told apart"
            yield from ((entry, HeldRows(None, notes=(note,))) for entry in entries)
            return
        files = _files_by_load(table)
        for entry, held in held_rows(lambda load_ids: _read(table, load_ids), entries, _UNREADABLE):
            load_id = entry.record.load_id
            damage = [problem for file in files.get(load_id, ()) if (problem := self._damage(load_id, file.name))]
            yield entry, replace(held, problems=(*held.problems, *damage))

    def unknown_loads(self, history: History) -> list[str]:
        table = self.log.table()
        if table is None or LOAD_COLUMN not in _column_names(table):
            return []
        try:
            rows = _rows_by_load(table)
        except _UNREADABLE as error:
            return [f"the rows of {self.url} cannot be counted: {first_line(error)}"]
        return rows_of_unknown_loads(self._group, history, rows)

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if rewind.rewind.delete:
            raise ConfigError(
                "a rewind always deletes the rows of a Delta table; VACUUM, not --delete, deletes the files"
            )
        table = self.log.table()
        if table is None:
            return
        if table.metadata().configuration.get(_APPEND_ONLY, "").lower() == "true":
            raise ConfigError(f"the Delta table {self.url} has {_APPEND_ONLY}: no rows can be deleted from it")
        if LOAD_COLUMN not in _column_names(table):
            raise ConfigError(
                f"the Delta table {self.url} has no column '{LOAD_COLUMN}': the rows of a load cannot be found"
            )
        ids = {undone.load_id for undone in rewind.rewind.undone}
        _check_delete(table, [load for load in self.log.records() if load.load_id in ids])

    def plain_error(self, error: Exception) -> LoadError | None:
        is_ours = isinstance(error, DeltaError | pa.ArrowException)  # of a commit, of a query
        return failed_load(f"the Delta table {self.url}: {first_line(error)}", error) if is_ours else None

    def _create(self, fields: Sequence[Mapping[str, Any]], partition_by: Sequence[str]) -> DeltaTable:
        try:
            table = DeltaTable.create(
                self.output.url,
                Schema.from_json(json.dumps({"type": "struct", "fields": fields})),
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self.output.options or None,
            )
            self.output.sync("_delta_log")
            return table
        except (DeltaError, OSError) as error:
            there = self.log.table()  # another process may have created it
            if there is None:
                raise failed_load(f"the Delta table {self.url} cannot be created: {error}", error) from error
            return there

    def _clear(self, load_id: str) -> None:
        """Remove the intent, and also the files when they are certainly no part of the table."""
        winner = self.log.record(LoadId.of(load_id).sequence)
        if winner is not None and winner.load_id != load_id:
            self.discard(load_id)
        else:  # committed, or so old that the log does not know: VACUUM finds out
            self.output.remove(f"{_STAGING}/{load_id}")

    def _damage(self, load_id: str, name: str) -> str | None:
        """What is wrong with a file that the load itself has written, by Hadoop's checksums."""
        try:
            is_whole = self.output.agrees_with_checksums(f"{load_id}/{name}")
        except FileNotFoundError:
            return f"{load_id}/{name} is missing"
        return None if is_whole else f"{load_id}/{name} is damaged: its bytes do not agree with the checksums beside it"


def _check_table(table: DeltaTable, url: str, fields: Sequence[Mapping[str, Any]], partition_by: Sequence[str]) -> None:
    metadata = table.metadata()
    if list(partition_by) != metadata.partition_columns:
        raise ConfigError(
            f"the Delta table {url} is partitioned by {metadata.partition_columns or 'nothing'}: set partition_by so"
        )
    if _FORGETS in metadata.configuration:
        raise ConfigError(
            f"the Delta table {url} has {_FORGETS}: it would forget how far the loads are, and rows would be loaded "
            "twice; remove that property"
        )
    unfit = [name for name in metadata.configuration if name.startswith(("delta.constraints.", "delta.columnMapping."))]
    if unfit:
        raise ConfigError(f"the Delta table {url} has {', '.join(unfit)}, which loads cannot obey: they only add files")
    there = {field["name"]: field for field in _fields(table.schema().to_json())}
    for field in fields:
        _check_column(there, field, url)
    wanted = {field["name"] for field in fields}
    required = [name for name, field in there.items() if name not in wanted and not field["nullable"]]
    if required:
        raise ConfigError(f"the Delta table {url} has columns that a load cannot fill: {', '.join(required)}")


def _check_column(there: Mapping[str, Mapping[str, Any]], field: Mapping[str, Any], url: str) -> None:
    name = field["name"]
    if name not in there:
        if other := [one for one in there if one.lower() == name.lower()]:
            raise ConfigError(f"the Delta table {url} has a column '{other[0]}', which is '{name}' to Spark: rename it")
        if name == LOAD_COLUMN:
            raise ConfigError(
                f"the Delta table {url} has no column '{LOAD_COLUMN}', in which a load writes its id to every row: add "
                f"it (ALTER TABLE … ADD COLUMNS ({LOAD_COLUMN} STRING)), or use another table"
            )
        raise ConfigError(f"the Delta table {url} has no column '{name}': add it, or leave it out (option columns)")
    if there[name]["type"] != field["type"]:
        if name == LOAD_COLUMN:
            raise ConfigError(
                f"the Delta table {url} has a column '{LOAD_COLUMN}' of its own, of type {there[name]['type']}: a load "
                "writes its id there, as a string. Rename that column, or use another table"
            )
        raise ConfigError(f"the Delta table {url} has column '{name}' as {there[name]['type']}, not {field['type']}")


def _fields(schema: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema)["fields"]
    return fields


def _read(table: DeltaTable, load_ids: Sequence[str]) -> Iterator[pa.Table]:
    columns = ", ".join(f'"{name}"' for name in ROW_SCHEMA.names)
    found = _query(table, f"SELECT {columns} FROM t WHERE {loads_are(load_ids)}")
    for part in pa.RecordBatchReader.from_stream(found):
        yield pa.Table.from_batches([part]).cast(ROW_SCHEMA)


def _rows_by_load(table: DeltaTable, where: str = "true") -> dict[str | None, int]:
    query = f"SELECT {LOAD_COLUMN}, count(*) AS rows FROM t WHERE {where} GROUP BY {LOAD_COLUMN}"
    return {row[LOAD_COLUMN]: row["rows"] for row in pa.table(_query(table, query)).to_pylist()}


def _check_delete(table: DeltaTable, undone: Sequence[LoadRecord]) -> None:
    """Raise ConfigError when rows of these loads may not name them."""

    def unnamed(range: LoadRange) -> int:
        position = f"topic = '{range.topic}' AND partition = {range.partition}"
        offsets = f'"offset" >= {range.start} AND "offset" < {range.end}'
        return _rows_by_load(table, f"{LOAD_COLUMN} IS NULL AND {position} AND {offsets}").get(None, 0)

    if set(ROW_SCHEMA.names) <= _column_names(table):
        rows = _rows_by_load(table, f"{LOAD_COLUMN} IS NULL OR {loads_are(load.load_id for load in undone)}")
        refuse_unnamed_rows(undone, rows, unnamed)


def _files_by_load(table: DeltaTable | None) -> dict[str, tuple[LoadFile, ...]]:
    """Load id → the files that the load has written and the table still has, by name below the load's directory."""
    found: dict[str, list[LoadFile]] = {}
    for file in pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist() if table else ():
        directory, _, name = unquote(file["path"]).partition("/")
        if LoadId.parse(directory) is not None:
            found.setdefault(directory, []).append(LoadFile(name, file["size_bytes"]))
    return {load_id: tuple(sorted(files, key=lambda file: file.name)) for load_id, files in found.items()}


def _query(table: DeltaTable, sql: str) -> Any:
    return QueryBuilder().register("t", table).execute(sql)


def _column_names(table: DeltaTable | None) -> set[str]:
    return set() if table is None else {field.name for field in table.schema().fields}
