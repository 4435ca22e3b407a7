"""A table in a database as the destination of loads: tasks fill a staging table, one transaction does the rest.

    pykafka_staged_<group>_<number>_<token>   1. made by the driver, filled by Spark's tasks (database_output.py)
    one transaction                           2. committed: INSERT … SELECT, number and offsets (log_database.py)
                                              3. the staging table is dropped

Each task marks its rows with a name of this attempt alone; the attempts that Spark counts are put down in a second
table, `…_won`, and only their rows are inserted: what a task that failed, or came second, has left is not. A crash
leaves these two tables behind and nothing else; they are dropped once their number is taken. A rewind is such a
transaction, too, with DELETE (database_rows.py). Opened by loads/planner.py only when asked for: SQLAlchemy is an
extra.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy
from sqlalchemy import Column, Connection, Engine, LargeBinary, MetaData, String, Table
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import DropTable

from broker.errors import ConfigError
from spark_connector.loads.covering import standing_loads
from spark_connector.loads.database_rows import DatabaseHoldings, check_take_back, take_back
from spark_connector.loads.database_url import DatabaseAddress
from spark_connector.loads.footers import Count
from spark_connector.loads.groups import topics_by_group
from spark_connector.loads.history import History, HistoryEntry, staged_state
from spark_connector.loads.holdings import Holdings
from spark_connector.loads.log_database import DatabaseLoadLog, failure, make_table
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted, LoadRecord
from spark_connector.loads.sql_rows import column_type
from spark_connector.loads.table_history import table_history
from spark_connector.offset_store.base import OffsetConflict

__all__ = ["ATTEMPT", "DatabaseCommitter", "DatabaseSite", "column_types", "open_database", "open_engine", "won_of"]

ATTEMPT = "pykafka_attempt"
"""Column of the staging table that tells the rows of one attempt of a task."""

_PREFIX = "pykafka_staged_"
_LOCK_SECONDS = 600  # SQLite: one writer at a time, the others wait
_DROP_SECONDS = 10


def open_engine(url: str) -> Engine:
    """No pool: a task uses one connection, a driver few. Rows are not shown in errors. Raises ConfigError."""
    arguments = {"timeout": _LOCK_SECONDS} if url.startswith("sqlite") else {}
    try:
        return sqlalchemy.create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=arguments)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"'to' is no database URL that SQLAlchemy can use: {type(error).__name__}") from None
    except ImportError as error:
        raise ConfigError(f"the driver of this database is not installed: {error}") from error


def open_database(address: DatabaseAddress, group: str) -> DatabaseSite:
    """Connects, to fail at once where nothing answers. Raises ConfigError, LoadInterrupted."""
    engine = open_engine(address.url)
    try:
        engine.connect().close()
    except DBAPIError as error:
        raise failure(error, f"cannot connect to {address.shown}") from error
    log = DatabaseLoadLog(engine, group, address.shown)
    return DatabaseSite(address, log, DatabaseCommitter(engine, address, log, group))


@dataclass(frozen=True)
class DatabaseSite:
    """The database, its log, and who commits."""

    address: DatabaseAddress
    log: DatabaseLoadLog
    committer: DatabaseCommitter

    @property
    def url(self) -> str:
        return self.address.shown

    @property
    def output(self) -> None:
        return None

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Create the table, or see that the one there takes these columns, and make the staging table."""
        self.committer.make_tables(record, schema)

    def published(self, group: str) -> list[str]:
        return []  # rows and commit log are one

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Of this table; the offsets are those of the whole database."""
        loads = standing_loads(self.log.records_of_all())
        return topics_by_group(load for load in loads if load.output == self.url)

    def path_of(self, load_id: str) -> str:
        return self.url

    def history(self) -> History:
        newest = self.log.newest().sequence
        return table_history(self.log.records(), newest, self.committer.staged_entries(newest))

    def holdings(self, history: History) -> Holdings:
        return DatabaseHoldings(self.committer.engine, self.log)

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if not rewind.rewind.delete:
            raise ConfigError("the rows of a table cannot be moved aside, only deleted: say so with delete (--delete)")
        check_take_back(self.committer.engine, self.log, rewind)

    def plain_error(self, error: Exception) -> LoadError | None:
        return failure(error, self.url) if isinstance(error, SQLAlchemyError) else None


class DatabaseCommitter:
    """Stages, commits and cleans up for one group and one table."""

    def __init__(self, engine: Engine, address: DatabaseAddress, log: DatabaseLoadLog, group: str) -> None:
        self.engine = engine
        self._address = address
        self._log = log
        self._group = group

    def repair(self) -> list[str]:
        """Drop staging tables whose number is taken. Gives nothing: there is no load that only wants finishing."""
        staged = self._staged()
        newest = self._log.newest().sequence if staged else 0
        for name, number in staged.items():
            if number <= newest:
                self._drop(name)
        return []

    def stage(self, record: LoadRecord) -> str:
        """The name of the staging table, which `make_tables` makes."""
        return self._staging(record.load_id)

    def make_tables(self, record: LoadRecord, schema: str) -> None:
        """Raises ConfigError when there is a table that does not take these columns."""
        types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
        columns = [Column(name, column_type(of)) for name, of in types.items()]
        make_table(self.engine, Table(self._address.table, MetaData(), *columns, schema=self._address.schema))
        there = column_types(self.engine, self._address.table, self._address.schema)
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
        """Nothing: an attempt that is not committed is made anew."""

    def commit(self, record: LoadRecord) -> None:
        undone = self._log.undone(record)
        try:
            self._log.append(record, lambda connection: self._change(connection, record, undone))
        except (OffsetConflict, LoadError):
            # Not committed, and the rows that a transaction of ours may still hold are copies. Who tries again stages
            # anew: on a disk that is full, what each try has left would keep it full.
            with contextlib.suppress(SQLAlchemyError):
                self.discard(record.load_id)
            raise
        self.repair()

    def staged_entries(self, newest: int) -> list[HistoryEntry]:
        """Attempts that are not committed: no more than their names is known of them."""
        entries = []
        for name, number in self._staged().items():
            load_id = str(LoadId(self._group, number, name.rpartition("_")[2]))
            if LoadId.parse(load_id) is None:
                continue  # the table beside it
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
        """What the attempts that won have left in the staging table, per partition."""
        with self.engine.connect() as connection:
            staging, won = self._staged_rows(load_id, connection)
            position, offset, function = (staging.c.topic, staging.c.partition), staging.c.offset, sqlalchemy.func
            query = sqlalchemy.select(*position, function.count(), function.min(offset), function.max(offset))
            rows = connection.execute(query.where(won).group_by(*position)).all()
        return [(topic, partition, count, low, high) for topic, partition, count, low, high in rows]

    def _change(self, connection: Connection, record: LoadRecord, undone: Sequence[LoadRecord]) -> None:
        if record.rewind is None:
            self._insert(connection, record)
        else:
            take_back(connection, undone, self._log)

    def _insert(self, connection: Connection, record: LoadRecord) -> None:
        """Move the rows in. Raises LoadInterrupted when they are not all there any more."""
        staging, won = self._staged_rows(record.load_id, connection)
        names = [column.name for column in staging.columns if column.name != ATTEMPT]
        target = self._table(self._address.table, names)
        rows = sqlalchemy.select(*(staging.c[name] for name in names)).where(won)
        insert = target.insert().from_select(names, rows).execution_options(preserve_rowcount=True)
        inserted = connection.execute(insert).rowcount
        if inserted != record.rows:
            raise LoadInterrupted(
                f"load {record.load_id}: {record.rows} rows were staged and counted, but {inserted} are there now"
            )

    def _staged_rows(self, load_id: str, connection: Connection) -> tuple[Table, sqlalchemy.ColumnElement[bool]]:
        """The staging table, and the condition for its rows that count."""
        name = self._staging(load_id)
        staging = self._table(name, column_types(connection, name, self._address.schema))
        won = self._table(won_of(name), [ATTEMPT])
        return staging, staging.c[ATTEMPT].in_(sqlalchemy.select(won.c[ATTEMPT]))

    def _scratch(self, name: str, *columns: Column[Any]) -> Table:
        # Unlogged: lost in a crash of PostgreSQL, which the count of the commit would notice; half the writing.
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
        """A task that has outlived its job may hold the table; then it is left for the next repair."""
        with contextlib.suppress(OperationalError), self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sqlalchemy.text(f"SET LOCAL lock_timeout = '{_DROP_SECONDS}s'"))
            connection.execute(DropTable(Table(name, MetaData(), schema=self._address.schema), if_exists=True))


def column_types(source: Engine | Connection, table: str, schema: str | None) -> dict[str, Any]:
    """Column → its type, as the database has it; a fraction of the cost of reflecting the whole table."""
    return {column["name"]: column["type"] for column in sqlalchemy.inspect(source).get_columns(table, schema=schema)}


def won_of(staging: str) -> str:
    """The table that names the attempts whose rows count."""
    return f"{staging}_won"


def _attempt(*, primary_key: bool = False) -> Column[Any]:
    return Column(ATTEMPT, String(32), primary_key=primary_key, nullable=False)


def _short(group: str) -> str:
    """A group may have 200 characters, a table's name 63."""
    return hashlib.sha256(group.encode()).hexdigest()[:12]
