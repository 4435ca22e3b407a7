"""What the log, the table and the tasks of a load into a database ask of SQLAlchemy."""

from __future__ import annotations

from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from broker.errors import ConfigError
from spark_connector.loads.record import LoadError, LoadInterrupted, failed_load

ATTEMPT = "pykafka_attempt"
"""Column of the staging table: the attempt of a task that wrote the row."""

_LOCK_SECONDS = 600  # SQLite has one writer at a time; the others wait


def open_engine(url: str) -> Engine:
    """An engine without a pool, whose errors do not show rows. Raises ConfigError."""
    arguments = {"timeout": _LOCK_SECONDS} if url.startswith("sqlite") else {}
    try:
        return sqlalchemy.create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=arguments)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"'to' is no database URL that SQLAlchemy can use: {type(error).__name__}") from None
    except ImportError as error:
        raise ConfigError(f"the driver of this database is not installed: {error}") from error


def make_table(engine: Engine, table: Table) -> None:
    """Create the table if it does not exist. Another process may create it at the same time."""
    try:
        table.create(engine, checkfirst=True)
    except DBAPIError as error:
        if not sqlalchemy.inspect(engine).has_table(table.name, schema=table.schema):
            raise failure(error, f"the table {table.name} cannot be created") from error


def failure(error: SQLAlchemyError, what: str) -> LoadError:
    """The LoadError for a database's error. A broken connection or a lock that was not granted may work later."""
    if getattr(error, "connection_invalidated", False):  # the dialect knows that the connection is gone
        return LoadInterrupted(f"{what}: {first_line(error)}")
    return failed_load(f"{what}: {first_line(error)}", error)


def first_line(error: Exception) -> str:
    """The database's message, without the statement."""
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


def column_types(source: Engine | Connection, table: str, schema: str | None) -> dict[str, Any]:
    """Column → its type in the database. Much cheaper than reflecting the whole table."""
    return {column["name"]: column["type"] for column in sqlalchemy.inspect(source).get_columns(table, schema=schema)}


def won_of(staging: str) -> str:
    """The table with the names of the attempts whose rows count."""
    return f"{staging}_won"
