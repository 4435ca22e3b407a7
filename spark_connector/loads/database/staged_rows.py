"""Where the tasks of a load into a database write: into the staging table, many at once, each in one transaction.

database_table.py has the tables, and the transaction that makes the rows visible. PostgreSQL with psycopg gets the rows
by COPY, other databases by SQLAlchemy's executemany.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import sqlalchemy
from sqlalchemy import Column, Connection, Engine, MetaData, Table

from spark_connector.loads.database import sql
from spark_connector.loads.record import UnfitRow
from spark_connector.loads.table import first_line

_UNFIT = frozenset({"DataError", "ValueError", "OverflowError", "TypeError", "NotImplementedError"})
"""Errors about a value (a NUL in a text, a year beyond 9999), which would fail the next try, too."""


@dataclass(frozen=True)
class DatabaseOutput:
    """The staging table of one load (TaskOutput); a file's name is that of an attempt. Pickled to the executors."""

    url: str = field(repr=False)
    shown: str
    table: str
    schema: str | None

    def open(self, name: str) -> StagedRows:
        return StagedRows(sql.open_engine(self.url), self.table, self.schema, name)

    def open_input(self, name: str) -> Any:
        """As empty as the task has told: its rows are counted by the commit."""
        return io.BytesIO()

    def url_of(self, name: str) -> str:
        return self.shown


class StagedRows:
    """The rows of one attempt, in a transaction that `close` takes back unless it is committed."""

    def __init__(self, engine: Engine, table: str, schema: str | None, attempt: str) -> None:
        self._engine = engine
        self._attempt = attempt
        self._connection = engine.connect()
        self._connection.begin()  # which COPY does not do by itself
        self._staging = _staging(self._connection, table, schema)

    def insert(self, rows: pa.RecordBatch) -> None:
        """Raises UnfitRow for a value that does not fit into the table, and the database's errors."""
        batch = rows.append_column(sql.ATTEMPT, pa.repeat(self._attempt, rows.num_rows))
        try:
            _insert(self._connection, self._staging, batch)
        except Exception as error:
            if not _is_unfit(error):
                raise
            self._connection.rollback()  # SQLite lets one connection write at a time
            raise UnfitRow(_first_unfit(self._engine, self._staging, batch), first_line(error)) from error

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


def _staging(connection: Connection, table: str, schema: str | None) -> Table:
    if _copies(connection):
        return Table(table, MetaData(), schema=schema)
    types = sql.column_types(connection, table, schema)
    for type in types.values():
        if isinstance(type, sqlalchemy.JSON):
            type.none_as_null = True  # None becomes NULL, not JSON's null
    columns = [Column(name, type) for name, type in types.items()]
    return Table(table, MetaData(), *columns, schema=schema)


def _copies(connection: Connection) -> bool:
    return connection.dialect.driver == "psycopg"


def _insert(connection: Connection, staging: Table, batch: pa.RecordBatch) -> None:
    if _copies(connection):
        _copy(connection, staging, batch)
    else:
        connection.execute(sqlalchemy.insert(staging), sql.as_rows(batch))


def _is_unfit(error: Exception) -> bool:
    """In COPY, psycopg's own errors come through. The names are those of every driver (PEP 249)."""
    return any(kind.__name__ in _UNFIT for kind in type(error).__mro__)


def _first_unfit(engine: Engine, staging: Table, batch: pa.RecordBatch) -> int:
    """Which row of the batch does not fit: found by halving, in transactions that are rolled back."""
    row = 0
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        if _fits(engine, staging, batch.slice(0, half)):
            batch, row = batch.slice(half), row + half
        else:
            batch = batch.slice(0, half)
    return row


def _fits(engine: Engine, staging: Table, batch: pa.RecordBatch) -> bool:
    with engine.connect() as connection, connection.begin() as transaction:
        try:
            _insert(connection, staging, batch)
        except Exception as error:
            if not _is_unfit(error):
                raise
            return False
        finally:
            transaction.rollback()
    return True


def _copy(connection: Connection, staging: Table, batch: pa.RecordBatch) -> None:
    quote = connection.dialect.identifier_preparer
    names = ", ".join(quote.quote(name) for name in batch.schema.names)
    statement = f"COPY {quote.format_table(staging)} ({names}) FROM STDIN (FORMAT csv)"
    with connection.connection.cursor().copy(statement) as copy:
        copy.write(sql.as_copy(batch))
