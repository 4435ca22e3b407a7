"""A Delta table as the destination of loads: Spark writes parquet files into it, and one commit adds them.

    <table>/_staging/table/<load id>/intent.json   1. what will be loaded
    <table>/<load id>/part-…                       2. Spark writes; not in the table's log, so no reader sees it
    <table>/_delta_log/<version>.json              3. committed: files, number and offsets in one entry (commit_log.py)

Nothing has to be published: what a crash leaves behind is committed or no part of the table, and committing twice does
nothing. Every row names its load in the column `load`; a rewind is one commit that deletes the rows of loads by it. An
attempt that can no longer be committed is removed when its number is taken.

Imported only for format=delta, because `deltalake` is an extra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from broker.errors import ConfigError
from spark_connector.loads.delta.commit_log import DeltaCommitLog
from spark_connector.loads.delta.holdings import DeltaHoldings, check_delete, files_by_load, groups_of_rows
from spark_connector.loads.destination import Holdings, NewSession
from spark_connector.loads.history import (
    History,
    Trace,
    intent_of,
    is_of,
    staged_entries,
    table_history,
    topics_by_group,
)
from spark_connector.loads.layout import LOAD_COLUMN
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted, LoadRecord
from spark_connector.loads.rewind import standing
from spark_connector.loads.row_offsets import first_line
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.storage import Storage

__all__ = ["DeltaCommitter", "DeltaDestination", "open_delta"]

_STAGING = "_staging/table"
_MISREAD = re.compile(r"[#%?^|\[\]\\]")
"""Characters of a path that `deltalake` misreads or cannot open, and Spark takes literally."""
_FORGETS = "delta.setTransactionRetentionDuration"


def open_delta(output: Storage, group: str) -> DeltaDestination:
    """The table in the directory `output`, which need not exist yet. Raises ConfigError for loads into files."""
    if found := _MISREAD.search(output.url.partition("://")[2]):
        raise ConfigError(f"'{output.url}': the name of a Delta table's directory cannot hold a {found[0]}")
    if output.names("_offsets"):
        raise ConfigError(f"{output.url} holds loads into files: a Delta table needs its own directory")
    return DeltaDestination(output, DeltaCommitLog(output, group), group)


class DeltaDestination:
    """The table, its commit log, and its committer."""

    def __init__(self, output: Storage, log: DeltaCommitLog, group: str) -> None:
        self.output = output
        self.log = log
        self.committer = DeltaCommitter(output, log, group)
        self._group = group

    @property
    def url(self) -> str:
        return self.output.url

    def plain_error(self, error: Exception) -> LoadError | None:
        is_ours = isinstance(error, DeltaError | pa.ArrowException)  # of a commit, of a query
        return LoadInterrupted(f"the Delta table {self.url}: {first_line(error)}") if is_ours else None

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Create the table, or check that it takes these columns. Raises ConfigError, LoadInterrupted."""
        fields = [*_fields(schema), {"name": LOAD_COLUMN, "type": "string", "nullable": True, "metadata": {}}]
        table = self.log.table() or self._create(fields, record.partition_by)
        _check_table(table, self.url, fields, record.partition_by)

    def published(self, group: str) -> list[str]:
        return []  # rows and commit log are one

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """By the rows, and by the log for loads whose rows do not name them."""
        found = groups_of_rows(self.log.table())
        for group, topics in topics_by_group(standing(self.log.records_of_all())).items():
            found.setdefault(group, set()).update(topics)
        return found

    def path_of(self, load_id: str) -> str:
        return self.url

    def history(self) -> History:
        newest = self.log.newest().sequence
        records, files = self.log.records(), files_by_load(self.log.table())

        def trace_of(record: LoadRecord) -> Trace:
            listed = files.get(record.load_id, ())
            exists = listed or self.output.exists(record.load_id)  # until VACUUM
            return (self.output.url_of(record.load_id) if exists else None), listed

        known = {record.load_id for record in records}
        staged = staged_entries(self.output, _STAGING, self._group, newest=newest, known=known)
        return table_history(records, newest, staged, trace_of)

    def holdings(self, history: History, session: NewSession) -> Holdings:
        return DeltaHoldings(self.output, self.log.table(), self._group, history)

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if rewind.rewind.delete:
            raise ConfigError(
                "a rewind always deletes the rows of a Delta table; VACUUM, not --delete, deletes the files"
            )
        self.log.check_rewind()
        table = self.log.table()
        if table is not None:
            ids = {undone.load_id for undone in rewind.rewind.undone}
            check_delete(table, [load for load in self.log.records() if load.load_id in ids])

    def _create(self, fields: Sequence[Mapping[str, Any]], partition_by: Sequence[str]) -> DeltaTable:
        try:
            return DeltaTable.create(
                self.url,
                Schema.from_json(json.dumps({"type": "struct", "fields": fields})),
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self.output.options or None,
            )
        except (DeltaError, OSError) as error:
            table = self.log.table()  # another process may have created it
            if table is None:
                raise LoadInterrupted(f"the Delta table {self.url} cannot be created: {error}") from error
            return table


class DeltaCommitter:
    """Commits and cleans up for one group."""

    def __init__(self, output: Storage, log: DeltaCommitLog, group: str) -> None:
        self._output = output
        self._log = log
        self._group = group

    def repair(self) -> list[str]:
        """Remove attempts that can no longer be committed. Gives nothing: a committed load is complete."""
        staged = [name for name in self._output.names(_STAGING) if is_of(self._group, name)]
        newest = self._log.newest().sequence if staged else 0
        for name in staged:
            if _number(name) <= newest:
                self._clear(name)
        return []

    def stage(self, record: LoadRecord) -> str:
        """Write the intent; gives the directory for the files."""
        self._output.create(f"{_STAGING}/{record.load_id}/intent.json", intent_of(record))
        return record.load_id

    def seal(self, record: LoadRecord) -> None:
        """Nothing to do: an attempt that is not committed starts again from the beginning."""

    def commit(self, record: LoadRecord) -> None:
        try:
            self._log.append(record)
        except OffsetConflict:
            self.discard(record.load_id)
            raise
        self._output.remove(f"{_STAGING}/{record.load_id}")
        self.repair()

    def discard(self, load_id: str) -> None:
        self._output.remove(load_id)
        self._output.remove(f"{_STAGING}/{load_id}")

    def is_overtaken(self, record: LoadRecord) -> bool:
        newest = self._log.newest()
        return newest.sequence >= record.id.sequence and newest.load_id != record.load_id

    def _clear(self, load_id: str) -> None:
        """Remove the intent, and also the files when they are certainly no part of the table."""
        winner = self._log.record(_number(load_id))
        if winner is not None and winner.load_id != load_id:
            self.discard(load_id)
        else:  # committed, or so old that the log does not know: VACUUM finds out
            self._output.remove(f"{_STAGING}/{load_id}")


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


def _number(name: str) -> int:
    load_id = LoadId.parse(name)
    return load_id.sequence if load_id else 0
