"""Reads what a commit would add to an Iceberg table as its readers do: partition values and bounds by their types.

One partition value that its field's type does not hold, or one bound that is none, and no program plans a scan of the
table again. Tasks refuse such records (partition_values.py); this is the second line. Pure.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from spark_connector.loads.record import LoadError

_BITS: dict[type[IcebergType], int] = {IntegerType: 32, DateType: 32, LongType: 64, TimeType: 64}
_BITS |= {TimestampType: 64, TimestamptzType: 64}
_CLASSES: dict[type[IcebergType], tuple[type, ...]] = {
    StringType: (str,),
    BinaryType: (bytes,),
    FixedType: (bytes,),
    BooleanType: (bool,),
}


def refuse_unreadable(metadata: TableMetadata, file: DataFile, spec_id: int, records: str = "") -> None:
    """Raise LoadError for a data file of which readers could not take partition values or bounds.

    `records`: where those of the file are in the topics, in words.
    """
    schema, spec = metadata.schema(), metadata.specs()[spec_id]
    try:
        types = [one.field_type for one in spec.partition_type(schema).fields]
        for at, (field, kind) in enumerate(zip(spec.fields, types, strict=True)):
            _check_value(f"the partition field '{field.name}'", kind, file.partition[at])
        _check_bounds(schema, file.lower_bounds or {}, file.upper_bounds or {})
    except (ValueError, ArithmeticError, TypeError) as error:
        where = f", with {records}," if records else ""
        raise LoadError(
            f"{file.file_path}{where} would make the Iceberg table unreadable: {error}. Nothing was committed"
        ) from error


def _check_value(what: str, kind: IcebergType, value: Any) -> None:
    if value is None:
        return
    if (bits := _BITS.get(type(kind))) is not None:
        fits = isinstance(value, int) and -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    elif isinstance(kind, DecimalType):
        fits = (
            isinstance(value, Decimal)
            and value.is_finite()
            and value.copy_abs() < Decimal(10) ** (kind.precision - kind.scale)
        )
    else:
        fits = isinstance(value, _CLASSES.get(type(kind), (object,)))
    if not fits:
        raise ValueError(f"{value!r} is no value of {what}, which is {kind}")


def _check_bounds(schema: Schema, low: dict[int, bytes], high: dict[int, bytes]) -> None:
    there = set(schema.field_ids)
    for number in there & {*low, *high}:  # a column of the file may have been dropped: nobody reads its bounds
        field = schema.find_field(number)
        kind = field.field_type
        if not isinstance(kind, PrimitiveType):
            raise ValueError(f"the column '{field.name}', which is {kind}, has bounds")
        values: list[Any] = [from_bytes(kind, side[number]) for side in (low, high) if number in side]
        if len(values) == 2 and values[0] > values[1]:
            raise ValueError(
                f"the lowest value of column '{field.name}', {values[0]!r}, is above the highest, {values[1]!r}"
            )
