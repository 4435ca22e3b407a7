"""The columns of a written DataFrame in a task, brought to a uniform form.

rows_writer.py calls `to_rows` for every Arrow batch, and `refuse_too_large` for the rows it is about to send. Names and
types were checked on the driver (column_choice.py).
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import pyarrow as pa

from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.records.columns import HEADERS_TYPE
from broker.records.record import size_bound
from broker.records.record_sections import Int64s
from spark_connector.errors import ConnectorError
from spark_connector.options.write_options import WriteOptions


def to_rows(batch: pa.RecordBatch, options: WriteOptions) -> pa.RecordBatch:
    """The columns of `batch` to write: value and timestamp (ms, never null); key, topic, partition, headers if present.

    Raises ConnectorError for a topic that is null, ConfigError for a time before 1970.
    """
    names = set(batch.schema.names)
    columns = {"value": _binary(batch["value"])}
    if "key" in names:
        columns["key"] = _binary(batch["key"])
    columns["timestamp"] = _milliseconds(batch["timestamp"] if "timestamp" in names else None, batch.num_rows)
    if options.topic is None:
        topic = batch["topic"]
        if topic.null_count:
            raise ConnectorError(
                "KAFKA_NULL_TOPIC_IN_DATA",
                "The Kafka topic is null in the data. Use the topic option for setting a topic, or drop such rows.",
            )
        columns["topic"] = topic.cast(pa.string())
    if "partition" in names:
        columns["partition"] = batch["partition"].cast(pa.int32())
    if "headers" in names and options.include_headers is not False:
        columns["headers"] = batch["headers"].cast(HEADERS_TYPE)
    return pa.RecordBatch.from_pydict(columns)


def _binary(column: pa.Array) -> pa.Array:
    if column.type == pa.binary():
        return column
    return column.view(pa.binary()) if column.type == pa.string() else column.cast(pa.binary())


def _milliseconds(column: pa.Array | None, rows: int) -> pa.Array:
    now = time.time_ns() // 1_000_000
    if column is None or column.null_count == rows:
        return pa.repeat(pa.scalar(now, pa.int64()), rows)
    micros = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    # Rounded down, as Spark shows and compares timestamps. Arrow's division would round times before 1970 up.
    floored = micros.fill_null(0).to_numpy() // 1000
    if (earliest := int(floored.min())) < 0:  # as in Kafka's ProducerRecord; -1 would mean no timestamp
        raise ConfigError(
            f"Invalid timestamp: {earliest}. Timestamp should always be non-negative or null (column 'timestamp', a "
            "time before 1970). Null means the time of the write"
        )
    return pa.array(np.where(column.is_valid().to_numpy(zero_copy_only=False), floored, now))


_MOST_OVERHEAD: Final = 100
"""The most bytes that `size_bound` adds to a record without headers."""

_MOST_PER_HEADER: Final = 10


def refuse_too_large(rows: pa.RecordBatch, limit: int) -> None:
    """Raise BrokerError (message_too_large) if a row of `rows` is larger than `limit`, `max.request.size`.

    Sizes are counted as Kafka's producer does: key, value, headers and overhead. `rows`: what `to_rows`
    returns. Only rows that may be too large are measured one by one.
    """
    suspects = np.flatnonzero(_content_sizes(rows) > limit - _MOST_OVERHEAD)
    if not len(suspects):
        return
    found = rows.select([name for name in ("key", "value", "headers") if name in rows.schema.names]).take(suspects)
    largest = max(
        size_bound(row.get("key"), row["value"], [(one["key"], one["value"]) for one in row.get("headers") or ()])
        for row in found.to_pylist()
    )
    if largest > limit:
        raise BrokerError(
            ErrorCode.message_too_large,
            f"a row of {largest} bytes when serialized, with key and headers, exceeds kafka.max.request.size={limit}: "
            "raise it, and the topic's max.message.bytes",
        )


def _content_sizes(rows: pa.RecordBatch) -> Int64s:
    """Bytes of key, value and headers of each row, with the largest possible overhead of headers."""
    sizes = _lengths(rows["value"])
    names = rows.schema.names
    if "key" in names:
        sizes = sizes + _lengths(rows["key"])
    if "headers" in names:
        headers = rows["headers"]
        key, value = headers.flatten().flatten()
        before = np.concatenate(([0], np.cumsum(_lengths(key) + _lengths(value) + _MOST_PER_HEADER)))
        edges = np.concatenate(([0], np.cumsum(headers.value_lengths().fill_null(0).to_numpy())))
        sizes = sizes + before[edges[1:]] - before[edges[:-1]]
    return sizes


def _lengths(column: pa.Array) -> Int64s:
    """Of a null what its slot takes, mostly 0. Out of the buffer: `pyarrow.compute` takes each new worker 30 ms."""
    if (ends := column.buffers()[1]) is None:
        return np.zeros(len(column), np.int64)
    return np.diff(np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]).astype(np.int64)
