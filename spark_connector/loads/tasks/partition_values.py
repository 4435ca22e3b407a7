"""Single partition values: as text, in directories and in Delta's log, and whether a table can hold them.

A transform of a value may be no value of its column's type: `truncate(50, d)` of -9999999.99 is -10000000.00, which a
decimal(9, 2) does not have. And a text of a value may be another value to its readers. One such value in the log of a
table, and nobody opens the table again. So a record that has one is bad (transforms.py), and never written.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_connector.loads.path_values import NO_VALUE, misread_directory
from spark_connector.loads.request import FILE_FORMATS

Value = int | str | bytes | bool | Decimal | None
"""A partition value as Iceberg holds it: a date in days, a timestamp in microseconds from 1970."""

UNITS: Final = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
"""Transforms of times, and numpy's units of what they give."""

EXACT: Final = Context(prec=80)
"""Of decimals: twice the digits of the largest type, and a few."""

LONGEST: Final = 255
"""Bytes of a directory's name in nearly all file systems."""

_DAYS: Final = (-719_162, 2_932_896)  # from 1970 to the first and last day of the years 1 to 9999
_MONTHS: Final = (-23_628, 96_359)
_SHORT: Final = 20
_NO_NAME = re.compile(r"[\x00/=]")
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")


def text_of(value: Any, kind: str, type: pa.DataType) -> str:
    """The value of a transform of this kind as text, for a column of this type."""
    if kind == "hour":
        return _time_text(value, "h").replace("T", "-")
    if kind == "month":
        return f"{_time_text(value, 'M')}-01"
    if kind == "year":
        return str(value + 1970)
    if type == pa.date32():
        return _time_text(value, "D")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def value_of(text: str | None, type: pa.DataType) -> pa.Scalar:
    """What a directory's text means in a column of this type: the way back from `text_of`. Raises ValueError for a text
    that is no value of it."""
    if text is not None and pa.types.is_date32(type):  # Python has no year beyond 9999
        return pa.scalar(int(np.datetime64(text.removeprefix("+"), "D").astype(np.int64)), pa.int32()).cast(type)
    return pa.scalar(text, pa.string()).cast(type)


def why_unfit(value: Any, kind: str, type: pa.DataType, format: str) -> str | None:
    """Why a table of this format cannot hold the value, in words behind the name of its column; None when it can."""
    if value is None or kind == "bucket":
        return None
    held = pa.int32() if format == "iceberg" and kind in UNITS else type
    if pa.types.is_integer(held):
        low, high = -(1 << (held.bit_width - 1)), (1 << (held.bit_width - 1)) - 1
        return None if low <= value <= high else _no_value(value, held)
    if pa.types.is_decimal(held):
        if EXACT.scaleb(value, held.scale).copy_abs() >= 10**held.precision:
            return _no_value(format_decimal(value), held)
        if format == "delta" and value < 0 and value != value.to_integral_value(context=EXACT):
            return (
                f"is {format_decimal(value)}: deltalake, with which Python reads the table, misreads negative "
                f"partition values with a fraction. {_BUCKET}"
            )
    if format == "delta" and held == pa.date32():
        low, high = _MONTHS if kind == "month" else _DAYS
        if not low <= value <= high:
            return f"lies in a year that Delta's readers do not know, {text_of(value, kind, held)}. {_LEAVE}"
    return why_misread(value, format) if held == pa.string() and format != "iceberg" and kind not in UNITS else None


_BUCKET = "Use bucket(16, …) of that column in partition_by"
_LEAVE = "Leave that column out of partition_by, or the record out of the load (option filterTimestampUntil)"


def why_misread(text: str, format: str) -> str | None:
    """Why a text would be read back as another one from a directory or from Delta's log; None when it would not."""
    read_as = "null" if text in ("", NO_VALUE) else None
    if format in FILE_FORMATS:
        read_as = read_as or misread_directory(text)
    if read_as is None:
        return None
    return (
        f"is '{text}', which cannot be a directory, because it would be read back as {read_as}. Leave that column out "
        "of partition_by, or use bucket(16, …) of it"
    )


def why_too_long(directory: str, text: str | None) -> str | None:
    """Why a directory cannot have this name."""
    if len(directory.encode()) <= LONGEST:
        return None
    return (
        f"is '{str(text)[:_SHORT]}…', which is too long for a directory's name. Leave that column out of partition_by, "
        "or use bucket(16, …) or truncate(16, …) of it"
    )


def segment_of(name: str, text: str | None, format: str) -> str:
    """`at_day=2026-11-26`, escaped as Spark does.

    Nobody reads it in Iceberg: a long value is cut, and a directory that would be hidden is not. In Delta the name is
    as it is, as deltalake has it: polars looks for the column by it.
    """
    if format == "iceberg":
        text = None if text is None else text[:_SHORT]
        name = f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "_." else name
        return f"{name[:1]}{escaped(name[1:])}={NO_VALUE if text is None else escaped(text)}"
    if format == "delta":
        return f"{_NO_NAME.sub(_hex, name)}={NO_VALUE if text is None else escaped(text)}"
    return f"{escaped(name)}={NO_VALUE if text is None else escaped(text)}"


def escaped(text: str) -> str:
    return _ESCAPED.sub(_hex, text)


def _hex(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def format_decimal(value: Decimal) -> str:
    return format(value, "f")


def _no_value(value: Any, type: pa.DataType) -> str:
    return f"is {value}, which is no value of the column's type, {type}. {_BUCKET}, or leave the column out of it"


def _time_text(value: Any, unit: str) -> str:
    """A number of units from 1970 as Java writes it: four digits of a year, and a sign beyond 9999."""
    text = str(np.array([value]).astype(f"datetime64[{unit}]")[0])
    year, dash, rest = text.removeprefix("-").partition("-")
    sign = "-" if text.startswith("-") else "+" if len(year) > 4 else ""
    return f"{sign}{year.zfill(4)}{dash}{rest}"
