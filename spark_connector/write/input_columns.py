"""The columns of a written DataFrame: checked on the driver, and brought to a uniform form in every task.

source.py calls `chosen_columns` and `check_columns` before any task runs, with Spark's types as text. rows_writer.py
calls `to_rows` for every Arrow batch, and `refuse_too_large` for the rows it is about to send. The rules are those of
Spark's `KafkaWriter`: `value` is required, `key topic partition headers` are optional, other columns are not written.
`timestamp`, the time of the record, is ours. Wrong columns raise ConnectorError under Spark's condition names. With
options of formats, key and value are made of other columns (formats/record_encoder.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.records.columns import HEADERS_TYPE
from broker.records.record import size_bound
from broker.records.record_sections import Int64s
from spark_connector.errors import ConnectorError
from spark_connector.formats.write_format import ALL_COLUMNS, ROLES, ColumnWrite, WriteFormats
from spark_connector.options.option_table import did_you_mean
from spark_connector.options.write_options import WriteOptions

_BYTES: Final = ("string", "binary")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
_WRONG: Final = "_LEGACY_ERROR_TEMP_3080"


def chosen_columns(names: Sequence[str], options: WriteOptions) -> WriteOptions:
    """`options` with the columns that `*` means in a DataFrame of these columns. Raises ConfigError for one that is
    missing, or that there is twice."""
    formats = options.formats
    key, value = (_chosen(f"{name}Columns", one, names, formats) for name, one in formats.columns_of_both.items())
    return replace(options, formats=replace(formats, key=key, value=value))


def _chosen(option: str, one: ColumnWrite, names: Sequence[str], formats: WriteFormats) -> ColumnWrite:
    if one.columns == ALL_COLUMNS:
        roles = {*ROLES, *(() if formats.key.columns else ("key",))}
        one = replace(one, columns=tuple(name for name in names if name not in roles))
        if not one.columns:
            raise ConfigError(f"Option '{option}': there are only columns that have a role: {', '.join(names)}")
        if one.name == "string" and len(one.columns) > 1:
            raise ConfigError(
                f"Option 'valueFormat'=string takes one column, but there are {len(one.columns)}: name one in "
                f"'{option}', or set 'valueFormat' to json. Columns are: {', '.join(one.columns)}"
            )
    for name in one.columns:
        if name not in names:
            hint = did_you_mean(name, {known.lower(): known for known in names})
            raise ConfigError(f"Option '{option}': no column '{name}'. {hint} Columns are: {', '.join(names)}")
        if names.count(name) > 1:
            raise ConfigError(f"Option '{option}': there are {names.count(name)} columns '{name}': drop or rename one")
    return one


def check_columns(columns: Sequence[tuple[str, str]], options: WriteOptions) -> None:
    """Raise ConnectorError unless columns of these names and types (Spark's `simpleString`) can be written.

    A column to write must not occur twice, as after a join (Spark's own sink takes the first one). Names that differ in
    case are different columns, as in Spark's own sink. Columns that a format encodes are not looked at.
    """
    encoded = options.formats.columns
    columns = [(name, kind) for name, kind in columns if name not in {*encoded, *options.formats.value.columns}]
    for name, count in Counter(name for name, _ in columns).items():
        if count > 1 and name in _TYPES:
            raise ConnectorError(
                _WRONG, f"There are {count} columns '{name}': select one of them, and drop or rename the others."
            )
    types = dict(columns)
    if "value" not in types and "value" not in encoded:
        raise ConnectorError(
            _WRONG,
            f"Required attribute 'value' not found; there are: {', '.join(types) or 'none'}. To write typed columns, "
            "set option 'valueFormat' to json, avro, protobuf or string.",
        )
    if options.topic is None and "topic" not in types:
        raise ConnectorError(
            _WRONG,
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
        )
    if options.include_headers and "headers" not in types:
        raise ConnectorError(_WRONG, f"includeHeaders=true needs a column headers of type {_HEADERS}.")
    for name, allowed in _TYPES.items():
        found = types.get(name)
        if found is None or found in allowed or (name == "topic" and found.startswith(("varchar(", "char("))):
            continue
        if name == "headers" and options.include_headers is False:
            continue
        raise ConnectorError(
            _WRONG, f"{name} attribute unsupported type {found}. {name} must be a {' or '.join(allowed)}: cast it."
        )


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
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _milliseconds(column: pa.Array | None, rows: int) -> pa.Array:
    now = pa.scalar(time.time_ns() // 1_000_000, pa.int64())
    if column is None or column.null_count == rows:
        return pa.repeat(now, rows)
    micros = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    # Rounded down, as Spark shows and compares timestamps. Arrow's division would round times before 1970 up.
    floored = pa.array(micros.fill_null(0).to_numpy() // 1000)
    if (earliest := pc.min(floored).as_py()) < 0:  # as in Kafka's ProducerRecord; -1 would mean no timestamp
        raise ConfigError(
            f"Invalid timestamp: {earliest}. Timestamp should always be non-negative or null (column 'timestamp', a "
            "time before 1970). Null means the time of the write"
        )
    return pc.if_else(column.is_valid(), floored, now)


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
        edges = np.concatenate(([0], np.cumsum(pc.list_value_length(headers).fill_null(0).to_numpy())))
        sizes = sizes + before[edges[1:]] - before[edges[:-1]]
    return sizes


def _lengths(column: pa.Array) -> Int64s:
    lengths: Int64s = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths
