"""What the log, the table and the tasks of a load into a database ask of SQLAlchemy: engines, tables, types, rows.

Converts a load's rows: the type of each column, and record batches as rows or for PostgreSQL's COPY.
Nested values (headers, structs, arrays) become JSON, with bytes as base64. Raises ConfigError.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import sqlalchemy
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from broker.errors import ConfigError
from spark_connector.loads.record import LoadError, LoadInterrupted, failed_load
from spark_connector.loads.table import first_line
from spark_connector.loads.times import as_text, fits_python, without_times

ATTEMPT = "pykafka_attempt"
"""Column of the staging table: the attempt of a task that wrote the row."""

_PACKAGES = {"psycopg2": "psycopg2-binary", "psycopg": "'psycopg[binary]'", "MySQLdb": "mysqlclient"}
"""The package of a driver's module, where its name is another one."""
_OTHER_DRIVER = "postgresql+psycopg://… or mysql+pymysql://…"

_LOCK_SECONDS = 600  # SQLite has one writer at a time; the others wait


def open_engine(url: str) -> Engine:
    """An engine without a pool, whose errors do not show rows. Raises ConfigError."""
    arguments = {"timeout": _LOCK_SECONDS} if url.startswith("sqlite") else {}
    try:
        return sqlalchemy.create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=arguments)
    except NoSuchModuleError:
        raise ConfigError(
            f"SQLAlchemy knows no database '{url.partition('://')[0]}': install the package that has this dialect, or "
            "mend the URL"
        ) from None
    except ArgumentError as error:
        raise ConfigError(f"'to' is no database URL that SQLAlchemy can use: {type(error).__name__}") from None
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        raise ConfigError(
            f"the driver of this database is not installed: {error}. pip install {_PACKAGES.get(module, module)}, or "
            f"name a driver that is installed in the URL, such as {_OTHER_DRIVER}"
        ) from error


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


def column_types(source: Engine | Connection, table: str, schema: str | None) -> dict[str, Any]:
    """Column → its type in the database. Much cheaper than reflecting the whole table."""
    return {column["name"]: column["type"] for column in sqlalchemy.inspect(source).get_columns(table, schema=schema)}


def won_of(staging: str) -> str:
    """The table with the names of the attempts whose rows count."""
    return f"{staging}_won"


_TYPES: dict[pa.DataType, Any] = {
    pa.binary(): sqlalchemy.LargeBinary(),
    pa.string(): sqlalchemy.Text(),
    pa.bool_(): sqlalchemy.Boolean(),
    pa.int8(): sqlalchemy.SmallInteger(),
    pa.int16(): sqlalchemy.SmallInteger(),
    pa.int32(): sqlalchemy.Integer(),
    pa.int64(): sqlalchemy.BigInteger(),
    pa.float32(): sqlalchemy.Float(),
    pa.float64(): sqlalchemy.Double(),
    pa.date32(): sqlalchemy.Date(),
}
_JSON = sqlalchemy.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def column_type(type: pa.DataType) -> Any:
    """SQLAlchemy's type for a column's."""
    if pa.types.is_decimal(type):
        return sqlalchemy.Numeric(type.precision, type.scale)
    if pa.types.is_timestamp(type):
        return sqlalchemy.DateTime(timezone=type.tz is not None)
    return _TYPES.get(type, _JSON)


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows for SQLAlchemy's `execute(insert, …)`. Raises ValueError, OverflowError for a year that Python lacks."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = _nested(column) if pa.types.is_nested(column.type) else column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def as_copy(batch: pa.RecordBatch) -> bytes:
    """Rows for PostgreSQL's `COPY … FROM STDIN (FORMAT csv)`, converted column by column."""
    columns = [_as_csv(batch.column(index)) for index in range(batch.num_columns)]
    text = io.BytesIO()
    # NULL is not quoted, an empty string is.
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    pyarrow.csv.write_csv(pa.table(columns, names=batch.schema.names), text, options)
    return text.getvalue()


def _as_csv(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return _as_hex(column)
    if pa.types.is_nested(column.type):
        values = _nested(column)
        return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())
    if (pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type)) and not fits_python(column):
        numbers = column.cast(without_times(column.type)).to_pylist()  # Arrow's text is wrong from the year 32768 on
        texts = [None if number is None else as_text(number, column.type, era=True) for number in numbers]
        return pa.array(texts, pa.string())
    return column


def _as_hex(column: pa.Array) -> pa.Array:
    """Bytes in PostgreSQL's hex format: `\\x` and two digits for each byte. All values are converted at once."""
    _, offsets, data = column.buffers()
    if offsets is None or len(column) == 0:
        return pa.nulls(len(column), pa.string())
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    digits = b"" if data is None else memoryview(data)[ends[0] : ends[-1]].hex().encode()
    text = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(digits))
    prefixed = pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), text, pa.scalar("", pa.large_string()))
    return pc.if_else(column.is_null(), pa.scalar(None, pa.large_string()), prefixed) if column.null_count else prefixed


def _nested(column: pa.Array) -> list[Any]:
    """The values of a column of structs, lists or maps in the types of JSON."""
    return [_plain(value, column.type) for value in column.cast(without_times(column.type)).to_pylist()]


def _plain(value: Any, type: pa.DataType) -> Any:
    """A value in the types of JSON; times are numbers in `value` and texts in JSON."""
    if value is None:
        return None
    if pa.types.is_struct(type):
        return {name: _plain(item, type.field(name).type) for name, item in value.items()}
    if pa.types.is_map(type):  # a list of pairs
        return [[_plain(key, type.key_type), _plain(item, type.item_type)] for key, item in value]
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [_plain(item, type.value_type) for item in value]
    if pa.types.is_timestamp(type) or pa.types.is_date32(type):
        return as_text(value, type)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, bool | int | float | str) else str(value)
