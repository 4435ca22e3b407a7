"""Times and dates as the integers that they are in Arrow: Python's own end with the year 9999. Pure.

database/sql.py turns rows into Python objects by these types. Messages name values by `in_words`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

PYTHONS_MICROSECONDS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""From the year 1 to the year 9999."""
PYTHONS_DAYS = -719_162, 2_932_896


def without_times(type: pa.DataType) -> pa.DataType:
    """The type with integers in the place of timestamps (in their unit) and dates (days since 1970), however deep."""
    return _with_times(type, lambda time: pa.int64() if pa.types.is_timestamp(time) else pa.int32())


def in_zone(type: pa.DataType, zone: str) -> pa.DataType:
    """The type with all timestamps that have a zone in this one, however deep."""
    return _with_times(type, lambda time: pa.timestamp(time.unit, zone) if getattr(time, "tz", None) else time)


def schema_in_zone(schema: pa.Schema, zone: str) -> pa.Schema:
    """The same for all columns."""
    return pa.schema([field.with_type(in_zone(field.type, zone)) for field in schema])


def _with_times(type: pa.DataType, become: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with what its timestamps and dates become."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_with_times(field.type, become))

    if pa.types.is_timestamp(type) or pa.types.is_date32(type):
        return become(type)
    if pa.types.is_list(type):
        return pa.list_(inner(type.value_field))
    if pa.types.is_large_list(type):
        return pa.large_list(inner(type.value_field))
    if pa.types.is_map(type):
        return pa.map_(inner(type.key_field), inner(type.item_field))
    return pa.struct(map(inner, type)) if pa.types.is_struct(type) else type


def fits_python(column: pa.Array) -> bool:
    """Whether all of a column of timestamps (microseconds) or dates lie in the years 1 to 9999."""
    numbers = column.cast(without_times(column.type)).drop_null().to_numpy()
    low, high = PYTHONS_DAYS if pa.types.is_date32(column.type) else PYTHONS_MICROSECONDS
    return not len(numbers) or bool(numbers.min() >= low and numbers.max() <= high)


def in_words(value: pa.Scalar) -> str:
    """A value in a message, also one that Python does not have."""
    if value.is_valid and (pa.types.is_timestamp(value.type) or pa.types.is_date32(value.type)):
        number = pa.array([value], value.type).cast(without_times(value.type))[0].as_py()
        return as_text(number, value.type)
    return f"{value.as_py()!r:.60}"


def as_text(number: int, type: pa.DataType, *, era: bool = False) -> str:
    """A timestamp (microseconds) or a date as text: `2026-11-21 01:02:03.000004+00:00`, `2026-11-21`.

    Years beyond 9999 have a sign, as in Spark; years before 1 have one, too, or with `era` are years BC as in SQL.
    """
    is_date = pa.types.is_date32(type)
    moment = np.datetime64(number, "D" if is_date else "us")
    year = int(moment.astype("datetime64[Y]").astype(np.int64)) + 1970
    month_and_day = str(moment.astype("datetime64[D]"))[-6:]
    if era:
        years, suffix = f"{year if year > 0 else 1 - year:04d}", " BC" if year < 1 else ""
    else:
        years, suffix = f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04d}", ""
    if is_date:
        return years + month_and_day + suffix
    time = str(moment)[-15:].removesuffix(".000000")
    return f"{years}{month_and_day} {time}{'' if type.tz is None else '+00:00'}{suffix}"
