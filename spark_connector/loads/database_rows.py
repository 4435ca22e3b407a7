"""The rows of loads in a database, by topic, partition and offset: read to be recounted, deleted by a rewind.

A group's loads may have gone to several tables of one database; each is known by the name at the end of its loads'
`output`. Given to loads/database.py. Every statement names some hundred spans of offsets at most, and each may cost a
pass over the table where there is no index on (topic, partition, offset): therefore many loads are read at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.table_holdings import OwnRows, Parts, Spans, TableHoldings, spans_of

__all__ = ["DatabaseHoldings", "DatabaseRows", "TableName", "check_take_back", "take_back"]

_POSITION = ("topic", "partition", "offset")
_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64())])
_SPANS = 200  # of one statement: SQLite takes expressions 1000 deep, SQL Server 2100 values
_ROWS = 50_000  # fetched at once

_Span = tuple[TopicPartition, int, int]


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
        with self._engine.connect().execution_options(stream_results=True, max_row_buffer=_ROWS) as connection:
            for some in _batched(_as_list(spans)):
                query = sqlalchemy.select(*table.columns).where(_within(table, some))
                for rows in connection.execute(query).partitions(_ROWS):
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
        _refuse_others(_claims_on(table, log, schema), table, loads)


def take_back(connection: Connection, loads: Sequence[LoadRecord], log: DatabaseLoadLog) -> None:
    """Delete the rows of the loads, within the caller's transaction. Raises LoadError when there are more rows at these
    offsets than the loads have written, for then some are not theirs, ConfigError when some may be another load's."""
    schema = sqlalchemy.inspect(connection).default_schema_name
    for name, group in _by_table(loads, schema).items():
        table, deleted = _position_of(name), 0
        for some in _batched(_as_list(spans_of(group))):
            delete = table.delete().where(_within(table, some)).execution_options(preserve_rowcount=True)
            deleted += connection.execute(delete).rowcount
        written = sum(load.rows for load in group)
        if deleted > written:
            raise LoadError(
                f"the loads {group[0].load_id} to {group[-1].load_id} have written {written:,} rows, but table {name} "
                f"has {deleted:,} of their offsets: some are not their own, or there twice; nothing is deleted"
            )
        # Once more: rows that were there to be deleted were committed together with their load.
        _refuse_others(_claims_on(name, log, schema, connection), name, group)


def _refuse_others(claims: Claims, table: TableName, loads: Sequence[LoadRecord]) -> None:
    for tp, claim in claims.outsiders(loads):
        raise ConfigError(
            f"the rows of {tp} cannot be deleted: {claim.name} may have rows of offsets {claim.start} to "
            f"{claim.end - 1} in table {table} too, which look the same"
        )


def _claims_on(table: TableName, log: DatabaseLoadLog, schema: str | None, within: Connection | None = None) -> Claims:
    """Which loads, of all groups of the database, have rows in the table."""
    records = log.records_of_all(within)
    here = [record for record in standing_loads(records) if TableName.of(record, schema) == table]
    return Claims.of(here, records, log.offsets_of_all(within))


def _as_list(spans: Spans) -> list[_Span]:
    return [(tp, start, end) for tp, parts in spans.items() for start, end in parts]


def _batched(spans: Sequence[_Span]) -> Iterator[Sequence[_Span]]:
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
    there = {column["name"]: column["type"] for column in inspector.get_columns(table.name, schema=table.schema)}
    if missing := [name for name in _POSITION if name not in there]:
        return f"table {table} has no column {', '.join(missing)}: its rows cannot be told apart"
    # SQLite would compare such numbers by their digits.
    texts = [name for name in ("partition", "offset") if isinstance(there[name], sqlalchemy.String)]
    return f"table {table} has {', '.join(texts)} as text: its rows cannot be told apart" if texts else None


def _position_of(table: TableName) -> Table:
    return Table(table.name, MetaData(), *(Column(name) for name in _POSITION), schema=table.schema)


def _within(table: Table, spans: Iterable[_Span]) -> sqlalchemy.ColumnElement[bool]:
    topic, partition, offset = table.columns
    return sqlalchemy.or_(
        *(
            sqlalchemy.and_(topic == tp.topic, partition == tp.partition, offset >= start, offset < end)
            for tp, start, end in spans
        )
    )


def _sorted(rows: Sequence[Any]) -> Mapping[TopicPartition, list[Offsets]]:
    found: dict[TopicPartition, list[Offsets]] = {}
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    sort_rows(pa.Table.from_arrays(arrays, schema=_SCHEMA), found)
    return found
