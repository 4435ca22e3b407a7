"""A table in a database as the destination of loads: tasks fill a staging table, and one transaction does the rest.

    pykafka_staged_<group>_<number>_<token>   1. created by the driver, filled by the tasks (staged_rows.py)
    one transaction                           2. committed: INSERT … SELECT, number and offsets (database_log.py)
                                              3. the staging table is dropped

Every attempt of a task marks its rows with a unique name. A second table, `…_won`, has the names of the attempts that
count, and only their rows are inserted. The INSERT adds the column `load`, which names the load of every row; a
rewind is one transaction with `DELETE … WHERE load IN …`. A crash leaves only these two tables behind;
they are dropped when their number is taken.

Imported only when it is used, because SQLAlchemy is an extra.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy
from sqlalchemy import CHAR, Column, Connection, Engine, LargeBinary, MetaData, String, Table
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.schema import DropTable

from broker.errors import ConfigError
from broker.stored_names import number_named
from spark_connector.loads.addresses import DatabaseAddress
from spark_connector.loads.database import sql
from spark_connector.loads.database.database_log import DatabaseCommitLog
from spark_connector.loads.database.staged_rows import DatabaseOutput
from spark_connector.loads.history import HistoryEntry, staged_state, topics_by_group
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted, LoadRange, LoadRecord, Rewind
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.rewind import standing
from spark_connector.loads.table import ROW_SCHEMA, TableDestination
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.offset_store.base import OffsetConflict

_PREFIX = "pykafka_staged_"
_DROP_SECONDS = 10
_LOADS_AT_ONCE = 200  # of a DELETE: SQL Server takes 2100 values in a statement
_ROWS = 50_000  # fetched at once
_NUMBERS = ("partition", "offset")  # by which rows are counted


def open_database(address: DatabaseAddress, group: str) -> DatabaseDestination:
    """The table at `address`. Connects once, to fail early. Raises ConfigError, LoadError."""
    engine = sql.open_engine(address.url)
    try:
        engine.connect().close()
    except DBAPIError as error:
        raise sql.failure(error, f"cannot connect to {address.shown}") from error
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


class DatabaseDestination(TableDestination[TableName]):
    """The table, and the loads of one group. Its earlier loads may have gone to other tables of the database.

    Without an index on the column `load`, every statement that looks for loads reads the whole table. Therefore one
    statement names many loads.
    """

    log: DatabaseCommitLog

    def __init__(self, engine: Engine, address: DatabaseAddress, log: DatabaseCommitLog, group: str) -> None:
        super().__init__(address.shown, log, group)
        self.address = address
        self._engine = engine
        self._columns: tuple[Column[Any], ...] = ()

    def stage(self, record: LoadRecord) -> str:
        """The name of the staging table, which `file_layout` creates."""
        return self._staging(record.load_id)

    def file_layout(self, record: LoadRecord, layout: FileLayout) -> FileLayout:
        """Check that the table takes these columns, if it is there, and create the staging tables. The commit makes the
        table: a first load that is refused, or whose rows do not fit, leaves none behind."""
        schema = pa.schema([one for one in layout.schema if one.name != LOAD_COLUMN])  # which the commit adds
        self._columns = tuple(Column(one.name, sql.column_type(one.type)) for one in schema)
        there = self._checked(record.load_id)
        staged = [Column(one.name, there[one.name] if there else one.type) for one in self._columns]
        staging = self._staging(record.load_id)
        sql.make_table(self._engine, self._scratch(staging, _attempt(), *staged))
        sql.make_table(self._engine, self._scratch(sql.won_of(staging), _attempt(primary_key=True)))
        return replace(layout, schema=schema, load_id=None)

    def task_output(self, place: str) -> TaskOutput:
        return DatabaseOutput(self.address.url, self.url, place, self.address.schema)

    def gather(self, place: str, files: WrittenFiles) -> None:
        """Name the attempts that count. Raises LoadError unless the driver sees all their rows.

        A database in a file is another one on each host.
        """
        won = TableName(sql.won_of(place), self.address.schema).with_columns(sql.ATTEMPT)
        attempt = TableName(place, self.address.schema).with_columns(sql.ATTEMPT).c[sql.ATTEMPT]
        if not files:
            return
        with self._engine.begin() as connection:
            connection.execute(won.insert(), [{sql.ATTEMPT: file.name} for file in files])
            counted = sqlalchemy.select(attempt, sqlalchemy.func.count()).group_by(attempt)
            held = {row[0]: row[1] for row in connection.execute(counted)}
        for file in files:
            if (rows := held.get(file.name, 0)) != file.rows:
                raise LoadError(
                    f"a task on host {file.host} has staged {file.rows} rows for {self.url}, but the driver finds "
                    f"{rows} of them there. A database in a file is another one on each host: use a server"
                )

    def decide(self, record: LoadRecord, files: WrittenFiles = ()) -> None:
        """Make the table, unless it is there. Raises ConfigError when it does not take the columns of `file_layout`."""
        if self._columns and record.rewind is None:
            columns = [Column(one.name, one.type) for one in self._columns]
            load = Column(LOAD_COLUMN, String(255))
            table = Table(self.address.table, MetaData(), *columns, load, schema=self.address.schema)
            sql.make_table(self._engine, table)
            self._checked(record.load_id)

    def _checked(self, load_id: str) -> dict[str, Any]:
        """Column → type of the table; none when there is no table. Raises ConfigError when it cannot take the rows."""
        if not sqlalchemy.inspect(self._engine).has_table(self.address.table, schema=self.address.schema):
            return {}
        columns = self._columns
        there = sql.column_types(self._engine, self.address.table, self.address.schema)
        self._check_load_column(there, load_id)
        missing = [column.name for column in columns if column.name not in there]
        if missing:
            raise ConfigError(f"{self.url} has no column {', '.join(missing)}: add it, or read without it")
        for name in _NUMBERS:
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
        return there

    def commit(self, record: LoadRecord, files: WrittenFiles = (), layout: FileLayout | None = None) -> None:
        try:
            self.decide(record)
            self.log.append(record, lambda connection: self._change_rows(connection, record))
        except (OffsetConflict, LoadError, ConfigError):
            # Not committed, so the staged rows are only copies. The next try stages them again: on a full disk, the
            # leftovers of each try would keep it full.
            with contextlib.suppress(SQLAlchemyError):
                self.discard(record.load_id)
            raise
        self.repair()

    def discard(self, load_id: str) -> None:
        name = self._staging(load_id)
        self.clear(name)
        self.clear(sql.won_of(name))

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Only loads into this table: the commit log is one for the whole database."""
        loads = standing(self.log.records_of_all())
        return topics_by_group(load for load in loads if load.output == self.url)

    def rows_elsewhere(self, loads: Iterator[LoadRecord]) -> str | None:
        """The offsets of a group are those of all tables of the database."""
        newest = next(loads, None)
        if newest is None:
            return None
        if self.table_of(newest.output) != self.table_of(self.url):
            return f"to {newest.output}"
        there = sqlalchemy.inspect(self._engine).has_table(self.address.table, schema=self.address.schema)
        return None if there else f"to {newest.output}, a table that no longer exists"

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if not rewind.rewind.delete:
            raise ConfigError("the rows of a table cannot be moved aside, only deleted: set delete (--delete)")
        for undone in rewind.rewind.undone:
            if undone.output.rpartition("#")[0] != self.url.rpartition("#")[0]:
                raise ConfigError(
                    f"load {undone.load_id} went to {undone.output}, which is not in the database of {self.url}"
                )
        super().check_rewind(rewind)

    def plain_error(self, error: Exception) -> LoadError | None:
        return sql.failure(error, self.url) if isinstance(error, SQLAlchemyError) else None

    def staged_entries(self, newest: int, known: Collection[str]) -> list[HistoryEntry]:
        """Only the ids of the attempts are known."""
        entries = []
        for name, number in self.staged().items():
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
        names = [column.name for column in staging.columns if column.name != sql.ATTEMPT]
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
            *sql.column_types(connection, name, self.address.schema)
        )
        won = TableName(sql.won_of(name), self.address.schema).with_columns(sql.ATTEMPT)
        return staging, staging.c[sql.ATTEMPT].in_(sqlalchemy.select(won.c[sql.ATTEMPT]))

    def _scratch(self, name: str, *columns: Column[Any]) -> Table:
        # Unlogged: half the writing. A crash of PostgreSQL empties them, and the count at the commit notices it.
        prefixes = ["UNLOGGED"] if self._engine.dialect.name == "postgresql" else []
        return Table(name, MetaData(), *columns, schema=self.address.schema, prefixes=prefixes)

    def staged(self) -> dict[str, int]:
        prefix = f"{_PREFIX}{_short(self._group)}_"
        names = sqlalchemy.inspect(self._engine).get_table_names(schema=self.address.schema)
        parts = {name: name.removeprefix(prefix).partition("_")[0] for name in names if name.startswith(prefix)}
        numbers = {name: number_named(part) for name, part in parts.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def _staging(self, load_id: str) -> str:
        parsed = LoadId.of(load_id)
        return f"{_PREFIX}{_short(self._group)}_{parsed.sequence}_{parsed.token}"

    def clear(self, name: str) -> None:
        """Drop a table. A task that outlived its job may lock it; then the next repair drops it."""
        with contextlib.suppress(OperationalError), self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sqlalchemy.text(f"SET LOCAL lock_timeout = '{_DROP_SECONDS}s'"))
            connection.execute(DropTable(Table(name, MetaData(), schema=self.address.schema), if_exists=True))

    @functools.cached_property
    def _default_schema(self) -> str | None:
        return sqlalchemy.inspect(self._engine).default_schema_name

    def table_of(self, output: str) -> TableName:
        return TableName.of(output, self._default_schema)

    def _undone_by_table(self, rewind: Rewind) -> dict[TableName, list[str]]:
        found: dict[TableName, list[str]] = {}
        for undone in rewind.undone:
            found.setdefault(self.table_of(undone.output), []).append(undone.load_id)
        return found

    def read_rows(self, table: TableName, load_ids: Sequence[str]) -> Iterator[pa.Table]:
        rows_of = table.with_columns(*ROW_SCHEMA.names)
        query = sqlalchemy.select(*rows_of.columns).where(rows_of.columns[LOAD_COLUMN].in_(load_ids))
        with self._engine.connect().execution_options(stream_results=True, max_row_buffer=_ROWS) as connection:
            for rows in connection.execute(query).partitions(_ROWS):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW_SCHEMA, strict=True)]
                yield pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)

    def why_unreadable(self, table: TableName, columns: Sequence[str]) -> str | None:
        if not sqlalchemy.inspect(self._engine).has_table(table.name, schema=table.schema):
            return f"table {table} no longer exists"
        there = sql.column_types(self._engine, table.name, table.schema)
        if missing := [name for name in columns if name not in there]:
            return f"table {table} has no column {', '.join(missing)}: its rows cannot be told apart"
        texts = [name for name in columns if name in _NUMBERS and isinstance(there[name], String)]
        return f"table {table} has {', '.join(texts)} as text: its rows cannot be counted" if texts else None

    def rows_by_load(self, table: TableName, load_ids: Collection[str] | None = None) -> dict[str | None, int]:
        load = table.with_columns(LOAD_COLUMN).columns[LOAD_COLUMN]
        with self._engine.connect() as connection:
            counted = connection.execute(sqlalchemy.select(load, sqlalchemy.func.count()).group_by(load))
            return {row[0]: row[1] for row in counted}

    def unnamed_rows(self, table: TableName, range: LoadRange) -> int:
        load, topic, partition, offset = table.with_columns(*ROW_SCHEMA.names).columns
        position = topic == range.topic, partition == range.partition, offset >= range.start, offset < range.end
        query = sqlalchemy.select(sqlalchemy.func.count()).where(load.is_(None), *position)
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())


def _attempt(*, primary_key: bool = False) -> Column[Any]:
    return Column(sql.ATTEMPT, String(32), primary_key=primary_key, nullable=False)


def _short(group: str) -> str:
    """A short name for the group: a group may have 200 characters, the name of a table 63."""
    return hashlib.sha256(group.encode()).hexdigest()[:12]
