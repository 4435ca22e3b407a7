"""Columns of every type with the values that readers and writers of statistics get wrong, and values around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

NAN, INF = math.nan, math.inf
YEAR_10000: Final = 253_402_300_800_000_000  # in microseconds
YEAR_1: Final = -62_135_596_800_000_000
LAST: Final = "\U0010ffff"
_UTC, _LOCAL, _DATE, _TEXT = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.string()
_EXACT: Final = Context(prec=80)


class Case(NamedTuple):
    """A column, and its values in each file. Times and dates are numbers."""

    type: pa.DataType
    files: list[list[Any]]

    def columns(self, file: list[Any]) -> pa.Table:
        return pa.table({"c": array(self.type, file)})

    def own_values(self) -> list[pa.Scalar]:
        """Each value of the files, once."""
        values = {repr(one): one for file in self.files for one in file if one is not None}
        return [array(self.type, [one])[0] for one in values.values()]

    def values(self) -> list[pa.Scalar]:
        """Those of the files, and those next to them and to their bounds."""
        found = {repr(one): one for file in self.files for value in file for one in _around(self.type, value)}
        return [array(self.type, [one])[0] for one in found.values()]


def array(type: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_temporal(type):
        return pa.array(values, pa.int32() if pa.types.is_date(type) else pa.int64()).cast(type)
    return pa.array(values, type)


def _decimals(*texts: str) -> list[Any]:
    return [None if text == "null" else Decimal(text) for text in texts]


CASES: Final = {
    "tinyint": Case(pa.int8(), [[1, -128, None], [127, 3]]),
    "smallint": Case(pa.int16(), [[1, -32768, None], [32767]]),
    "int": Case(pa.int32(), [[-(2**31), 1], [None, 2**31 - 1]]),
    "bigint": Case(pa.int64(), [[-(2**63), 1], [None, 2**63 - 1, 2**53 + 1]]),
    "boolean": Case(pa.bool_(), [[True, None], [False, False], [True, True]]),
    "float": Case(pa.float32(), [[1.1, None, -0.0], [3.4028234663852886e38, 1e-45], [INF, 2.0], [-INF]]),
    "double": Case(pa.float64(), [[1.5, 2.5, None], [0.0], [-0.0, -1.5], [1e308, 5e-324], [INF, -INF]]),
    "double with NaN": Case(pa.float64(), [[1.5, NAN], [1.5, 2.0], [NAN, NAN, None], [NAN]]),
    "float with NaN": Case(pa.float32(), [[1.5, NAN], [1.5, 2.0], [NAN, NAN, None]]),
    "decimal(9,2)": Case(
        pa.decimal128(9, 2), [_decimals("-9999999.99", "1.50", "null"), _decimals("9999999.99", "0.00", "-0.01")]
    ),
    "decimal(18,4)": Case(pa.decimal128(18, 4), [_decimals("-1.5000", "null"), _decimals("99999999999999.9999")]),
    "decimal(38,2)": Case(
        pa.decimal128(38, 2),
        [
            _decimals("999999999999999999999999999999999999.99", "-1.50"),
            _decimals("-999999999999999999999999999999999999.99", "null", "12345678901234567890.12"),
        ],
    ),
    "decimal(38,38)": Case(pa.decimal128(38, 38), [[Decimal((0, (1,), -38))], [None]]),
    "date": Case(_DATE, [[0, -719_162, None], [2_932_896, 19_000]]),
    "date beyond Python": Case(_DATE, [[0, 3_000_000], [-800_000, 5, None], [1, 2], [-(2**31), 2**31 - 1]]),
    "timestamp": Case(_UTC, [[0, 1_234_567, None], [YEAR_1, -1], [1_700_000_000_123_456, 1_700_000_000_123_457]]),
    "timestamp in 9999": Case(_UTC, [[YEAR_10000 - 1, 0], [YEAR_10000 - 1000], [YEAR_10000 - 999, None], [5]]),
    "timestamp beyond Python": Case(_UTC, [[YEAR_10000, 0], [YEAR_1 - 1, 7, None], [5, 6], [-(2**63), 2**63 - 1]]),
    "timestamp_ntz": Case(_LOCAL, [[0, 1_234_567, None], [YEAR_1, -1], [1_700_000_000_123_456]]),
    "timestamp_ntz in 9999": Case(_LOCAL, [[YEAR_10000 - 1, 0], [YEAR_10000 - 1000], [5]]),
    "timestamp_ntz beyond Python": Case(_LOCAL, [[YEAR_10000, 0], [5, 6, None], [-(2**63), 2**63 - 1]]),
    "text": Case(_TEXT, [["a", "b", None], ["", "z" * 20], ["it's", "a\0b", "\U0001f600", "\ud7ff", "\ue000"]]),
    "text that is cut": Case(
        _TEXT,
        [
            ["x" * 200, "a"],
            ["b" * 127 + "é" * 20],
            ["y" * 127 + "\ud7ff" + "tail"],
            ["z" * 127 + LAST + "tail", None],
            [LAST * 200],
            ["q" * 128],
            ["k" * 129],
        ],
    ),
    "text without bounds in parquet": Case(
        _TEXT,
        [
            ["x" * 5000, "a"],
            ["m" * 4097],
            ["a", "x" * 5000, "b" * 10],
            [LAST * 2000],
            ["g" * 127 + "\ud7ff" * 3000, None],
        ],
    ),
    "text that Iceberg cuts": Case(_TEXT, [["p" * 15 + "\ud7ff" + "t"], ["p" * 15 + LAST + "t", "a"], [LAST * 20]]),
    "binary": Case(pa.binary(), [[b"a", b"\xff\x00", None], [b""], [b"\xff" * 20], [b"q" * 5000]]),
    "int of nulls": Case(pa.int32(), [[None, None], [1, None], [2]]),
    "text of nulls": Case(_TEXT, [[None, None], ["a", None], ["b"]]),
}


def _around(type: pa.DataType, value: Any) -> Iterator[Any]:
    if value is None:
        return
    yield value
    if pa.types.is_boolean(type):
        yield not value
    elif pa.types.is_floating(type):
        kind: Any = np.float32 if type == pa.float32() else np.float64
        with np.errstate(over="ignore"):  # the next one may be infinite
            yield from (float(np.nextafter(kind(value), kind(end))) for end in (-INF, INF))
        yield from (-INF, INF)
    elif pa.types.is_decimal(type):
        least = Decimal((0, (1,), -type.scale))
        near = (_EXACT.subtract(value, least), _EXACT.add(value, least))
        yield from (one for one in near if abs(one) < 10 ** (type.precision - type.scale))
    elif pa.types.is_string(type) or pa.types.is_binary(type):
        yield from (value + type_of(value, b"!"), value[:-1], value[:128], value[:32], value[:16])
    else:
        width = 32 if pa.types.is_date(type) else type.bit_width
        near_ints = [value - 1, value + 1]
        if pa.types.is_timestamp(type):
            near_ints += [value // 1000 * 1000, -(-value // 1000) * 1000]
        yield from (one for one in near_ints if -(2 ** (width - 1)) <= one < 2 ** (width - 1))


def type_of(like: Any, ending: bytes) -> Any:
    return ending.decode() if isinstance(like, str) else ending
