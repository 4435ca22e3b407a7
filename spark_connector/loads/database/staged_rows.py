"""The Spark side of a load into a database: tasks write Arrow batches into the staging table, many at once.

database_table.py has the tables, and the transaction that makes the rows visible. PostgreSQL with psycopg gets the rows
by COPY, other databases by SQLAlchemy's executemany.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from sqlalchemy import Column, Connection, Engine, MetaData, Table

from spark_connector.loads.database import sql
from spark_connector.loads.footers import sum_counts
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.table import first_line
from spark_connector.loads.write import save_by_tasks, write_counted

if TYPE_CHECKING:
    from spark_connector.loads.database.database_table import DatabaseDestination

_UNFIT = frozenset({"DataError", "ValueError", "OverflowError", "TypeError", "NotImplementedError"})
"""Errors about a value (a NUL in a text, a year beyond 9999), which would fail the next try, too."""


def write_rows(
    destination: DatabaseDestination,
    frame: DataFrame,
    record: LoadRecord,
    staging: str,
    write_options: Mapping[str, str],
) -> LoadRecord:
    """Fill the staging table with the frame's rows; gives the record with the rows that are there.

    The columns of write option `text` become strings; bytes that are not UTF-8 fail the load. Raises ConfigError, and
    LoadError when the staged rows do not add up.
    """
    frame = _with_text(frame, write_options)
    destination.prepare(record, frame.schema.json())
    # Spark never shows the value of an option named url (spark.sql.redaction.options.regex).
    options = {"url": destination.address.url, "table": staging, "schema": destination.address.schema or ""}
    written = write_counted(
        frame,
        record,
        lambda rows: save_by_tasks(rows, DatabaseDataSource, options),
        lambda: sum_counts(destination.count(record.load_id)),
    )
    return record.completed(written, {})


def _with_text(frame: DataFrame, write_options: Mapping[str, str]) -> DataFrame:
    types = {field["name"]: field["type"] for field in json.loads(frame.schema.json())["fields"]}
    columns = sql.parse_text_columns(write_options, types)
    text = {name: _text_of(name) for name in columns}
    return frame.withColumns(text) if text else frame  # Spark Connect refuses an empty mapping


def _text_of(name: str) -> SparkColumn:
    """The column as text. A value that is no text fails the load, and the error names its record."""
    text = F.col(name).cast("string")
    said = f"{name} of the record at offset %d of topic '%s', partition %d, is not UTF-8 (write option text)"
    complaint = F.format_string(said, "offset", "topic", "partition")
    return F.when(text.isNull() | F.is_valid_utf8(text), text).otherwise(F.raise_error(complaint).cast("string"))


class DatabaseDataSource(DataSource):
    """Write-only, and only for `load`."""

    @classmethod
    def name(cls) -> str:
        return "pykafka_load_sql"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = self.options
        return _DatabaseWriter(options["url"], options["table"], options["schema"] or None)


@dataclass
class _Attempt(WriterCommitMessage):
    """The name of one attempt of a task; None when it had no rows."""

    name: str | None


@dataclass
class _DatabaseWriter(DataSourceArrowWriter):
    """Pickled to the executors; `commit` runs in another process of the driver."""

    url: str
    table: str
    schema: str | None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        attempt = secrets.token_hex(16)
        marked = (batch.append_column(sql.ATTEMPT, pa.repeat(attempt, batch.num_rows)) for batch in iterator)
        batches = (batch for batch in marked if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return _Attempt(None)
        engine = sql.open_engine(self.url)
        with engine.begin() as connection:
            staging = self._staging(connection)
            for batch in itertools.chain([first], batches):
                try:
                    _insert(connection, staging, batch)
                except Exception as error:
                    if not _is_unfit(error):
                        raise
                    connection.rollback()  # SQLite lets one connection write at a time
                    place = _place(engine, staging, batch)
                    raise LoadError(f"a value{place} does not fit into the table: {first_line(error)}") from error
        return _Attempt(attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        names = [message.name for message in messages if isinstance(message, _Attempt) and message.name]
        with sql.open_engine(self.url).begin() as connection:
            won = Table(sql.won_of(self.table), MetaData(), Column(sql.ATTEMPT), schema=self.schema)
            if names:
                connection.execute(won.insert(), [{sql.ATTEMPT: name} for name in names])

    def _staging(self, connection: Connection) -> Table:
        if _copies(connection):
            return Table(self.table, MetaData(), schema=self.schema)
        types = sql.column_types(connection, self.table, self.schema)
        for type in types.values():
            if isinstance(type, sqlalchemy.JSON):
                type.none_as_null = True  # None becomes NULL, not JSON's null
        columns = [Column(name, type) for name, type in types.items()]
        return Table(self.table, MetaData(), *columns, schema=self.schema)


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


def _place(engine: Engine, staging: Table, batch: pa.RecordBatch) -> str:
    """Which record of the batch does not fit, in words: found by halving, in transactions that are rolled back."""
    if not {"topic", "partition", "offset"} <= set(batch.schema.names):
        return ""
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        batch = batch.slice(half) if _fits(engine, staging, batch.slice(0, half)) else batch.slice(0, half)
    topic, partition, offset = (batch.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
    return f" of the record at offset {offset} of topic '{topic}', partition {partition},"


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
