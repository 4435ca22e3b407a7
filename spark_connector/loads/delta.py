"""A Delta table as the destination of loads: Spark writes parquet files into it, one commit of the driver adds them.

    <table>/_staging/table/<load id>/intent.json   1. what will be loaded
    <table>/<load id>/part-…                       2. Spark writes; unknown to the table's log, so no reader sees it
    <table>/_delta_log/<version>.json              3. committed: files, number and offsets in one entry (log_delta.py)

There is nothing to publish: what a crash leaves behind is either committed or no part of the table, and a retry of
what is committed does nothing. A rewind is such a commit, too, that removes files. What is void is removed once its
number is taken, as everywhere (loads/state.py).

Opened by loads/planner.py only when asked for: `deltalake` is an extra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from broker.errors import ConfigError
from spark_connector.loads.covering import Claims, standing_loads
from spark_connector.loads.delta_rows import DeltaFiles, DeltaRows
from spark_connector.loads.history import History, is_of, staged_entries
from spark_connector.loads.holdings import Holdings
from spark_connector.loads.log_delta import DeltaLoadLog
from spark_connector.loads.owner import intent_of
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted, LoadRecord
from spark_connector.loads.table_history import Trace, table_history
from spark_connector.loads.table_holdings import TableHoldings
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.storage import Storage

__all__ = ["DeltaCommitter", "DeltaSite", "open_delta"]

_STAGING = "_staging/table"
_MISREAD = re.compile(r"[#%?^|\[\]\\]")
"""What `deltalake` takes for another directory, or cannot open, in a path that Spark takes as it stands."""
_FORGETS = "delta.setTransactionRetentionDuration"


def open_delta(output: Storage, group: str) -> DeltaSite:
    """The table in the directory `output`, which need not exist yet. Raises ConfigError for one that holds files."""
    if found := _MISREAD.search(output.url.partition("://")[2]):
        raise ConfigError(f"'{output.url}': the name of a Delta table's directory cannot hold a {found[0]}")
    if output.names("_offsets"):
        raise ConfigError(f"{output.url} holds loads into files: a Delta table needs a directory of its own")
    log = DeltaLoadLog(output, group)
    return DeltaSite(output, log, DeltaCommitter(output, log, group))


@dataclass(frozen=True)
class DeltaSite:
    """The table, its log, and who commits."""

    output: Storage
    log: DeltaLoadLog
    committer: DeltaCommitter

    @property
    def url(self) -> str:
        return self.output.url

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Create the table, or see that the one there takes these columns. Raises ConfigError, LoadInterrupted."""
        table = self.log.table() or self._create(schema, record.partition_by)
        _check_table(table, self.url, schema, record.partition_by)

    def published(self, group: str) -> list[str]:
        return []  # rows and commit log are one

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """By the table's transactions, which outlive the records of loads."""
        offsets = self.log.offsets_of_all()
        return {group: {tp.topic for tp in stored} for group, stored in offsets.items()}

    def path_of(self, load_id: str) -> str:
        return self.url

    def history(self) -> History:
        newest = self.log.newest().sequence
        records, files = self.log.records(), DeltaFiles(self.log.table())

        def trace_of(record: LoadRecord) -> Trace:
            listed = files.listed(record.load_id)
            is_there = listed or self.output.exists(record.load_id)  # until VACUUM
            return (self.output.url_of(record.load_id) if is_there else None), listed

        known = {record.load_id for record in records}
        staged = staged_entries(self.output, _STAGING, self.committer.group, newest=newest, known=known)
        return table_history(records, newest, staged, trace_of)

    def holdings(self, history: History) -> Holdings:
        table = self.log.table()
        files, records = DeltaFiles(table), self.log.records_of_all()
        mixed = [load for load in standing_loads(records) if not files.is_whole(load)]
        return TableHoldings(DeltaRows(self.output, files), Claims.of(mixed, records, self.log.offsets_of_all()))

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if rewind.rewind.delete:
            raise ConfigError(
                "the files that a rewind takes out of a Delta table are deleted by VACUUM, not by --delete"
            )
        self.log.check_rewind(rewind)

    def plain_error(self, error: Exception) -> LoadError | None:
        return LoadInterrupted(f"the Delta table {self.url}: {error}") if isinstance(error, DeltaError) else None

    def _create(self, schema: str, partition_by: Sequence[str]) -> DeltaTable:
        try:
            return DeltaTable.create(
                self.url,
                Schema.from_json(schema),
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self.output.options or None,
            )
        except (DeltaError, OSError) as error:
            table = self.log.table()  # another was quicker
            if table is None:
                raise LoadInterrupted(f"the Delta table {self.url} cannot be created: {error}") from error
            return table


class DeltaCommitter:
    """Commits and cleans up for one group."""

    def __init__(self, output: Storage, log: DeltaLoadLog, group: str) -> None:
        self._output = output
        self._log = log
        self.group = group

    def repair(self) -> list[str]:
        """Remove what can no longer be committed. Gives nothing: there is no load that only wants finishing."""
        staged = [name for name in self._output.names(_STAGING) if is_of(self.group, name)]
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
        """Nothing: an attempt that is not committed is made anew."""

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
        """Remove the intent, and the files too when it is certain that they are no part of the table."""
        winner = self._log.record(_number(load_id))
        if winner is not None and winner.load_id != load_id:
            self.discard(load_id)
        else:  # committed; or so long ago that the log does not say any more: VACUUM knows
            self._output.remove(f"{_STAGING}/{load_id}")


def _check_table(table: DeltaTable, url: str, schema: str, partition_by: Sequence[str]) -> None:
    metadata = table.metadata()
    if list(partition_by) != metadata.partition_columns:
        raise ConfigError(
            f"the Delta table {url} is partitioned by {metadata.partition_columns or 'nothing'}: set partition_by so"
        )
    if _FORGETS in metadata.configuration:
        raise ConfigError(
            f"the Delta table {url} has {_FORGETS}: it would forget how far the loads are, and rows would be loaded "
            "twice; take that property away"
        )
    unfit = [name for name in metadata.configuration if name.startswith(("delta.constraints.", "delta.columnMapping."))]
    if unfit:
        raise ConfigError(f"the Delta table {url} has {', '.join(unfit)}: loads add files and cannot see to that")
    there = {field["name"]: field for field in _fields(table.schema().to_json())}
    wanted = {field["name"]: field for field in _fields(schema)}
    for name, field in wanted.items():
        if name not in there:
            raise ConfigError(f"the Delta table {url} has no column '{name}': add it, or leave it out (option columns)")
        if there[name]["type"] != field["type"]:
            raise ConfigError(
                f"the Delta table {url} has column '{name}' as {there[name]['type']}, not {field['type']}"
            )
    required = [name for name, field in there.items() if name not in wanted and not field["nullable"]]
    if required:
        raise ConfigError(f"the Delta table {url} has columns that a load cannot fill: {', '.join(required)}")


def _fields(schema: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema)["fields"]
    return fields


def _number(name: str) -> int:
    load_id = LoadId.parse(name)
    return load_id.sequence if load_id else 0
