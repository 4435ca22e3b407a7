"""JSON objects to a struct column: pyarrow's reader for whole columns, Python's parser for the values it cannot read.

The semantics are those of Spark's from_json: missing fields are null, unknown fields are ignored, the last of two equal
names counts, and an empty or blank value is a null row. For a STRING field, booleans, objects and numbers are taken as
their text (numbers as written, where from_json formats them). A field of another type makes a bad record (from_json
nulls only that field), and so does a value that is not exactly one object in strict JSON (from_json accepts single
quotes and ignores what follows the object).

Values are joined by line feeds for pyarrow, and each result must belong to its value whatever the value holds. That is
certain if each value begins with `{`, ends with `}`, and has after any `}` only `,`, `]` or `}`. Then a value is at
most one object, and no value can end inside an object, because neither a line feed in a string nor `{` after `}` is
JSON. All other values are parsed one by one. (Arrow 26 also crashes on a bare `null` between objects.)
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from broker.errors import ConfigError
from spark_connector.formats.frames import Group, decoded_by_schema
from spark_connector.formats.schema_registry import UNASKED, SchemaRegistry, UnknownSchema
from spark_connector.formats.text_casts import cast_texts, fit_decimal, fit_float, fit_integer, parse_text
from spark_connector.formats.value_decoder import BadValue, Decoded, as_lines, in_two_ways, one_by_one, skipping_nulls

_BEGINS: Final = r"\A[ \t\r\n]*\{"
_ENDS: Final = r"\}[ \t\r\n]*\z"
_GOES_ON: Final = r"\}[ \t\r\n]*[^,\]} \t\r\n]"


class JsonDecoder:
    """Decodes to `kind`, a struct."""

    def __init__(self, kind: pa.DataType) -> None:
        if not pa.types.is_struct(kind):
            raise ConfigError(f"JSON values need a schema of fields like 'a INT, b STRING', not {kind}")
        self.type = kind
        self._wire = _wire_type(kind)

    def decode(self, values: pa.Array) -> Decoded:
        return skipping_nulls(values, self._decode)

    def _decode(self, values: pa.Array) -> Decoded:
        if self._wire is None:
            return one_by_one(values, self.type, self._one)
        return in_two_ways(values, _odd(values), self.type, self._whole, self._one)

    def _whole(self, values: pa.Array) -> pa.Array | None:
        try:
            column = _convert(self._read(values), self.type)
            column.validate(full=True)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        return column if len(column) == len(values) else None

    def _read(self, values: pa.Array) -> pa.Array:
        values.cast(pa.string())  # Arrow does not check the UTF-8 of names and ignored fields
        text = as_lines(values)
        assert self._wire is not None
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(self._wire)), unexpected_field_behavior="ignore"
            ),
        )
        struct = table.to_struct_array()
        return pa.concat_arrays(struct.chunks) if isinstance(struct, pa.ChunkedArray) else struct

    def _one(self, raw: bytes) -> Any:
        try:
            return self._by_hand(raw)
        except BadValue:
            # Python fails on deep nesting and thousands of digits, while pyarrow ignores them in unknown fields. So a
            # value that is good among good values must also be good next to a bad one.
            alone = pa.array([raw], pa.binary())
            column = self._whole(alone) if self._wire is not None and not _odd(alone)[0].as_py() else None
            if column is None:
                raise
            return column[0].as_py()

    def _by_hand(self, raw: bytes) -> Any:
        if not raw.strip(b" \t\r\n"):
            return None
        if raw[0] == 0:
            raise BadValue(f"not JSON{UNASKED}")
        try:
            document = json.loads(raw.decode("utf-8"), parse_float=_Number)
        except RecursionError:
            raise BadValue("nested too deep") from None
        except ValueError as error:  # UnicodeDecodeError, JSONDecodeError, numbers of thousands of digits
            raise BadValue(f"not JSON: {error}") from None
        if document is None:
            raise BadValue("the value is null")
        return _element(document, self.type, "")


class FramedJson:
    """JSON as a registry's serializer writes it (Confluent's: JSON_SR), with the id of a JSON schema (frames.py).

    The schema itself is not needed: the column's type is `valueSchema`. But the registry is asked for each id once, as
    for Avro, so that data of another type is not taken for JSON. An id that the registry does not know, or that is no
    JSON schema, makes a bad record; a registry that does not answer fails the task in every mode. `is_plain_too`:
    values without an id are plain JSON.
    """

    def __init__(
        self, json: JsonDecoder, registry: SchemaRegistry, column: str = "value", *, is_plain_too: bool
    ) -> None:
        self._frames = registry.framing(column, "json")
        self.reads_headers = self._frames.reads_headers
        self._json = json
        self._registry = registry
        self._is_plain_too = is_plain_too
        self.type = json.type

    def decode(self, values: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """Raises ConnectorError if the registry does not answer."""
        frames = self._frames.split(values, headers, is_plain_too=self._is_plain_too)
        return decoded_by_schema(frames, len(values), self.type, self._group)

    def _group(self, group: Group) -> Decoded | str:
        if group.schema is not None:
            try:
                self._registry.check_json(group.schema.key)
            except UnknownSchema as error:
                return f"{group.schema.name}: {error}"
        return self._json.decode(group.data())


def _odd(values: pa.Array) -> pa.Array:
    """A mask of the values that must not be read together with others."""
    begins, ends = pc.starts_with(values, "{"), pc.ends_with(values, "}")
    if not pc.all(pc.and_(begins, ends)).as_py():
        begins, ends = pc.match_substring_regex(values, _BEGINS), pc.match_substring_regex(values, _ENDS)
    return pc.invert(pc.and_not(pc.and_(begins, ends), pc.match_substring_regex(values, _GOES_ON)))


def _wire_type(kind: pa.DataType) -> pa.DataType | None:
    """The type to request from pyarrow's reader; None if the reader cannot deliver `kind`."""
    if pa.types.is_struct(kind):
        kinds = [_wire_type(one.type) for one in kind]
        if any(one is None for one in kinds):
            return None
        return pa.struct([(one.name, wire) for one, wire in zip(kind, kinds, strict=True)])
    if pa.types.is_list(kind):
        item = _wire_type(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_map(kind) or pa.types.is_binary(kind):
        return None
    return pa.string() if pa.types.is_temporal(kind) else kind


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert `column` from the wire type of `kind` to `kind`. Raises ArrowInvalid."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        children = [_convert(child, one.type) for child, one in zip(column.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind):
        items = _convert(column.flatten(), kind.value_type)
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        offsets = np.concatenate(([0], np.cumsum(lengths.to_numpy()))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=column.is_null())
    return cast_texts(column, kind)


class _Number(float):
    """A JSON number with a fraction or exponent; keeps its text."""

    text: str

    def __new__(cls, text: str) -> _Number:
        number = super().__new__(cls, text)
        number.text = text
        return number


def _element(value: Any, kind: pa.DataType, path: str) -> Any:
    """Convert `value` to what pyarrow accepts as an element of `kind`. Raises BadValue with the name of the field."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if isinstance(value, dict):
            return {one.name: _element(value.get(one.name), one.type, f"{path}.{one.name}") for one in kind}
    elif pa.types.is_list(kind):
        if isinstance(value, list):
            return [_element(item, kind.value_type, f"{path}[]") for item in value]
    elif pa.types.is_map(kind):
        if isinstance(value, dict) and pa.types.is_string(kind.key_type):
            return [(key, _element(item, kind.item_type, f"{path}.{key}")) for key, item in value.items()]
    elif pa.types.is_string(kind):
        return _text(value)
    else:
        try:
            return _atom(value, kind)
        except BadValue as error:
            raise BadValue(f"field {path[1:]}: {error}") from None
    what = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a number")
    raise BadValue(f"{f'field {path[1:]}' if path else 'the value'} is {what}, not {kind}")


def _atom(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str):
        # Spark accepts text for types without a JSON notation, and for NaN and infinity.
        if pa.types.is_floating(kind):
            if value in {"NaN", "Infinity", "+Infinity", "+INF", "-Infinity", "-INF"}:
                return parse_text(value, kind)
        elif not pa.types.is_integer(kind) and not pa.types.is_boolean(kind):
            return parse_text(value, kind)
    elif isinstance(value, bool):
        if pa.types.is_boolean(kind):
            return value
    elif isinstance(value, int):
        if pa.types.is_integer(kind):
            return fit_integer(value, kind)
        if pa.types.is_floating(kind):
            return fit_float(value)
        if pa.types.is_decimal(kind):
            return fit_decimal(str(value), kind)
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return value * 1_000_000
    elif isinstance(value, float):
        if pa.types.is_floating(kind):
            return value
        if pa.types.is_decimal(kind):
            return fit_decimal(_text(value), kind)
    raise BadValue(f"{_text(value)[:60]!r} is not a valid {kind}")


def _text(value: Any) -> str:
    """`value` as a STRING: a string itself, or the JSON text of another value."""
    if isinstance(value, str):
        return value
    if isinstance(value, _Number):
        return value.text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
