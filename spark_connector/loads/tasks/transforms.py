"""Partition columns: plain ones, and Iceberg's transforms of others; and the rows of a table split by them.

The driver binds the items of `partition_by` to the schema of a table (`bind`), which refuses what a layout cannot hold.
In the tasks file_writer.py calls `split`. The values are those of Iceberg's specification. Iceberg hides them. In
directories and in Delta each is a column that readers see, as a directory or in the log:

    transform      Iceberg             column in directories and Delta
    year(c)        years from 1970     int      2026
    month(c)       months from 1970    date     2026-11-01
    day(c)         days from 1970      date     2026-11-26
    hour(c)        hours from 1970     string   2026-11-26-10
    bucket(n, c)   0 to n - 1          int      7
    truncate(n, c) of c's type         the same; small integers are int

Times are in UTC, in any year. Nothing is done row by row in Python.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.loads.grammar import POSITION, PartitionItem, refuse_unknown_column
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import FILE_FORMATS
from spark_connector.loads.tasks.murmur3 import hash_bytes, hash_longs
from spark_connector.loads.tasks.partition_values import (
    EXACT,
    UNITS,
    Value,
    segment_of,
    text_of,
    why_too_long,
    why_unfit,
)

_OF_TIMES: Final = {"year": pa.int32(), "month": pa.date32(), "day": pa.date32(), "hour": pa.string()}
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}

Values = Mapping[str, Value]
"""Partition column → value."""


@dataclass(frozen=True)
class PartitionField:
    """A partition column of a table: `transform`, as Iceberg writes it (`bucket[16]`), of the column `source`.

    `type` is that of the column in directories and Delta. `format` is that of the output: values are refused that its
    readers would not read back. Picklable.
    """

    name: str
    source: str
    transform: str
    type: pa.DataType
    format: str

    @property
    def kind(self) -> str:
        return self.transform.partition("[")[0]

    @property
    def width(self) -> int:
        """Of bucket and truncate."""
        return int(self.transform.partition("[")[2].rstrip("]"))

    def text(self, value: Value) -> str | None:
        """The value as text, in a directory's name (not escaped) or in Delta's log."""
        return None if value is None else text_of(value, self.kind, self.type)

    def segment(self, value: Value) -> str:
        """The value's directory."""
        return segment_of(self.name, self.text(value), self.format)

    def why_unfit(self, value: Value) -> str | None:
        """Why the table cannot hold the value, in a sentence; None when it can."""
        why = why_unfit(value, self.kind, self.type, self.format)
        if why is None and value is not None and self.format != "iceberg":
            why = why_too_long(self.segment(value), self.text(value))
        return None if why is None else f"partition_by (--partition-by) {self.name}: the value {why}"

    def values(self, column: pa.Array) -> pa.Array:
        """The partition value of each row: dates and times as integers; null for null.

        They are exact: what the column's type does not hold comes in a wider one, and `why_unfit` tells.
        """
        if self.kind in UNITS:
            return self._of_times(column)
        if self.kind == "bucket":
            hashes = (_hashes(column) & np.uint32(0x7FFFFFFF)) % np.uint32(self.width)
            return _with_nulls(hashes.astype(np.int32), column)
        if self.kind == "truncate":
            return _truncated(column, self.width)
        if pa.types.is_temporal(column.type):
            return column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
        return column

    def _of_times(self, column: pa.Array) -> pa.Array:
        """By integers: numpy's own times have no value for the least number, which they take for NaT."""
        numbers = _numbers(column).astype(np.int64)
        if not pa.types.is_date(column.type):
            numbers = numbers // (_PER_SECOND[column.type.unit] * (3600 if self.kind == "hour" else 86_400))
        if self.kind in ("year", "month"):
            numbers = numbers.view("datetime64[D]").astype(f"datetime64[{UNITS[self.kind]}]").astype(np.int64)
        return _with_nulls(numbers, column)


def hidden(name: str) -> str:
    """The name under which FileWriter keeps a column of POSITION beside the rows, which may not have it."""
    return f"\0{name}"


def bind(items: Sequence[PartitionItem], schema: pa.Schema, format: str) -> tuple[PartitionField, ...]:
    """The fields of a table with these columns. Raises ConfigError for what it or its format cannot do."""
    names = {name.lower() for name in schema.names}
    fields = []
    for item in items:
        name = item.name
        item = _of_iceberg(item) if format == "iceberg" and item.column not in schema.names else item
        refuse_unknown_column(item, schema.names)
        if item.transform != "identity" and item.name.lower() in names:
            raise ConfigError(
                f"partition_by (--partition-by) {item} makes the column '{item.name}', which the table has already: "
                "rename that one in columns (--columns)"
            )
        type = schema.field(item.column).type
        _check_type(item, type, format)
        made = _OF_TIMES.get(item.transform) or (pa.int32() if item.transform == "bucket" else type)
        if item.transform == "truncate" and pa.types.is_integer(type) and type.bit_width < 32:
            made = pa.int32()
        transform = item.transform if item.argument is None else f"{item.transform}[{item.argument}]"
        fields.append(PartitionField(name, item.column, transform, made, format))
    if fields and format in FILE_FORMATS and set(schema.names) <= {field.name for field in fields}:
        raise ConfigError(
            "partition_by (--partition-by) names all columns of the table, so its files would have none: add a column, "
            "or leave one out of partition_by"
        )
    return tuple(fields)


def _of_iceberg(item: PartitionItem) -> PartitionItem:
    """`date` is a day of the timestamp, which need not be a column. Raises ConfigError for `hour`."""
    if str(item) == "hour":
        raise ConfigError(
            "partition_by (--partition-by): Iceberg cannot partition by hour, the hour of the day: use hour(timestamp)"
        )
    return PartitionItem("timestamp", "day") if str(item) == "date" else item


def with_partition_columns(schema: pa.Schema, fields: Sequence[PartitionField]) -> pa.Schema:
    """`schema` with the columns that transforms add to it, at its end; Iceberg keeps their values elsewhere."""
    shown = [field for field in fields if field.format != "iceberg" and field.name not in schema.names]
    added = [pa.field(field.name, field.type) for field in shown]
    return pa.schema([*schema, *added], schema.metadata)


def split(table: pa.Table, fields: Sequence[PartitionField]) -> list[tuple[Values, pa.Table]]:
    """[(partition column → value, rows)], for each combination of values; its rows are in the order of `table`.

    All columns stay in the rows. Raises LoadError, with the first record, for a value that the table cannot hold.
    """
    if not fields or not table.num_rows:
        return [({}, table)] if table.num_rows else []
    encoded = [_encoded(field, table) for field in fields]
    _refuse(table, _unfit(fields, encoded))
    indices = [one.indices.to_numpy() for one in encoded]
    order = _order(indices, [len(one.dictionary) for one in encoded])
    changes = np.any([np.diff(each[order]) for each in indices], axis=0)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    rows = table if len(starts) == 1 else table.take(pa.array(order))
    groups: list[tuple[Values, pa.Table]] = []
    for start, end in itertools.pairwise([*starts, len(order)]):
        values = {
            field.name: one.dictionary[int(each[order[start]])].as_py()
            for field, one, each in zip(fields, encoded, indices, strict=True)
        }
        groups.append((values, rows.slice(start, end - start)))
    return groups


def unfit_rows(table: pa.Table, fields: Sequence[PartitionField]) -> dict[int, str]:
    """Row → why its partition value cannot be held, in order, for the rows that `split` would refuse."""
    return _unfit(fields, [_encoded(field, table) for field in fields])


def refuse_unfit(table: pa.Table, fields: Sequence[PartitionField]) -> None:
    """Raise LoadError, with the first record, for a row that `split` would refuse."""
    if table.num_rows:
        _refuse(table, unfit_rows(table, fields))


def _refuse(table: pa.Table, unfit: Mapping[int, str]) -> None:
    for row, why in itertools.islice(unfit.items(), 1):
        raise LoadError(f"{place_of(table.slice(row, 1))}: {why}")


def _encoded(field: PartitionField, table: pa.Table) -> Any:
    """The value of each row, as a dictionary."""
    return field.values(_whole(table.column(field.source))).dictionary_encode("encode")


def _unfit(fields: Sequence[PartitionField], encoded: Sequence[Any]) -> dict[int, str]:
    """As `unfit_rows`; each value is looked at once."""
    found: dict[int, str] = {}
    for field, one in zip(fields, encoded, strict=True):
        reasons = {
            index: why for index, value in enumerate(one.dictionary.to_pylist()) if (why := field.why_unfit(value))
        }
        if reasons:
            rows = np.flatnonzero(np.isin(one.indices.to_numpy(), list(reasons)))
            found = {**{int(row): reasons[one.indices[int(row)].as_py()] for row in rows}, **found}
    return dict(sorted(found.items()))


def _order(indices: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The rows sorted by all of `indices`, which are below `sizes`; stable."""
    if math.prod(sizes) <= 1 << 16:  # numpy sorts numbers of 16 bits several times faster
        return np.argsort(np.ravel_multi_index(list(indices), sizes).astype(np.uint16), kind="stable")
    return np.lexsort(indices[::-1])


def directory_of(fields: Sequence[PartitionField], values: Values) -> str:
    """`at_day=2026-11-26/customer_bucket=3`; empty without fields. Raises LoadError for what `split` refuses."""
    for field in fields:
        if why := field.why_unfit(values[field.name]):
            raise LoadError(why)
    return "/".join(field.segment(values[field.name]) for field in fields)


def _check_type(item: PartitionItem, type: pa.DataType, format: str) -> None:
    """Raise ConfigError when the transform does not take the type, or the format cannot hold the value."""
    kinds = pa.types
    is_text = kinds.is_string(type)
    is_number = kinds.is_integer(type) or kinds.is_decimal(type)
    is_time = kinds.is_timestamp(type)
    fits = {
        "identity": is_text or is_number or is_time or any(kind(type) for kind in (kinds.is_boolean, kinds.is_binary)),
        "hour": is_time,
        "bucket": is_text or is_number or is_time or kinds.is_binary(type),
        "truncate": is_text or is_number or kinds.is_binary(type),
    }.get(item.transform, is_time)
    if not fits and not (kinds.is_date(type) and item.transform not in ("hour", "truncate")):
        raise ConfigError(
            f"partition_by (--partition-by) {item}: the column is of type {type}, which does not go with it"
        )
    keeps_value = item.transform in ("identity", "truncate")
    held = is_text or kinds.is_integer(type) or kinds.is_date(type) or kinds.is_boolean(type)
    if keeps_value and format != "iceberg" and not (held or (kinds.is_decimal(type) and format not in FILE_FORMATS)):
        other = "day or hour of it" if is_time else "bucket(16, …) of it"
        raise ConfigError(
            f"partition_by (--partition-by) {item}: a value of type {type} cannot be the name of a directory: use "
            f"{other}, or leave it out"
        )
    if format != "iceberg" and item.name[:1] in ("_", "."):
        raise ConfigError(
            f"partition_by (--partition-by) {item}: readers pass over directories whose name begins with "
            f"'{item.name[:1]}'. Rename the column in columns (--columns)"
        )


def place_of(rows: pa.Table) -> str:
    """The first of these rows, in words."""
    for names in ([hidden(name) for name in POSITION], [f"_{name}" for name in POSITION], POSITION):
        if set(names) <= set(rows.column_names):
            topic, partition, offset = (rows.column(name)[0].as_py() for name in names)
            return f"the record at offset {offset} of topic '{topic}', partition {partition}"
    return "a record"


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def _numbers(column: pa.Array) -> Any:
    """The integers behind dates, times and integers in their width; 0 for null."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
        column = column.cast(pa.int64())
    return (pc.fill_null(column, 0) if column.null_count else column).to_numpy(zero_copy_only=False)


def _with_nulls(numbers: Any, like: pa.Array) -> pa.Array:
    return pa.array(numbers, mask=None if not like.null_count else like.is_null().to_numpy(zero_copy_only=False))


def _hashes(column: pa.Array) -> Any:
    """Iceberg's hashes. Numbers, dates and times are hashed as longs, decimals as their shortest bytes."""
    if pa.types.is_decimal(column.type):
        encoded = column.dictionary_encode()
        unscaled = [int(EXACT.scaleb(value, column.type.scale)) for value in encoded.dictionary.to_pylist()]
        shortest = [
            number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True) for number in unscaled
        ]
        hashes = _hashes(pa.array(shortest, pa.binary()))
        return hashes[pc.fill_null(encoded.indices, 0).to_numpy()] if len(hashes) else np.zeros(len(column), np.uint32)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        _, ends, data = column.cast(pa.binary()).buffers()
        offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        return hash_bytes(memoryview(data) if data is not None else b"", offsets)
    return hash_longs(_numbers(column).astype(np.int64))


def _truncated(column: pa.Array, width: int) -> pa.Array:
    if pa.types.is_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    if pa.types.is_binary(column.type):
        return pc.binary_slice(column, 0, width)
    if pa.types.is_decimal(column.type):
        encoded, scale = column.dictionary_encode(), column.type.scale
        unscaled = (int(EXACT.scaleb(value, scale)) for value in encoded.dictionary.to_pylist())
        cut = [EXACT.scaleb(Decimal(number - number % width), -scale) for number in unscaled]
        wide = pa.decimal256(76, scale)  # of 38 digits one may be cut to 39
        return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(cut, wide)).cast(wide)
    numbers = _numbers(column).astype(np.int64)
    cut = numbers - numbers % width
    if (cut > numbers).any():  # below the least number of 64 bits
        exact = pa.array([number - number % width for number in numbers.tolist()], pa.decimal128(38, 0))
        return pc.if_else(column.is_valid(), exact, pa.scalar(None, exact.type))
    return _with_nulls(cut.astype(np.int32) if column.type.bit_width < 32 else cut, column)
