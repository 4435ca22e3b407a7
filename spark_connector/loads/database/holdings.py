"""The rows of loads in a database: read to be recounted, and deleted by a rewind, both `WHERE load = …`.

A group's loads may have gone to several tables of one database. The table of a load is at the end of its `output`.
Without an index on the column `load`, every statement reads the whole table; therefore one statement names many loads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy
from sqlalchemy import Column, Connection, Engine, MetaData, Table

from broker.errors import ConfigError
from spark_connector.loads.destination import Held
from spark_connector.loads.history import History, HistoryEntry
from spark_connector.loads.layout import LOAD_COLUMN
from spark_connector.loads.record import LoadRange, LoadRecord, Rewind, Undone
from spark_connector.loads.row_offsets import held_rows, refuse_unnamed_rows, strange_loads

__all__ = ["DatabaseHoldings", "TableName", "check_delete", "delete_rows"]

_SCHEMA = pa.schema(
    [(LOAD_COLUMN, pa.string()), ("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64())]
)
_LOADS_AT_ONCE = 200  # of a DELETE: SQL Server takes 2100 values in a statement
_ROWS = 50_000  # fetched at once


@dataclass(frozen=True)
class TableName:
    """A table of the database; `schema` is None for the default schema."""

    name: str
    schema: str | None

    @classmethod
    def of(cls, output: str, default_schema: str | None) -> TableName:
        """The table of a load: its `output` is `<url>#<table>` or `<url>#<schema>.<table>`."""
        schema, _, name = output.rpartition("#")[2].rpartition(".")
        return cls(name, schema if schema and schema != default_schema else None)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def with_columns(self, *names: str) -> Table:
        return Table(self.name, MetaData(), *(Column(name) for name in names), schema=self.schema)


class DatabaseHoldings:
    """The rows of one group's loads. `table` is the one that the group loads into now."""

    place = "the table"

    def __init__(self, engine: Engine, table: TableName, group: str, history: History) -> None:
        self._engine = engine
        self._table = table
        self._group = group
        self._history = history

    def of(self, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, Held]]:
        schema = sqlalchemy.inspect(self._engine).default_schema_name
        for table, group in itertools.groupby(entries, lambda entry: TableName.of(entry.record.output, schema)):
            reason = _why_unreadable(self._engine, table, _SCHEMA.names)
            if reason is not None:
                yield from ((entry, Held(None, notes=(reason,))) for entry in group)
                continue
            yield from held_rows(functools.partial(self._read, table), list(group), ValueError)

    def strangers(self) -> list[str]:
        if _why_unreadable(self._engine, self._table, [LOAD_COLUMN]) is not None:
            return []
        with self._engine.connect() as connection:
            return strange_loads(self._group, self._history, _rows_by_load(connection, self._table))

    def _read(self, name: TableName, load_ids: Sequence[str]) -> Iterator[pa.Table]:
        table = name.with_columns(*_SCHEMA.names)
        query = sqlalchemy.select(*table.columns).where(table.columns[LOAD_COLUMN].in_(load_ids))
        with self._engine.connect().execution_options(stream_results=True, max_row_buffer=_ROWS) as connection:
            for rows in connection.execute(query).partitions(_ROWS):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
                yield pa.Table.from_arrays(arrays, schema=_SCHEMA)


def check_delete(engine: Engine, rewind: Rewind, loads: Sequence[LoadRecord]) -> None:
    """Raise ConfigError when the rows of the undone loads cannot be found. `loads` are those of the group."""
    for table, undone in _by_table(rewind, sqlalchemy.inspect(engine).default_schema_name):
        reason = _why_unreadable(engine, table, [LOAD_COLUMN])
        if reason is not None:
            raise ConfigError(f"the rows of load {undone[0].load_id} cannot be deleted: {reason}")
        if _why_unreadable(engine, table, _SCHEMA.names) is None:
            ids = {gone.load_id for gone in undone}
            with engine.connect() as connection:
                refuse_unnamed_rows(
                    [load for load in loads if load.load_id in ids],
                    _rows_by_load(connection, table),
                    functools.partial(_unnamed_rows, connection, table),
                )


def delete_rows(connection: Connection, rewind: Rewind) -> None:
    """Delete the rows of the undone loads, within the caller's transaction."""
    for name, undone in _by_table(rewind, sqlalchemy.inspect(connection).default_schema_name):
        table = name.with_columns(LOAD_COLUMN)
        for at in range(0, len(undone), _LOADS_AT_ONCE):
            ids = [load.load_id for load in undone[at : at + _LOADS_AT_ONCE]]
            connection.execute(table.delete().where(table.columns[LOAD_COLUMN].in_(ids)))


def _rows_by_load(connection: Connection, name: TableName) -> dict[str | None, int]:
    load = name.with_columns(LOAD_COLUMN).columns[LOAD_COLUMN]
    query = sqlalchemy.select(load, sqlalchemy.func.count()).group_by(load)
    return {row[0]: row[1] for row in connection.execute(query)}


def _unnamed_rows(connection: Connection, name: TableName, range: LoadRange) -> int:
    load, topic, partition, offset = name.with_columns(*_SCHEMA.names).columns
    query = sqlalchemy.select(sqlalchemy.func.count()).where(
        load.is_(None),
        topic == range.topic,
        partition == range.partition,
        offset >= range.start,
        offset < range.end,
    )
    return int(connection.execute(query).scalar_one())


def _by_table(rewind: Rewind, schema: str | None) -> list[tuple[TableName, list[Undone]]]:
    found: dict[TableName, list[Undone]] = {}
    for undone in rewind.undone:
        found.setdefault(TableName.of(undone.output, schema), []).append(undone)
    return list(found.items())


def _why_unreadable(engine: Engine, table: TableName, columns: Sequence[str]) -> str | None:
    """Why rows cannot be told apart: the table does not exist, or lacks a column; None when they can."""
    inspector = sqlalchemy.inspect(engine)
    if not inspector.has_table(table.name, schema=table.schema):
        return f"table {table} no longer exists"
    there = {column["name"]: column["type"] for column in inspector.get_columns(table.name, schema=table.schema)}
    if missing := [name for name in columns if name not in there]:
        return f"table {table} has no column {', '.join(missing)}: its rows cannot be told apart"
    texts = [name for name in columns if name in ("partition", "offset") and isinstance(there[name], sqlalchemy.String)]
    return f"table {table} has {', '.join(texts)} as text: its rows cannot be counted" if texts else None
