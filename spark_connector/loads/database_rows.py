"""The rows of loads in a database, by topic, partition and offset: read to be recounted, deleted by a rewind.

A group's loads may have gone to several tables of one database; each is known by the name at the end of its loads'
`output`. Given to loads/database.py. Every statement names some hundred spans of offsets at most, and each may cost a
pass over the table where there is no index on (topic, partition, offset): therefore many loads are read at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import sqlalchemy
from sqlalchemy import Column, Connection, Engine, MetaData, Table

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.covering import Claims, standing_loads
from spark_connector.loads.file_rows import Offsets, sort_rows
from spark_connector.loads.history import HistoryEntry
from spark_connector.loads.holdings import Held
from spark_connector.loads.log_database import DatabaseLoadLog
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.table_holdings import OwnRows, Parts, Spans, TableHoldings

__all__ = ["DatabaseHoldings", "DatabaseRows", "TableName", "check_take_back", "take_back"]

_POSITION = ("topic", "partition", "offset")
_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64())])
_SPANS = 200  # of one statement: SQLite takes expressions 1000 deep, SQL Server 2100 values
_ROWS = 50_000  # fetched at once

T = TypeVar("T")


@dataclass(frozen=True)
class TableName:
    """A table of the database; `schema` None for the one that names without a schema mean."""

    name: str
    schema: str | None

    @classmethod
    def of(cls, record: LoadRecord, default_schema: str | None) -> TableName:
        """The table that a load went to: its `output` is `<url>#<table>` or `<url>#<schema>.<table>`."""
        schema, _, name = record.output.rpartition("#")[2].rpartition(".")
        return cls(name, schema if schema and schema != default_schema else None)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


class DatabaseRows:
    """Of one table; those that no load has written among them."""

    def __init__(self, engine: Engine, table: TableName) -> None:
        self._engine = engine
        self._table = table
        self.problems: Sequence[str] = ()

    def missing(self) -> str | None:
        """Why rows cannot be told apart: no table, or no columns that say which record a row is."""
        return _missing(self._engine, self._table)

    def own(self, record: LoadRecord) -> OwnRows:
        return OwnRows()

    def scan(self, spans: Spans) -> Parts:
        table = _position_of(self._table)
        wanted = [(tp, start, end) for tp, parts in spans.items() for start, end in parts]
        with self._engine.connect().execution_options(stream_results=True, max_row_buffer=_ROWS) as connection:
            for some in _batched(wanted):
                within = sqlalchemy.or_(*(_is_within(table, *span) for span in some))
                for rows in connection.execute(sqlalchemy.select(*table.columns).where(within)).partitions(_ROWS):
                    yield _sorted(rows)


class DatabaseHoldings:
    """Of all tables that the group's loads went to."""

    place = "the table"

    def __init__(self, engine: Engine, log: DatabaseLoadLog) -> None:
        self._engine = engine
        self._log = log

    def of(self, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, Held]]:
        schema = sqlalchemy.inspect(self._engine).default_schema_name
        for table, group in itertools.groupby(entries, lambda entry: TableName.of(entry.record, schema)):
            rows = DatabaseRows(self._engine, table)
            reason = rows.missing()
            if reason is None:
                yield from TableHoldings(rows, _claims_on(table, self._log, schema)).of(list(group))
            else:
                yield from ((entry, Held(None, notes=(reason,))) for entry in group)

    def strangers(self) -> list[str]:
        return []


def check_take_back(engine: Engine, log: DatabaseLoadLog, rewind: LoadRecord) -> None:
    """Raise ConfigError when the rows of undone loads cannot be deleted, or others' might be deleted with them."""
    schema = sqlalchemy.inspect(engine).default_schema_name
    for table, loads in _by_table(log.undone(rewind), schema).items():
        reason = _missing(engine, table)
        if reason is not None:
            raise ConfigError(f"the rows of load {loads[0].load_id} cannot be deleted: {reason}")
        for tp, claim in _claims_on(table, log, schema).outsiders(loads):
            raise ConfigError(
                f"the rows of {tp} cannot be deleted: {claim.name} may have rows of offsets {claim.start} to "
                f"{claim.end - 1} in table {table} too, which look the same"
            )


def take_back(connection: Connection, loads: Sequence[LoadRecord]) -> None:
    """Delete the rows of the loads, within the caller's transaction. Raises LoadError when there are more rows at these
    offsets than the loads have written, for then some are not theirs."""
    schema = sqlalchemy.inspect(connection).default_schema_name
    for load in loads:
        table = _position_of(TableName.of(load, schema))
        for some in _batched([range for range in load.ranges if range.size]):
            within = sqlalchemy.or_(*(_is_within(table, range.tp, range.start, range.end) for range in some))
            delete = table.delete().where(within).execution_options(preserve_rowcount=True)
            deleted = connection.execute(delete).rowcount
            _check_deleted(load, some, deleted)


def _claims_on(table: TableName, log: DatabaseLoadLog, schema: str | None) -> Claims:
    """Which loads, of all groups of the database, have rows in the table."""
    records = log.records_of_all()
    here = [record for record in standing_loads(records) if TableName.of(record, schema) == table]
    return Claims.of(here, records, log.offsets_of_all())


def _check_deleted(load: LoadRecord, ranges: Sequence[LoadRange], deleted: int) -> None:
    written = sum(range.rows or 0 for range in ranges)
    if deleted > written:
        raise LoadError(
            f"load {load.load_id} has written {written:,} rows, but the table has {deleted:,} of its offsets: some are "
            "not its own, or there twice; nothing is deleted"
        )


def _batched(spans: Sequence[T]) -> Iterator[Sequence[T]]:
    return (spans[at : at + _SPANS] for at in range(0, len(spans), _SPANS))


def _by_table(loads: Iterable[LoadRecord], schema: str | None) -> dict[TableName, list[LoadRecord]]:
    found: dict[TableName, list[LoadRecord]] = {}
    for load in loads:
        found.setdefault(TableName.of(load, schema), []).append(load)
    return found


def _missing(engine: Engine, table: TableName) -> str | None:
    inspector = sqlalchemy.inspect(engine)
    if not inspector.has_table(table.name, schema=table.schema):
        return f"there is no table {table} any more"
    there = {column["name"] for column in inspector.get_columns(table.name, schema=table.schema)}
    missing = [name for name in _POSITION if name not in there]
    return f"table {table} has no column {', '.join(missing)}: its rows cannot be told apart" if missing else None


def _position_of(table: TableName) -> Table:
    return Table(table.name, MetaData(), *(Column(name) for name in _POSITION), schema=table.schema)


def _is_within(table: Table, tp: TopicPartition, start: int, end: int) -> sqlalchemy.ColumnElement[bool]:
    columns = table.c
    return sqlalchemy.and_(
        columns.topic == tp.topic, columns.partition == tp.partition, columns.offset >= start, columns.offset < end
    )


def _sorted(rows: Sequence[Any]) -> Mapping[TopicPartition, list[Offsets]]:
    found: dict[TopicPartition, list[Offsets]] = {}
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    sort_rows(pa.Table.from_arrays(arrays, schema=_SCHEMA), found)
    return found
