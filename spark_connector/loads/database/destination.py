"""A table in a database as the destination of loads: tasks fill a staging table, and one transaction does the rest.

    pykafka_staged_<group>_<number>_<token>   1. created by the driver, filled by Spark's tasks (output.py)
    one transaction                           2. committed: INSERT … SELECT, number and offsets (commit_log.py)
                                              3. the staging table is dropped

Every attempt of a task marks its rows with a unique name. A second table, `…_won`, has the names of the attempts that
Spark counts, and only their rows are inserted. The INSERT adds the column `load`, which names the load of every row; a
rewind is one transaction with `DELETE … WHERE load IN …` (holdings.py). A crash leaves only these two tables behind;
they are dropped when their number is taken.

Imported only when it is used, because SQLAlchemy is an extra.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy
from sqlalchemy import CHAR, Column, Connection, Engine, LargeBinary, MetaData, String, Table
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import DropTable

from broker.errors import ConfigError
from spark_connector.loads.database.commit_log import DatabaseCommitLog, failure, make_table
from spark_connector.loads.database.holdings import DatabaseHoldings, TableName, check_delete, delete_rows
from spark_connector.loads.database.sql_rows import column_type
from spark_connector.loads.destination import Holdings, NewSession
from spark_connector.loads.footers import Count
from spark_connector.loads.history import History, HistoryEntry, staged_state, table_history, topics_by_group
from spark_connector.loads.layout import LOAD_COLUMN
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted, LoadRecord
from spark_connector.loads.rewind import standing
from spark_connector.loads.target import DatabaseAddress
from spark_connector.offset_store.base import OffsetConflict

__all__ = [
    "ATTEMPT",
    "DatabaseCommitter",
    "DatabaseDestination",
    "column_types",
    "open_database",
    "open_engine",
    "won_of",
]

ATTEMPT = "pykafka_attempt"
"""Column of the staging table: the attempt of a task that wrote the row."""

_PREFIX = "pykafka_staged_"
_LOCK_SECONDS = 600  # SQLite has one writer at a time; the others wait
_DROP_SECONDS = 10


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
    """The table at `address`. Connects once, to fail early. Raises ConfigError, LoadInterrupted."""
    engine = open_engine(address.url)
    try:
        engine.connect().close()
    except DBAPIError as error:
        raise failure(error, f"cannot connect to {address.shown}") from error
    log = DatabaseCommitLog(engine, group, address.shown)
    return DatabaseDestination(address, log, DatabaseCommitter(engine, address, log, group), group)


class DatabaseDestination:
    """The table, its commit log, and its committer."""

    output = None

    def __init__(
        self, address: DatabaseAddress, log: DatabaseCommitLog, committer: DatabaseCommitter, group: str
    ) -> None:
        self.address = address
        self.log = log
        self.committer = committer
        self._group = group

    @property
    def url(self) -> str:
        return self.address.shown

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Create the table, or check that it takes these columns, and create the staging tables."""
        self.committer.make_tables(record, schema)

    def published(self, group: str) -> list[str]:
        return []  # rows and commit log are one

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Only loads into this table: the commit log is one for the whole database."""
        loads = standing(self.log.records_of_all())
        return topics_by_group(load for load in loads if load.output == self.url)

    def path_of(self, load_id: str) -> str:
        return self.url

    def history(self) -> History:
        newest = self.log.newest().sequence
        return table_history(self.log.records(), newest, self.committer.staged_entries(newest))

    def holdings(self, history: History, session: NewSession) -> Holdings:
        table = TableName.of(self.url, self.committer.default_schema)
        return DatabaseHoldings(self.committer.engine, table, self._group, history)

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if not rewind.rewind.delete:
            raise ConfigError("the rows of a table cannot be moved aside, only deleted: set delete (--delete)")
        check_delete(self.committer.engine, rewind.rewind, self.log.records())

    def plain_error(self, error: Exception) -> LoadError | None:
        return failure(error, self.url) if isinstance(error, SQLAlchemyError) else None


class DatabaseCommitter:
    """Stages, commits and cleans up for one group and one table."""

    def __init__(self, engine: Engine, address: DatabaseAddress, log: DatabaseCommitLog, group: str) -> None:
        self.engine = engine
        self._address = address
        self._log = log
        self._group = group

    def repair(self) -> list[str]:
        """Drop staging tables whose number is taken. Gives nothing: a committed load is complete."""
        staged = self._staged()
        newest = self._log.newest().sequence if staged else 0
        for name, number in staged.items():
            if number <= newest:
                self._drop(name)
        return []

    def stage(self, record: LoadRecord) -> str:
        """The name of the staging table, which `make_tables` creates."""
        return self._staging(record.load_id)

    def make_tables(self, record: LoadRecord, schema: str) -> None:
        """Create the table and the staging tables. Raises ConfigError for an existing table that does not fit."""
        types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
        columns = [Column(name, column_type(of)) for name, of in types.items()]
        load = Column(LOAD_COLUMN, String(255))
        make_table(self.engine, Table(self._address.table, MetaData(), *columns, load, schema=self._address.schema))
        there = column_types(self.engine, self._address.table, self._address.schema)
        self._check_load_column(there, record.load_id)
        missing = [name for name in types if name not in there]
        if missing:
            raise ConfigError(f"{self._address.shown} has no column {', '.join(missing)}: add it, or read without it")
        for name in ("partition", "offset"):
            if isinstance(there.get(name), String):
                raise ConfigError(
                    f"{self._address.shown}: column {name} is {there[name]} there, by which a load cannot count its "
                    "rows: make it a column of numbers"
                )
        for column in columns:
            wanted, found = isinstance(column.type, LargeBinary), there[column.name]
            if wanted != isinstance(found, LargeBinary):
                kind = "bytes" if wanted else "text"
                raise ConfigError(
                    f"{self._address.shown}: column {column.name} is to be loaded as {kind}, but is {found} there; "
                    "see write option 'text'"
                )
        staged = [Column(name, there[name]) for name in types]
        staging = self._staging(record.load_id)
        make_table(self.engine, self._scratch(staging, _attempt(), *staged))
        make_table(self.engine, self._scratch(won_of(staging), _attempt(primary_key=True)))

    def seal(self, record: LoadRecord) -> None:
        """Nothing to do: an attempt that is not committed starts again from the beginning."""

    def commit(self, record: LoadRecord) -> None:
        try:
            self._log.append(record, lambda connection: self._change_rows(connection, record))
        except (OffsetConflict, LoadError):
            # Not committed, so the staged rows are only copies. The next try stages them again: on a full disk, the
            # leftovers of each try would keep it full.
            with contextlib.suppress(SQLAlchemyError):
                self.discard(record.load_id)
            raise
        self.repair()

    def staged_entries(self, newest: int) -> list[HistoryEntry]:
        """Attempts that are not committed. Only their ids are known."""
        entries = []
        for name, number in self._staged().items():
            load_id = str(LoadId(self._group, number, name.rpartition("_")[2]))
            if LoadId.parse(load_id) is None:
                continue  # a table of attempts, `…_won`
            state = staged_state(number <= newest, sealed=False, owner=None)
            url = replace(self._address, table=name).shown
            entries.append(HistoryEntry(LoadRecord.unknown(load_id, self._address.shown, self._log.kind), state, url))
        return entries

    def discard(self, load_id: str) -> None:
        name = self._staging(load_id)
        self._drop(name)
        self._drop(won_of(name))

    def is_overtaken(self, record: LoadRecord) -> bool:
        newest = self._log.newest()
        return newest.sequence >= record.id.sequence and newest.load_id != record.load_id

    def count(self, load_id: str) -> list[Count]:
        """The rows of the winning attempts in the staging table, counted per partition."""
        with self.engine.connect() as connection:
            staging, won = self._staged_rows(load_id, connection)
            position, offset, function = (staging.c.topic, staging.c.partition), staging.c.offset, sqlalchemy.func
            query = sqlalchemy.select(*position, function.count(), function.min(offset), function.max(offset))
            rows = connection.execute(query.where(won).group_by(*position)).all()
        return [(topic, partition, count, low, high) for topic, partition, count, low, high in rows]

    @property
    def default_schema(self) -> str | None:
        return sqlalchemy.inspect(self.engine).default_schema_name

    def _check_load_column(self, there: Mapping[str, Any], load_id: str) -> None:
        if LOAD_COLUMN not in there:
            raise ConfigError(
                f"{self._address.shown} has no column {LOAD_COLUMN}, in which a load writes its id to every row: add "
                f"it (ALTER TABLE … ADD COLUMN {LOAD_COLUMN} VARCHAR(255)), or use another table"
            )
        found = there[LOAD_COLUMN]
        if not isinstance(found, String):
            raise ConfigError(
                f"{self._address.shown} has a column {LOAD_COLUMN} of its own, of type {found}: a load writes its id "
                "there, as text. Rename that column, or use another table"
            )
        if isinstance(found, CHAR) or (found.length is not None and found.length < len(load_id)):
            raise ConfigError(
                f"{self._address.shown}: column {LOAD_COLUMN} is {found}, which would pad or cut '{load_id}': make it "
                "VARCHAR(255)"
            )

    def _change_rows(self, connection: Connection, record: LoadRecord) -> None:
        if record.rewind is None:
            self._insert(connection, record)
        else:
            delete_rows(connection, record.rewind)

    def _insert(self, connection: Connection, record: LoadRecord) -> None:
        """Insert the staged rows into the table. Raises LoadInterrupted when some are missing."""
        staging, won = self._staged_rows(record.load_id, connection)
        names = [column.name for column in staging.columns if column.name != ATTEMPT]
        target = self._table(self._address.table, [*names, LOAD_COLUMN])
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
        staging = self._table(name, column_types(connection, name, self._address.schema))
        won = self._table(won_of(name), [ATTEMPT])
        return staging, staging.c[ATTEMPT].in_(sqlalchemy.select(won.c[ATTEMPT]))

    def _scratch(self, name: str, *columns: Column[Any]) -> Table:
        # Unlogged: half the writing. A crash of PostgreSQL empties them, and the count at the commit notices it.
        prefixes = ["UNLOGGED"] if self.engine.dialect.name == "postgresql" else []
        return Table(name, MetaData(), *columns, schema=self._address.schema, prefixes=prefixes)

    def _table(self, name: str, columns: Iterable[str]) -> Table:
        return Table(name, MetaData(), *(Column(column) for column in columns), schema=self._address.schema)

    def _staged(self) -> dict[str, int]:
        """Staging tables of the group: name → number."""
        prefix = f"{_PREFIX}{_short(self._group)}_"
        names = sqlalchemy.inspect(self.engine).get_table_names(schema=self._address.schema)
        parts = {name: name.removeprefix(prefix).partition("_")[0] for name in names if name.startswith(prefix)}
        return {name: int(number) for name, number in parts.items() if number.isdigit()}

    def _staging(self, load_id: str) -> str:
        parsed = LoadId.parse(load_id)
        assert parsed is not None
        return f"{_PREFIX}{_short(self._group)}_{parsed.sequence}_{parsed.token}"

    def _drop(self, name: str) -> None:
        """Drop a table. A task that outlived its job may lock it; then the next repair drops it."""
        with contextlib.suppress(OperationalError), self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sqlalchemy.text(f"SET LOCAL lock_timeout = '{_DROP_SECONDS}s'"))
            connection.execute(DropTable(Table(name, MetaData(), schema=self._address.schema), if_exists=True))


def column_types(source: Engine | Connection, table: str, schema: str | None) -> dict[str, Any]:
    """Column → its type in the database. Much cheaper than reflecting the whole table."""
    return {column["name"]: column["type"] for column in sqlalchemy.inspect(source).get_columns(table, schema=schema)}


def won_of(staging: str) -> str:
    """The table with the names of the attempts whose rows count."""
    return f"{staging}_won"


def _attempt(*, primary_key: bool = False) -> Column[Any]:
    return Column(ATTEMPT, String(32), primary_key=primary_key, nullable=False)


def _short(group: str) -> str:
    """A short name for the group: a group may have 200 characters, the name of a table 63."""
    return hashlib.sha256(group.encode()).hexdigest()[:12]
