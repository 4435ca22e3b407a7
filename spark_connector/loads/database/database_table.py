"""A table in a database as the destination of loads: tasks fill a staging table, and one transaction does the rest.

    pykafka_staged_<group>_<number>_<token>   1. created by the driver, filled by Spark's tasks (staged_rows.py)
    one transaction                           2. committed: INSERT … SELECT, number and offsets (database_log.py)
                                              3. the staging table is dropped

Every attempt of a task marks its rows with a unique name. A second table, `…_won`, has the names of the attempts that
Spark counts, and only their rows are inserted. The INSERT adds the column `load`, which names the load of every row; a
rewind is one transaction with `DELETE … WHERE load IN …`. A crash leaves only these two tables behind;
they are dropped when their number is taken.

Imported only when it is used, because SQLAlchemy is an extra.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy
from sqlalchemy import CHAR, Column, Connection, Engine, LargeBinary, MetaData, String, Table
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import DropTable

from broker.errors import ConfigError
from spark_connector.loads.database.database_log import DatabaseCommitLog, failure, make_table
from spark_connector.loads.database.sql_rows import column_type
from spark_connector.loads.destination import Destination, HeldRows, NewSession
from spark_connector.loads.footers import Count
from spark_connector.loads.history import History, HistoryEntry, staged_state, table_history, topics_by_group
from spark_connector.loads.layout import LOAD_COLUMN
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted, LoadRange, LoadRecord, Rewind
from spark_connector.loads.rewind import standing
from spark_connector.loads.row_offsets import ROW_SCHEMA, held_rows, refuse_unnamed_rows, rows_of_unknown_loads
from spark_connector.loads.target import DatabaseAddress
from spark_connector.offset_store.base import OffsetConflict

ATTEMPT = "pykafka_attempt"
"""Column of the staging table: the attempt of a task that wrote the row."""

_PREFIX = "pykafka_staged_"
_LOCK_SECONDS = 600  # SQLite has one writer at a time; the others wait
_DROP_SECONDS = 10
_LOADS_AT_ONCE = 200  # of a DELETE: SQL Server takes 2100 values in a statement
_ROWS = 50_000  # fetched at once


def open_engine(url: str) -> Engine:
    """An engine without a pool, whose errors do not show rows. Raises ConfigError."""
    arguments = {"timeout": _LOCK_SECONDS} if url.startswith("sqlite") else {}
    try:
        return sqlalchemy.create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=arguments)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"'to' is no database URL that SQLAlchemy can use: {type(error).__name__}") from None
    except ImportError as error:
        raise ConfigError(f"the driver of this database is not installed: {error}") from error


def open_database(address: DatabaseAddress, group: str) -> DatabaseDestination:
    """The table at `address`. Connects once, to fail early. Raises ConfigError, LoadError."""
    engine = open_engine(address.url)
    try:
        engine.connect().close()
    except DBAPIError as error:
        raise failure(error, f"cannot connect to {address.shown}") from error
    return DatabaseDestination(engine, address, DatabaseCommitLog(engine, group, address.shown), group)


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


class DatabaseDestination(Destination):
    """The table, and the loads of one group. Its earlier loads may have gone to other tables of the database.

    Without an index on the column `load`, every statement that looks for loads reads the whole table. Therefore one
    statement names many loads.
    """

    log: DatabaseCommitLog

    def __init__(self, engine: Engine, address: DatabaseAddress, log: DatabaseCommitLog, group: str) -> None:
        self.url = address.shown
        self.address = address
        self.log = log
        self._engine = engine
        self._group = group

    def repair(self) -> list[str]:
        """Drop staging tables whose number is taken. Gives nothing: a committed load is complete."""
        staged = self._staged()
        newest = self.log.newest().sequence if staged else 0
        for name, number in staged.items():
            if number <= newest:
                self._drop(name)
        return []

    def stage(self, record: LoadRecord) -> str:
        """The name of the staging table, which `prepare` creates."""
        return self._staging(record.load_id)

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Create the table, or check that it takes these columns, and create the staging tables."""
        types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
        columns = [Column(name, column_type(of)) for name, of in types.items()]
        load = Column(LOAD_COLUMN, String(255))
        make_table(self._engine, Table(self.address.table, MetaData(), *columns, load, schema=self.address.schema))
        there = column_types(self._engine, self.address.table, self.address.schema)
        self._check_load_column(there, record.load_id)
        missing = [name for name in types if name not in there]
        if missing:
            raise ConfigError(f"{self.url} has no column {', '.join(missing)}: add it, or read without it")
        for name in ("partition", "offset"):
            if isinstance(there.get(name), String):
                raise ConfigError(
                    f"{self.url}: column {name} is {there[name]} there, by which a load cannot count its "
                    "rows: make it a column of numbers"
                )
        for column in columns:
            wanted, found = isinstance(column.type, LargeBinary), there[column.name]
            if wanted != isinstance(found, LargeBinary):
                kind = "bytes" if wanted else "text"
                raise ConfigError(
                    f"{self.url}: column {column.name} is to be loaded as {kind}, but is {found} there; "
                    "see write option 'text'"
                )
        staged = [Column(name, there[name]) for name in types]
        staging = self._staging(record.load_id)
        make_table(self._engine, self._scratch(staging, _attempt(), *staged))
        make_table(self._engine, self._scratch(won_of(staging), _attempt(primary_key=True)))

    def commit(self, record: LoadRecord) -> None:
        try:
            self.log.append(record, lambda connection: self._change_rows(connection, record))
        except (OffsetConflict, LoadError):
            # Not committed, so the staged rows are only copies. The next try stages them again: on a full disk, the
            # leftovers of each try would keep it full.
            with contextlib.suppress(SQLAlchemyError):
                self.discard(record.load_id)
            raise
        self.repair()

    def discard(self, load_id: str) -> None:
        name = self._staging(load_id)
        self._drop(name)
        self._drop(won_of(name))

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Only loads into this table: the commit log is one for the whole database."""
        loads = standing(self.log.records_of_all())
        return topics_by_group(load for load in loads if load.output == self.url)

    def history(self) -> History:
        newest = self.log.newest().sequence
        return table_history(self.log.records(), newest, self._staged_entries(newest))

    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        for table, group in itertools.groupby(entries, lambda entry: self._table_of(entry.record.output)):
            reason = self._why_unreadable(table, ROW_SCHEMA.names)
            if reason is not None:
                yield from ((entry, HeldRows(None, notes=(reason,))) for entry in group)
                continue
            yield from held_rows(functools.partial(self._read, table), list(group), ValueError)

    def unknown_loads(self, history: History) -> list[str]:
        table = self._table_of(self.url)
        if self._why_unreadable(table, [LOAD_COLUMN]) is not None:
            return []
        with self._engine.connect() as connection:
            return rows_of_unknown_loads(self._group, history, _rows_by_load(connection, table))

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if not rewind.rewind.delete:
            raise ConfigError("the rows of a table cannot be moved aside, only deleted: set delete (--delete)")
        for table, load_ids in self._undone_by_table(rewind.rewind).items():
            reason = self._why_unreadable(table, [LOAD_COLUMN])
            if reason is not None:
                raise ConfigError(f"the rows of load {load_ids[0]} cannot be deleted: {reason}")
            if self._why_unreadable(table, ROW_SCHEMA.names) is None:
                undone = [load for load in self.log.records() if load.load_id in load_ids]
                with self._engine.connect() as connection:
                    unnamed = functools.partial(_unnamed_rows, connection, table)
                    refuse_unnamed_rows(undone, _rows_by_load(connection, table), unnamed)

    def plain_error(self, error: Exception) -> LoadError | None:
        return failure(error, self.url) if isinstance(error, SQLAlchemyError) else None

    def count(self, load_id: str) -> list[Count]:
        """The rows of the winning attempts in the staging table, counted per partition."""
        with self._engine.connect() as connection:
            staging, won = self._staged_rows(load_id, connection)
            position, offset, function = (staging.c.topic, staging.c.partition), staging.c.offset, sqlalchemy.func
            query = sqlalchemy.select(*position, function.count(), function.min(offset), function.max(offset))
            rows = connection.execute(query.where(won).group_by(*position)).all()
        return [(topic, partition, count, low, high) for topic, partition, count, low, high in rows]

    def _staged_entries(self, newest: int) -> list[HistoryEntry]:
        """Attempts that are not committed. Only their ids are known."""
        entries = []
        for name, number in self._staged().items():
            load_id = str(LoadId(self._group, number, name.rpartition("_")[2]))
            if LoadId.parse(load_id) is None:
                continue  # a table of attempts, `…_won`
            state = staged_state(number <= newest, sealed=False, owner=None)
            url = replace(self.address, table=name).shown
            entries.append(HistoryEntry(LoadRecord.unknown(load_id, self.url, self.log.kind), state, url))
        return entries

    def _check_load_column(self, there: Mapping[str, Any], load_id: str) -> None:
        if LOAD_COLUMN not in there:
            raise ConfigError(
                f"{self.url} has no column {LOAD_COLUMN}, in which a load writes its id to every row: add "
                f"it (ALTER TABLE … ADD COLUMN {LOAD_COLUMN} VARCHAR(255)), or use another table"
            )
        found = there[LOAD_COLUMN]
        if not isinstance(found, String):
            raise ConfigError(
                f"{self.url} has a column {LOAD_COLUMN} of its own, of type {found}: a load writes its id there, as "
                "text. Rename that column, or use another table"
            )
        if isinstance(found, CHAR) or (found.length is not None and found.length < len(load_id)):
            raise ConfigError(
                f"{self.url}: column {LOAD_COLUMN} is {found}, which would pad or cut '{load_id}': make it VARCHAR(255)"
            )

    def _change_rows(self, connection: Connection, record: LoadRecord) -> None:
        if record.rewind is None:
            self._insert(connection, record)
            return
        for name, load_ids in self._undone_by_table(record.rewind).items():
            table = name.with_columns(LOAD_COLUMN)
            for at in range(0, len(load_ids), _LOADS_AT_ONCE):
                undone = table.columns[LOAD_COLUMN].in_(load_ids[at : at + _LOADS_AT_ONCE])
                connection.execute(table.delete().where(undone))

    def _insert(self, connection: Connection, record: LoadRecord) -> None:
        """Insert the staged rows into the table. Raises LoadInterrupted when some are missing."""
        staging, won = self._staged_rows(record.load_id, connection)
        names = [column.name for column in staging.columns if column.name != ATTEMPT]
        target = TableName(self.address.table, self.address.schema).with_columns(*names, LOAD_COLUMN)
        load = sqlalchemy.literal(record.load_id, String(255)).label(LOAD_COLUMN)
        rows = sqlalchemy.select(*(staging.c[name] for name in names), load).where(won)
        insert = target.insert().from_select([*names, LOAD_COLUMN], rows).execution_options(preserve_rowcount=True)
        inserted = connection.execute(insert).rowcount
        if inserted != record.rows:
            raise LoadInterrupted(
                f"load {record.load_id}: {record.rows} rows were staged and counted, but {inserted} are there now"
            )

    def _staged_rows(self, load_id: str, connection: Connection) -> tuple[Table, sqlalchemy.ColumnElement[bool]]:
        """The staging table, and the condition for rows of winning attempts."""
        name = self._staging(load_id)
        staging = TableName(name, self.address.schema).with_columns(
            *column_types(connection, name, self.address.schema)
        )
        won = TableName(won_of(name), self.address.schema).with_columns(ATTEMPT)
        return staging, staging.c[ATTEMPT].in_(sqlalchemy.select(won.c[ATTEMPT]))

    def _scratch(self, name: str, *columns: Column[Any]) -> Table:
        # Unlogged: half the writing. A crash of PostgreSQL empties them, and the count at the commit notices it.
        prefixes = ["UNLOGGED"] if self._engine.dialect.name == "postgresql" else []
        return Table(name, MetaData(), *columns, schema=self.address.schema, prefixes=prefixes)

    def _staged(self) -> dict[str, int]:
        """Staging tables of the group: name → number."""
        prefix = f"{_PREFIX}{_short(self._group)}_"
        names = sqlalchemy.inspect(self._engine).get_table_names(schema=self.address.schema)
        parts = {name: name.removeprefix(prefix).partition("_")[0] for name in names if name.startswith(prefix)}
        return {name: int(number) for name, number in parts.items() if number.isdigit()}

    def _staging(self, load_id: str) -> str:
        parsed = LoadId.of(load_id)
        return f"{_PREFIX}{_short(self._group)}_{parsed.sequence}_{parsed.token}"

    def _drop(self, name: str) -> None:
        """Drop a table. A task that outlived its job may lock it; then the next repair drops it."""
        with contextlib.suppress(OperationalError), self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sqlalchemy.text(f"SET LOCAL lock_timeout = '{_DROP_SECONDS}s'"))
            connection.execute(DropTable(Table(name, MetaData(), schema=self.address.schema), if_exists=True))

    @functools.cached_property
    def _default_schema(self) -> str | None:
        return sqlalchemy.inspect(self._engine).default_schema_name

    def _table_of(self, output: str) -> TableName:
        return TableName.of(output, self._default_schema)

    def _undone_by_table(self, rewind: Rewind) -> dict[TableName, list[str]]:
        found: dict[TableName, list[str]] = {}
        for undone in rewind.undone:
            found.setdefault(self._table_of(undone.output), []).append(undone.load_id)
        return found

    def _read(self, name: TableName, load_ids: Sequence[str]) -> Iterator[pa.Table]:
        table = name.with_columns(*ROW_SCHEMA.names)
        query = sqlalchemy.select(*table.columns).where(table.columns[LOAD_COLUMN].in_(load_ids))
        with self._engine.connect().execution_options(stream_results=True, max_row_buffer=_ROWS) as connection:
            for rows in connection.execute(query).partitions(_ROWS):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW_SCHEMA, strict=True)]
                yield pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)

    def _why_unreadable(self, table: TableName, columns: Sequence[str]) -> str | None:
        """Why rows cannot be told apart: the table does not exist, or lacks a column; None when they can."""
        inspector = sqlalchemy.inspect(self._engine)
        if not inspector.has_table(table.name, schema=table.schema):
            return f"table {table} no longer exists"
        there = {column["name"]: column["type"] for column in inspector.get_columns(table.name, schema=table.schema)}
        if missing := [name for name in columns if name not in there]:
            return f"table {table} has no column {', '.join(missing)}: its rows cannot be told apart"
        texts = [
            name for name in columns if name in ("partition", "offset") and isinstance(there[name], sqlalchemy.String)
        ]
        return f"table {table} has {', '.join(texts)} as text: its rows cannot be counted" if texts else None


def column_types(source: Engine | Connection, table: str, schema: str | None) -> dict[str, Any]:
    """Column → its type in the database. Much cheaper than reflecting the whole table."""
    return {column["name"]: column["type"] for column in sqlalchemy.inspect(source).get_columns(table, schema=schema)}


def _rows_by_load(connection: Connection, name: TableName) -> dict[str | None, int]:
    load = name.with_columns(LOAD_COLUMN).columns[LOAD_COLUMN]
    query = sqlalchemy.select(load, sqlalchemy.func.count()).group_by(load)
    return {row[0]: row[1] for row in connection.execute(query)}


def _unnamed_rows(connection: Connection, name: TableName, range: LoadRange) -> int:
    load, topic, partition, offset = name.with_columns(*ROW_SCHEMA.names).columns
    query = sqlalchemy.select(sqlalchemy.func.count()).where(
        load.is_(None),
        topic == range.topic,
        partition == range.partition,
        offset >= range.start,
        offset < range.end,
    )
    return int(connection.execute(query).scalar_one())


def won_of(staging: str) -> str:
    """The table with the names of the attempts whose rows count."""
    return f"{staging}_won"


def _attempt(*, primary_key: bool = False) -> Column[Any]:
    return Column(ATTEMPT, String(32), primary_key=primary_key, nullable=False)


def _short(group: str) -> str:
    """A short name for the group: a group may have 200 characters, the name of a table 63."""
    return hashlib.sha256(group.encode()).hexdigest()[:12]
