"""Rows as JSON objects, byte for byte as Spark's to_json writes them, by columns.

Every column becomes a column of JSON tokens, and rows are joined from these by Arrow's kernels: no Python object per
row. What Spark does with each type is its `JacksonGenerator`: fields that are null are left out unless
`ignoreNullFields` is false, elements of arrays and values of maps that are null are written; NaN and the infinities are
words in quotes; decimals are BigDecimal's text (`0E-10`); bytes are base64; the keys of maps are the text of Spark's
internal value, so a date is a number of days. Bytes of a text that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.formats.base64_text import base64_texts
from spark_connector.formats.number_text import decimal_texts, float_texts
from spark_connector.formats.text_encoder import valid_text
from spark_connector.formats.time_text import TimePattern
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.write_format import TO_JSON, JsonText

_SHORT: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPES: Final = {code: f"\\{_SHORT[code]}" if code in _SHORT else f"\\u{code:04X}" for code in (92, 34, *range(32))}
"""By byte; the backslash comes first, because the others bring some."""


class _Tokens(NamedTuple):
    """The JSON tokens of a column: `body` (binary) between `open` and `close`; null where the column is null."""

    body: pa.Array
    open: bytes = b""
    close: bytes = b""

    def joined(self) -> pa.Array:
        if not self.open and not self.close:
            return self.body
        return pc.binary_join_element_wise(_scalar(self.open), self.body, _scalar(self.close), _scalar(b""))


_Writer = Callable[[pa.Array], _Tokens]


class JsonEncoder:
    """Encodes rows of one type. No row is bad."""

    def __init__(self, kind: pa.StructType, text: JsonText = TO_JSON, prefix: bytes = b"") -> None:
        """`prefix`: what each value begins with. Raises ConfigError for a type that to_json does not write, or that is
        not supported here; it names the column."""
        self._text = text
        self._prefix = prefix
        self._patterns: dict[tuple[str, pa.DataType], TimePattern] = {}
        self._write = self._object(kind, "")

    def encode(self, rows: pa.StructArray) -> Encoded:
        tokens = self._write(rows)
        if self._prefix:
            tokens = tokens._replace(open=self._prefix + tokens.open)
        return Encoded(tokens.joined())

    def _writer(self, kind: pa.DataType, path: str) -> _Writer:
        if pa.types.is_struct(kind):
            return self._object(kind, path)
        if pa.types.is_map(kind):
            return self._map(kind, path)
        if pa.types.is_list(kind):
            return self._array(kind, path)
        if pa.types.is_date(kind):
            return self._times("dateFormat", self._text.date_format, kind)
        if pa.types.is_timestamp(kind):
            if kind.tz is None:
                return self._times("timestampNTZFormat", self._text.timestamp_ntz_format, kind)
            return self._times("timestampFormat", self._text.timestamp_format, kind)
        for test, write in _SCALARS:
            if test(kind):
                return write
        raise ConfigError(f"column '{path}' of type {kind} cannot be written as JSON: cast it to string or drop it")

    def _times(self, option: str, pattern: str, kind: pa.DataType) -> _Writer:
        times = TimePattern(option, pattern, kind)
        return lambda column: _string(times.texts(column))

    def _object(self, kind: pa.StructType, path: str) -> _Writer:
        fields = list(kind)
        for field in fields:
            if field.metadata and field.metadata.keys() & _SPARKS_OWN:
                raise ConfigError(f"column '{path}' of type variant cannot be written as JSON: use to_json in Spark")
        writers = [self._writer(field.type, f"{path}.{field.name}".lstrip(".")) for field in fields]
        labels = [b'"' + _escaped_text(field.name) + b'":' for field in fields]

        def write(column: pa.Array) -> _Tokens:
            columns = [writer(child) for writer, child in zip(writers, column.flatten(), strict=True)]
            made = _objects(len(column), labels, columns, ignore_nulls=self._text.ignore_null_fields)
            return _Tokens(made if not column.null_count else pc.if_else(column.is_valid(), made, _null()))

        return write

    def _array(self, kind: pa.ListType, path: str) -> _Writer:
        writer = self._writer(kind.value_type, f"{path}.element")
        return lambda column: _Tokens(_joined_lists(column, writer(column.flatten()).joined()), b"[", b"]")

    def _map(self, kind: pa.MapType, path: str) -> _Writer:
        writer = self._writer(kind.item_type, f"{path}.value")
        key_writer = _key_writer(kind.key_type)
        if key_writer is None:
            raise ConfigError(f"column '{path}': keys of type {kind.key_type} cannot be written as JSON")

        entries_type = pa.list_(pa.struct([kind.key_field, kind.item_field]))

        def write(column: pa.Array) -> _Tokens:
            column = column.cast(entries_type)
            keys, values = column.flatten().flatten()
            tokens = pc.fill_null(writer(values).joined(), _scalar(b"null"))
            entries = pc.binary_join_element_wise(
                _scalar(b'"'), key_writer(keys).cast(pa.binary()), _scalar(b'":'), tokens, _scalar(b"")
            )
            return _Tokens(_joined_lists(column, entries), b"{", b"}")

        return write


_SPARKS_OWN: Final = frozenset({b"variant", b"geometry", b"geography"})
"""What Spark notes at a field of the struct by which Arrow carries such a type."""


@functools.cache
def _null() -> pa.Scalar:
    return pa.scalar(None, pa.binary())  # not at the top: Arrow loads pandas for it, which the driver can do without


def _scalar(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())


def _objects(rows: int, labels: list[bytes], columns: list[_Tokens], *, ignore_nulls: bool) -> pa.Array:
    """`{"a":1,"b":2}` of each row. A comma stands before a field if the row has a field before it."""
    pieces: list[pa.Array | pa.Scalar] = []
    literal = b"{"
    before: bool | pa.Array = False
    """Whether a row has had a field: of all rows, or by row."""
    for label, tokens in zip(labels, columns, strict=True):
        if tokens.body.null_count and not ignore_nulls:
            tokens = _Tokens(pc.fill_null(tokens.joined(), _scalar(b"null")))
        label += tokens.open
        if not tokens.body.null_count and isinstance(before, bool):
            pieces += [_scalar(literal + (b"," + label if before else label)), tokens.body]
            literal, before = tokens.close, True
            continue
        pieces.append(_scalar(literal))
        literal = b""
        with_comma = _scalar(b"," + label)
        start = (
            with_comma
            if before is True
            else _scalar(label)
            if before is False
            else pc.if_else(before, with_comma, _scalar(label))
        )
        if not tokens.body.null_count:
            pieces += [start, tokens.body]
            literal, before = tokens.close, True
            continue
        there = tokens.body.is_valid()
        pieces += [pc.if_else(there, start, _null()), tokens.body]
        if tokens.close:
            pieces.append(pc.if_else(there, _scalar(tokens.close), _null()))
        before = before if before is True else there if before is False else pc.or_(before, there)
    pieces.append(_scalar(literal + b"}"))
    if all(isinstance(piece, pa.Scalar) for piece in pieces):
        return pa.array([b"{}"] * rows, pa.binary())
    return pc.binary_join_element_wise(*pieces, _scalar(b""), null_handling="replace", null_replacement=b"")


def _joined_lists(column: pa.Array, tokens: pa.Array) -> pa.Array:
    """The `tokens` of the elements of `column` joined by commas; null where the list is null."""
    lengths = pc.list_value_length(column)
    offsets = np.concatenate(([0], np.cumsum(lengths.fill_null(0).to_numpy(), dtype=np.int32)))
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pc.fill_null(tokens, _scalar(b"null")))
    joined = pc.binary_join(lists, _scalar(b","))
    return joined if not column.null_count else pc.if_else(column.is_valid(), joined, _null())


def _string(column: pa.Array) -> _Tokens:
    """Text that needs no escapes."""
    return _Tokens(column.cast(pa.binary()), b'"', b'"')


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


def _plain(column: pa.Array) -> _Tokens:
    return _Tokens(column.cast(pa.string()).cast(pa.binary()))


def _booleans(column: pa.Array) -> _Tokens:
    return _Tokens(pc.if_else(column, _scalar(b"true"), _scalar(b"false")))


def _floats(column: pa.Array) -> _Tokens:
    texts = float_texts(column)
    words = pc.fill_null(pc.invert(pc.is_finite(column)), False)
    if pc.any(words).as_py():
        texts = pc.if_else(words, pc.binary_join_element_wise('"', texts, '"', ""), texts)
    return _Tokens(texts.cast(pa.binary()))


_SCALARS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Writer], ...]] = (
    (pa.types.is_string, lambda column: _Tokens(escaped(column), b'"', b'"')),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_integer, _plain),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, lambda column: _Tokens(decimal_texts(column, plain=False).cast(pa.binary()))),
    (pa.types.is_binary, lambda column: _string(base64_texts(column))),
    (pa.types.is_null, lambda column: _Tokens(pa.nulls(len(column), pa.binary()))),
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
