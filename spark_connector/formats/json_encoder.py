"""Rows as JSON objects, byte for byte as Spark's to_json writes them, by columns.

json_objects.py joins the columns to rows, in C where the kernel is; nested columns, and without the kernel all, become
columns of JSON tokens first: no Python object per row. What Spark does with each type is its `JacksonGenerator`: fields
that are null are left out unless `ignoreNullFields` is false, elements of arrays and values of maps that are null are
written; NaN and the infinities are words in quotes; decimals are BigDecimal's text (`0E-10`); bytes are base64; the
keys of maps are the text of Spark's internal value, so a date is a number of days. Bytes of a text that are not UTF-8
become U+FFFD.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.formats.base64_text import base64_texts
from spark_connector.formats.json_objects import (
    CellWriter,
    FieldWriter,
    ObjectWriter,
    Tokens,
    TokenWriter,
    cell_writer,
    null,
    scalar,
    time_cells,
)
from spark_connector.formats.number_text import decimal_texts, float_texts
from spark_connector.formats.text_encoder import valid_text
from spark_connector.formats.time_text import TimePattern
from spark_connector.formats.value_encoder import Encoded, as_list
from spark_connector.formats.write_format import TO_JSON, JsonText

_SHORT: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPES: Final = {code: f"\\{_SHORT[code]}" if code in _SHORT else f"\\u{code:04X}" for code in (92, 34, *range(32))}
"""By byte; the backslash comes first, because the others bring some."""


class JsonEncoder:
    """Encodes rows of one type. No row is bad."""

    def __init__(self, kind: pa.StructType, text: JsonText = TO_JSON, prefix: bytes = b"") -> None:
        """`prefix`: what each value begins with. Raises ConfigError for a type that to_json does not write, or that is
        not supported here; it names the column."""
        self._text = text
        self._prefix = prefix
        self._rows = self._object(kind, "")

    def encode(self, rows: pa.StructArray) -> Encoded:
        return Encoded(self._rows.write(rows, self._prefix))

    def _writer(self, kind: pa.DataType, path: str) -> TokenWriter:
        if pa.types.is_struct(kind):
            objects = self._object(kind, path)
            return lambda column: Tokens(objects.write(column))
        if pa.types.is_map(kind):
            return self._map(kind, path)
        if pa.types.is_list(kind):
            return self._array(kind, path)
        if _is_time(kind):
            times = self._times(kind)
            return lambda column: _string(times.texts(column))
        for test, write in _SCALARS:
            if test(kind):
                return write
        raise ConfigError(f"column '{path}' of type {kind} cannot be written as JSON: cast it to string or drop it")

    def _times(self, kind: pa.DataType) -> TimePattern:
        text = self._text
        if pa.types.is_date(kind):
            return TimePattern("dateFormat", text.date_format, kind)
        if kind.tz is None:
            return TimePattern("timestampNTZFormat", text.timestamp_ntz_format, kind)
        return TimePattern("timestampFormat", text.timestamp_format, kind)

    def _cells(self, kind: pa.DataType) -> CellWriter | None:
        return time_cells(self._times(kind)) if _is_time(kind) else cell_writer(kind)

    def _object(self, kind: pa.StructType, path: str) -> ObjectWriter:
        fields = list(kind)
        for field in fields:
            if field.metadata and field.metadata.keys() & _SPARKS_OWN:
                raise ConfigError(f"column '{path}' of type variant cannot be written as JSON: use to_json in Spark")
        writers = [
            FieldWriter(
                b'"' + _escaped_text(field.name) + b'":',
                self._writer(field.type, f"{path}.{field.name}".lstrip(".")),
                self._cells(field.type),
            )
            for field in fields
        ]
        return ObjectWriter(writers, ignore_nulls=self._text.ignore_null_fields)

    def _array(self, kind: pa.ListType, path: str) -> TokenWriter:
        writer = self._writer(kind.value_type, f"{path}.element")
        return lambda column: Tokens(_joined_lists(column, writer(column.flatten()).joined()), b"[", b"]")

    def _map(self, kind: pa.MapType, path: str) -> TokenWriter:
        writer = self._writer(kind.item_type, f"{path}.value")
        key_writer = _key_writer(kind.key_type)
        if key_writer is None:
            raise ConfigError(f"column '{path}': keys of type {kind.key_type} cannot be written as JSON")

        def write(column: pa.Array) -> Tokens:
            column = as_list(column)
            keys, values = column.flatten().flatten()
            tokens = pc.fill_null(writer(values).joined(), scalar(b"null"))
            entries = pc.binary_join_element_wise(
                scalar(b'"'), key_writer(keys).cast(pa.binary()), scalar(b'":'), tokens, scalar(b"")
            )
            return Tokens(_joined_lists(column, entries), b"{", b"}")

        return write


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


_SPARKS_OWN: Final = frozenset({b"variant", b"geometry", b"geography"})
"""What Spark notes at a field of the struct by which Arrow carries such a type."""


def _joined_lists(column: pa.Array, tokens: pa.Array) -> pa.Array:
    """The `tokens` of the elements of `column` joined by commas; null where the list is null."""
    lengths = pc.list_value_length(column)
    offsets = np.concatenate(([0], np.cumsum(lengths.fill_null(0).to_numpy(), dtype=np.int32)))
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pc.fill_null(tokens, scalar(b"null")))
    joined = pc.binary_join(lists, scalar(b","))
    return joined if not column.null_count else pc.if_else(column.is_valid(), joined, null())


def _string(column: pa.Array) -> Tokens:
    """Text that needs no escapes."""
    return Tokens(column.cast(pa.binary()), b'"', b'"')


def _escaped_text(text: str) -> bytes:
    return "".join(_ESCAPES.get(ord(one), one) for one in text).encode()


def escaped(column: pa.Array) -> pa.Array:
    """The content of JSON strings (binary) for texts; what is not UTF-8 becomes U+FFFD, as in Java."""
    made = valid_text(column).cast(pa.binary())
    raw = _content(made)
    if not (((raw < 32) | (raw == 34) | (raw == 92)).any()):
        return made
    found = np.bincount(raw, minlength=128)
    for code, escape in _ESCAPES.items():
        if found[code]:
            made = pc.replace_substring(made, bytes([code]), escape.encode())
    return made


def _content(column: pa.Array) -> np.ndarray:
    """All bytes of a binary column."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _plain(column: pa.Array) -> Tokens:
    return Tokens(column.cast(pa.string()).cast(pa.binary()))


def _booleans(column: pa.Array) -> Tokens:
    return Tokens(pc.if_else(column, scalar(b"true"), scalar(b"false")))


def _floats(column: pa.Array) -> Tokens:
    texts = float_texts(column)
    words = pc.fill_null(pc.invert(pc.is_finite(column)), False)
    if pc.any(words).as_py():
        texts = pc.if_else(words, pc.binary_join_element_wise('"', texts, '"', ""), texts)
    return Tokens(texts.cast(pa.binary()))


_SCALARS: Final[tuple[tuple[Callable[[pa.DataType], bool], TokenWriter], ...]] = (
    (pa.types.is_string, lambda column: Tokens(escaped(column), b'"', b'"')),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_integer, _plain),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, lambda column: Tokens(decimal_texts(column, plain=False).cast(pa.binary()))),
    (pa.types.is_binary, lambda column: _string(base64_texts(column))),
    (pa.types.is_null, lambda column: Tokens(pa.nulls(len(column), pa.binary()))),
)


def _key_writer(kind: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """Spark's internal value as text: days of a date, microseconds of a timestamp."""
    if pa.types.is_string(kind):
        return escaped
    if pa.types.is_date(kind):
        return lambda keys: keys.cast(pa.int32()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return lambda keys: keys.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).cast(pa.string())
    if pa.types.is_floating(kind):
        return float_texts
    if pa.types.is_decimal(kind):
        return lambda keys: decimal_texts(keys, plain=False)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return lambda keys: keys.cast(pa.string())
    return None
