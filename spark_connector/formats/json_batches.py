"""Decodes a batch of JSON objects into columns with the C kernel, without an object per value.

Called by json_decoder.py. The type of the column becomes a line for each column within it, by which `decode_json` of
`_kernel_json_decode.c` fills it. What the kernel refuses, json_decoder.py has to read.
"""

from __future__ import annotations

import enum
from typing import Final

import numpy as np
import pyarrow as pa

from broker.records.native import Kernel
from spark_connector.formats.kernel_columns import Column, ColumnReader, Int32s


class _Op(enum.IntEnum):
    """What the kernel makes of a JSON value. NEVER: it refuses all but null."""

    NEVER, BOOLEAN, INTEGER, FLOAT, DOUBLE, DECIMAL, STRING, DATE, INSTANT, LOCAL_TIME, OBJECT, ARRAY, MAP = range(13)


_OPS: Final = (
    (pa.types.is_boolean, _Op.BOOLEAN),
    (pa.types.is_signed_integer, _Op.INTEGER),
    (pa.types.is_float32, _Op.FLOAT),
    (pa.types.is_float64, _Op.DOUBLE),
    (pa.types.is_decimal128, _Op.DECIMAL),
    (pa.types.is_string, _Op.STRING),
    (pa.types.is_date32, _Op.DATE),
    (lambda one: one == pa.timestamp("us", "UTC"), _Op.INSTANT),
    (lambda one: one == pa.timestamp("us"), _Op.LOCAL_TIME),
    (pa.types.is_struct, _Op.OBJECT),
    (pa.types.is_list, _Op.ARRAY),
    (lambda one: pa.types.is_map(one) and pa.types.is_string(one.key_type), _Op.MAP),
)


class JsonProgram:
    """For a column of the struct `kind`."""

    def __init__(self, kind: pa.DataType) -> None:
        columns: list[tuple[str, Column]] = []
        root = _column("", Column(kind), columns)
        self._reader = ColumnReader(root)
        lines, names = [], b""
        begin = 8 * 6 * len(columns)
        for name, column in columns:
            op = next((op for is_one, op in _OPS if is_one(column.type)), _Op.NEVER)
            limit, scale = (10**column.type.precision, column.type.scale) if op is _Op.DECIMAL else (0, 0)
            low = limit & (2**64 - 1)
            place = begin + len(names)
            names += name.encode()
            lines += [op, limit >> 64, low - (low >> 63 << 64), scale, place, begin + len(names)]
        self._code = np.frombuffer(np.array(lines, np.int64).tobytes() + names + bytes(-len(names) % 8), np.int64)

    def decode(self, kernel: Kernel, values: pa.Array, begin: int) -> tuple[pa.Array, Int32s]:
        """As `ColumnReader`; a value that is null or blank is null."""
        return self._reader.decode(kernel.decode_json, self._code, values, begin)


def _column(name: str, column: Column, columns: list[tuple[str, Column]]) -> Column:
    """`column` with all that are within it, which are put to `columns` in the order of their numbers."""
    columns.append((name, column))
    kind = column.type
    inner = list(kind) if pa.types.is_struct(kind) else []
    if pa.types.is_list(kind):
        inner = [pa.field("item", kind.value_type)]
    if pa.types.is_map(kind):
        inner = [pa.field("key", kind.key_type), pa.field("item", kind.item_type)]
    for one in inner:
        _column(one.name, column.child(one.name, one.type), columns)
    return column
