"""Refuses rows of an upsert for which deltalake's MERGE would write wrong bounds into the log of a Delta table.

The library writes the files of a MERGE, and their statistics. A date or time outside of the years 1 to 9999 becomes a
bound that makes the table unreadable; infinity becomes a null, and a file of NaN has no bound, so that readers find no
row of the file; a decimal goes through a double, and the bound lies beside it. No setting of the writer helps: without
statistics it writes empty ones, and deltalake's dataset finds no row at all.

By columns: no Python per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_connector.loads.column_bounds import Leaf, leaves
from spark_connector.loads.delta.delta_statistics import measured_leaves
from spark_connector.loads.record import LoadError
from spark_connector.loads.times import PYTHONS_DAYS, PYTHONS_MICROSECONDS, in_words, without_times

_SURE_DIGITS: Final = 15
"""So many digits of a decimal survive a double."""
_SURE_SCALE: Final = 22
"""Powers of ten up to this one are doubles."""
_PLAIN: Final = 1e-5, 1e16
"""From the first up to the second a double is written without an exponent, with which readers take no decimal."""
_PLAIN_SCALE: Final = 5

_DEAD: Final = "makes the table unreadable: it is outside of the years 1 to 9999"
_LOST: Final = "hides rows from filters: it is no finite number"
_BESIDE: Final = "hides rows from filters: it has more digits than a double, or needs an exponent"


def refuse_wrong_bounds(rows: pa.Table, table: DeltaTable, position: Sequence[str]) -> None:
    """Raise LoadError for the first record with such a value in a column that the table's statistics describe, or by
    which it is partitioned. `position`: the columns of its topic, partition and offset. Raises ArrowException."""
    schema, metadata = pa.schema(table.schema().to_arrow()), table.metadata()
    partitions = [leaf for leaf in leaves(schema) if leaf.path[0] in metadata.partition_columns]
    for leaf in [*partitions, *measured_leaves(schema, metadata.partition_columns, metadata.configuration)]:
        if leaf.path[0] in rows.schema.names and (why := _why(leaf.type)):
            for first, column in _columns(rows, leaf):
                index = pc.index(_is_wrong(column), True).as_py()
                if index >= 0:
                    _refuse(rows.slice(first + index, 1), leaf, column[index], why, position)


def _why(kind: pa.DataType) -> str | None:
    """What a value of this type may do; None where deltalake's bounds are right."""
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _DEAD
    if pa.types.is_floating(kind):
        return _LOST
    if pa.types.is_decimal(kind):
        return None if kind.precision <= _SURE_DIGITS and kind.scale <= _PLAIN_SCALE else _BESIDE
    return None


def _columns(rows: pa.Table, leaf: Leaf) -> list[tuple[int, pa.Array]]:
    """(first row, values in the table's type) of each chunk; null where a struct around the field is."""
    found, first = [], 0
    for chunk in rows.column(leaf.path[0]).chunks:
        column = chunk
        for name in leaf.path[1:]:
            if column.type.get_field_index(name) < 0:  # a field that the records do not have is null
                column = pa.nulls(len(chunk), leaf.type)
                break
            column = pc.struct_field(column, name)
        found.append((first, column.cast(leaf.type, safe=not pa.types.is_floating(leaf.type))))
        first += len(chunk)
    return found


def _is_wrong(column: pa.Array) -> pa.Array:
    """For each value; null for a null."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.invert(pc.is_finite(column))
    if pa.types.is_decimal(kind):
        return _is_inexact(column)
    low, high = PYTHONS_DAYS if pa.types.is_date(kind) else PYTHONS_MICROSECONDS
    numbers = column.cast(without_times(kind))
    return pc.or_(pc.less(numbers, low), pc.greater(numbers, high))


def _is_inexact(column: pa.Array) -> pa.Array:
    """Whether readers take another bound or none: deltalake divides two doubles, and writes the shortest text."""
    precision, scale = column.type.precision, column.type.scale
    if scale > _SURE_SCALE:
        return pc.not_equal(column, pa.scalar(Decimal(0), column.type))
    whole = pa.Array.from_buffers(
        pa.decimal128(precision, 0), len(column), column.buffers(), column.null_count, column.offset
    )
    bounds: Any = pc.divide(whole.cast(pa.string()).cast(pa.float64()), 10.0**scale)
    wide = pa.decimal256(precision + 19, scale + 17)  # a double's text has at most 17 digits
    size = pc.abs(bounds)
    exponent = pc.or_(pc.and_(pc.greater(size, 0.0), pc.less(size, _PLAIN[0])), pc.greater_equal(size, _PLAIN[1]))
    return pc.or_(exponent, pc.not_equal(bounds.cast(pa.string()).cast(wide), column.cast(wide)))


def _refuse(row: pa.Table, leaf: Leaf, value: pa.Scalar, why: str, position: Sequence[str]) -> None:
    topic, partition, offset = (row.column(name)[0].as_py() for name in position)
    raise LoadError(
        f"the record at offset {offset} of topic '{topic}', partition {partition}, has {in_words(value)} in "
        f"'{'.'.join(leaf.path)}', which a Delta table with one row per key cannot hold: the bound that deltalake "
        f"writes for it {why}. Nothing is loaded: upsert into an Iceberg table (--to iceberg:NAME), leave the column "
        "out (columns, --columns), or load it as another type, such as text"
    )
