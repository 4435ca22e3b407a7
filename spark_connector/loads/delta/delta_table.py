"""A Delta table as the destination of loads, as lake.py says: tasks write parquet files, and one commit adds them.

    <table>/_staging/table/<load id>/intent.json
    <table>/<load id>/part-…
    <table>/_delta_log/<version>.json              delta_log.py

Imported only for format=delta, because `deltalake` is an extra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.exceptions import DeltaError

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage
from spark_connector.loads.change_files import ReadChanges, check_marker, no_changes
from spark_connector.loads.dead_letters import groups_with_letters
from spark_connector.loads.delta.delta_compaction import DeltaCompaction
from spark_connector.loads.delta.delta_creation import NewTable, is_unused, plan_table
from spark_connector.loads.delta.delta_features import Work, check_features, works_of
from spark_connector.loads.delta.delta_feed import feed_directory
from spark_connector.loads.delta.delta_log import DeltaCommitLog, loads_are
from spark_connector.loads.delta.delta_merge import marked, upsert_marker, version_to_restore
from spark_connector.loads.delta.delta_snapshot import snapshot_of
from spark_connector.loads.destination import HeldRows, NewSession
from spark_connector.loads.evolution import evolve, evolved, layout_schema
from spark_connector.loads.file_check import FileNotAsWritten
from spark_connector.loads.footers import pages_are_whole
from spark_connector.loads.grammar import identify_rows, parse_partition_by, partition_columns
from spark_connector.loads.history import (
    HistoryEntry,
    refuse_within_table,
    topics_by_group,
)
from spark_connector.loads.lake import LakeDestination
from spark_connector.loads.record import (
    LoadError,
    LoadFile,
    LoadId,
    LoadInterrupted,
    LoadRange,
    LoadRecord,
    failed_load,
)
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.rewind import standing
from spark_connector.loads.table import ROW_SCHEMA, first_line
from spark_connector.loads.table_snapshot import TableSnapshot, TableVersion
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_output import StorageOutput, TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.outages import is_out_of_reach

_TRIES = 20  # to alter a table beside others
_MISREAD = re.compile(r"[#%?^|\[\]\\\x00-\x1f\x7f]")
"""Characters of a path that `deltalake` misreads or cannot open, and Spark takes literally."""
_FORGETS = "delta.setTransactionRetentionDuration"
_TRANSFORM = "pykafka.transform"
"""Metadata of a partition column: what it is made of. Other groups' loads must make it alike."""


def open_delta(output: Storage, group: str) -> DeltaDestination:
    """The table in the directory `output`, which need not exist yet. Raises ConfigError for loads into files."""
    if found := _MISREAD.search(output.url.partition("://")[2]):
        character = found[0] if found[0].isprintable() else repr(found[0])
        raise ConfigError(f"'{output.shown}': the name of a Delta table's directory cannot hold a {character}")
    if output.names("_offsets"):
        raise ConfigError(f"{output.shown} holds loads into files: a Delta table needs its own directory")
    return DeltaDestination(output, DeltaCommitLog(output, group), group)


@dataclass(frozen=True)
class _Planned:
    """A table to be made for a load. `layout`: as the load has it; `fitted`: as its files are written."""

    table: NewTable
    record: LoadRecord
    layout: FileLayout
    fitted: FileLayout


class DeltaDestination(LakeDestination[DeltaTable]):
    """The table, and the loads of one group in it."""

    log: DeltaCommitLog
    output: Storage
    title = "Delta table"
    staging = "_staging/table"
    unreadable = (DeltaError, pa.ArrowException, OSError, ValueError)
    hopeless = (OffsetConflict, ConfigError, FileNotAsWritten)

    def __init__(self, output: Storage, log: DeltaCommitLog, group: str) -> None:
        super().__init__(output.shown, log, group)
        self.output = output
        self._new: _Planned | None = None
        self._changes: ReadChanges = no_changes
        self._decided = ""

    def stage(self, record: LoadRecord) -> str:
        self.output.probe()
        return super().stage(record)

    def file_layout(self, record: LoadRecord, layout: FileLayout) -> FileLayout:
        """Check that the table takes these columns, and add those that it may get; plan a table where there is none,
        or one without loads, which `commit` makes. Files have the table's types. Raises ConfigError, LoadError."""
        table = self.log.table()
        self._new = None
        if table is not None and not (self.log.is_new_to(table) and is_unused(table)):
            return self._fitted(table, record, layout)
        if table is None:
            refuse_within_table(self.output)
        made = _made_of(record)
        fields = [
            field.with_metadata({_TRANSFORM: made[field.name]}) if field.name in made else field
            for field in layout.schema
        ]
        columns = marked(pa.schema(fields), record)
        version = 0 if table is None else table.version() + 1
        new = plan_table(record, columns, partition_columns(record.partition_by), self.url, version=version)
        types = pa.schema([field.remove_metadata() for field in new.schema])
        fitted = replace(layout, schema=layout_schema(types, layout.schema))
        self._new = _Planned(new, record, layout, fitted)
        return fitted

    def _read_changes(self, record: LoadRecord, files: WrittenFiles) -> ReadChanges:
        if record.upsert is None or record.rewind is not None:
            return no_changes
        return self.changes(record, files)

    def task_output(self, place: str) -> TaskOutput:
        return StorageOutput(self.output.url, self.output.options, place)

    def compaction(self) -> DeltaCompaction:
        return DeltaCompaction(self.log, self._group, self.output, self.task_output)

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """By the rows, two columns of the whole table, and by the log for loads whose rows do not name them."""
        loads = standing(self.log.records_of_all())
        found = topics_by_group(loads)
        table = self.log.table()
        if not all(identify_rows(load.columns) for load in loads):
            return found  # a column topic is one of the values
        elsewhere = groups_with_letters(found) - found.keys()
        if table is not None and {LOAD_COLUMN, "topic"} <= self.column_names(table):
            for row in pa.table(_query(table, f"SELECT DISTINCT {LOAD_COLUMN}, topic FROM t")).to_pylist():
                load_id = LoadId.parse(str(row[LOAD_COLUMN]))
                if load_id is not None and load_id.group not in elsewhere:
                    found.setdefault(load_id.group, set()).add(row["topic"])
        return found

    def table_of(self, output: str = "") -> DeltaTable | None:
        return self.log.table()

    def storage(self) -> Storage:
        return self.output

    def directories(self, load_id: str) -> Sequence[str]:
        return load_id, feed_directory(load_id)

    def column_names(self, table: DeltaTable | None) -> set[str]:
        return set() if table is None else {field.name for field in table.schema().fields}

    def append(self, record: LoadRecord, files: WrittenFiles, layout: FileLayout | None) -> Collection[str]:
        self.log.append(record, files, self._changes)
        return ()

    def read_rows(self, table: DeltaTable | None, load_ids: Sequence[str]) -> Iterator[pa.Table]:
        columns = ", ".join(f'"{name}"' for name in ROW_SCHEMA.names)
        found = _query(table, f"SELECT {columns} FROM t WHERE {loads_are(load_ids)}")
        for part in pa.RecordBatchReader.from_stream(found):
            yield pa.Table.from_batches([part]).cast(ROW_SCHEMA)

    def stored_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        select = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        for part in pa.RecordBatchReader.from_stream(_query(self.log.table(), f"SELECT {select} FROM t")):
            yield _without_views(pa.Table.from_batches([part]))

    def rows_by_load(self, table: DeltaTable | None, load_ids: Collection[str] | None = None) -> dict[str | None, int]:
        return _count_rows(table, "true" if load_ids is None else f"{LOAD_COLUMN} IS NULL OR {loads_are(load_ids)}")

    def unnamed_rows(self, table: DeltaTable | None, range: LoadRange) -> int:
        position = f"topic = '{range.topic}' AND partition = {range.partition}"
        offsets = f'"offset" >= {range.start} AND "offset" < {range.end}'
        return _count_rows(table, f"{LOAD_COLUMN} IS NULL AND {position} AND {offsets}").get(None, 0)

    def files_of_loads(self, records: Sequence[LoadRecord]) -> dict[str, tuple[str, tuple[LoadFile, ...]]]:
        files = _files_by_load(self.log.table())
        listed = {record.load_id: files.get(record.load_id, ()) for record in records if record.rewind is None}
        return {
            load_id: (self.output.url_of(load_id), files)
            for load_id, files in listed.items()
            if files or self.output.exists(load_id)  # until VACUUM
        }

    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        """Also checks the files that the loads have written themselves."""
        files = _files_by_load(self.log.table())
        for entry, held in super().held(entries, session):
            written = () if held.unread else files.get(entry.record.load_id, ())
            damage, unread = list[str](), list(held.unread)
            for file in written:
                self._look_at(f"{entry.record.load_id}/{file.name}", damage, unread)
            yield entry, replace(held, problems=(*held.problems, *damage), unread=tuple(unread))

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if rewind.rewind.delete:
            raise ConfigError(
                "a rewind always deletes the rows of a Delta table; VACUUM, not --delete, deletes the files"
            )
        table = self.log.table()
        if table is None:
            return
        check_features(table, [Work.REWIND], self.url)
        if rewind.upsert is not None:
            version_to_restore(table, rewind, self.log.loads_by_version(table))
            return
        if LOAD_COLUMN not in self.column_names(table):
            raise ConfigError(
                f"the Delta table {self.url} has no column '{LOAD_COLUMN}': the rows of a load cannot be found"
            )
        super().check_rewind(rewind)

    def versions(self, most: int) -> list[TableVersion]:
        table = self.log.table()
        commits = [] if table is None else table.history(most)
        loads = {} if table is None else self.log.loads_by_version(table, most)
        return [
            TableVersion(
                str(one["version"]), one.get("timestamp", -1), one.get("operation", ""), loads.get(one["version"], "")
            )
            for one in reversed(commits)
        ]

    def snapshot(self, partitions: Collection[TopicPartition], version: str | None = None) -> TableSnapshot:
        return snapshot_of(self.log, self.output, partitions, version)

    def plain_error(self, error: Exception) -> LoadError | None:
        is_ours = isinstance(error, DeltaError | pa.ArrowException)  # of a commit, of a query
        return failed_load(f"the Delta table {self.url}: {first_line(error)}", error) if is_ours else None

    def _fitted(self, table: DeltaTable, record: LoadRecord, layout: FileLayout) -> FileLayout:
        """The layout in the types of this table, when it takes the rows. Raises ConfigError, LoadError."""
        check_features(table, works_of(record), self.url)
        check_marker(upsert_marker(table), record, f"the Delta table {self.url}")
        _check_table(table, self.url, partition_columns(record.partition_by), _made_of(record))
        table = self._evolve(table, layout)
        return replace(layout, schema=layout_schema(_arrow_schema(table), layout.schema))

    def decide(self, record: LoadRecord, files: WrittenFiles = ()) -> None:
        """Also make the table that `file_layout` has planned, unless the changes of an upsert cannot be decided: then
        nothing is made. Raises LoadError, and LoadInterrupted when another process has made another table."""
        planned = self._new
        if self._decided != record.load_id:
            self._changes, self._decided = self._read_changes(record, files), record.load_id
        if planned is None:
            return
        try:
            self._changes()
        except FileNotFoundError:
            if not self.log.is_overtaken(record):
                raise
            self._new = None
            return  # the winner has removed the changes, and `append` refuses the number
        if not planned.table.make(self.output):
            there = self._fitted(self.there(), planned.record, planned.layout)
            if there.schema != planned.fitted.schema:
                raise LoadInterrupted(
                    f"another process has just made the Delta table {self.url} with other columns; nothing of load "
                    f"{planned.record.load_id} is kept, and nothing is lost: run it again"
                )
        self._new = None

    def _evolve(self, table: DeltaTable, layout: FileLayout) -> DeltaTable:
        """The table when it takes the rows. Delta refuses to alter a schema that another process has altered."""
        where, failed = f"the Delta table {self.url}", None
        for _ in range(_TRIES):
            before = _arrow_schema(table)
            steps = evolve(before, layout.schema, layout.evolution, where=where, widens=False)
            if not steps:
                return table
            after, version = evolved(before, steps), table.version()
            fields = [after.field(name) for name in dict.fromkeys(step.path[0] for step in steps)]
            try:
                table.alter.add_columns(list(Schema.from_arrow(pa.schema(fields)).fields))
                self.log.sync(version)
            except DeltaError as error:
                failed = error
            table = self.there()
            if failed is not None and table.version() == version:
                break
        raise failed_load(f"{where} cannot get new columns: {failed}", failed or "") from failed

    def _look_at(self, path: str, damage: list[str], unread: list[str]) -> None:
        """Add what is wrong with a file that the load itself has written, by its checksums, to one of the lists."""
        try:
            if not self.output.agrees_with_checksums(path):
                damage.append(f"{path} is damaged: its bytes do not agree with the checksums beside it")
            elif not pages_are_whole(self.output, path):
                damage.append(f"{path} is damaged: its bytes do not agree with the checksums in it")
        except FileNotFoundError:
            damage.append(f"{path} is missing")
        except (pa.ArrowException, OSError) as error:
            (unread if is_out_of_reach(error) else damage).append(f"{path} cannot be read: {first_line(error)}")


def _made_of(record: LoadRecord) -> dict[str, str]:
    """What the partition columns that are no columns of the rows are made of."""
    items = (one for one in parse_partition_by(record.partition_by) if one.transform != "identity")
    return {one.name: str(one) for one in items}


def _check_table(table: DeltaTable, url: str, partition_by: Sequence[str], made: Mapping[str, str]) -> None:
    """`made`: what the partition columns that are no columns of the rows are made of."""
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
    for field in json.loads(table.schema().to_json())["fields"]:
        name = field["name"]
        if name in made and (before := field["metadata"].get(_TRANSFORM, made[name])) != made[name]:
            raise ConfigError(
                f"the Delta table {url} has column '{name}' as {before}, not as {made[name]}: set partition_by so"
            )


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in pa.schema(table.schema().to_arrow())])


def _count_rows(table: DeltaTable | None, where: str) -> dict[str | None, int]:
    """The rows of each load, None for those without one."""
    query = f"SELECT {LOAD_COLUMN}, count(*) AS rows FROM t WHERE {where} GROUP BY {LOAD_COLUMN}"
    return {row[LOAD_COLUMN]: row["rows"] for row in pa.table(_query(table, query)).to_pylist()}


def _files_by_load(table: DeltaTable | None) -> dict[str, tuple[LoadFile, ...]]:
    """Load id → the files that the load has written and the table still has, by name below the load's directory."""
    found: dict[str, list[LoadFile]] = {}
    for file in pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist() if table else ():
        directory, _, name = unquote(file["path"]).partition("/")
        if LoadId.parse(directory) is not None:
            found.setdefault(directory, []).append(LoadFile(name, file["size_bytes"]))
    return {load_id: tuple(sorted(files, key=lambda file: file.name)) for load_id, files in found.items()}


def _query(table: DeltaTable | None, sql: str) -> Any:
    assert table is not None
    return QueryBuilder().register("t", table).execute(sql)


def _without_views(part: pa.Table) -> pa.Table:
    """Text and bytes as other tables have them: pyarrow cannot take rows of the views that DataFusion gives."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return part.cast(pa.schema([field.with_type(plain.get(field.type, field.type)) for field in part.schema]))
