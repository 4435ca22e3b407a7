"""JSON objects to a struct column: by the kernel, and by Python's parser the values that it does not read.

The semantics are those of Spark's from_json: missing fields are null, unknown fields are ignored, the last of two equal
names counts, and an empty or blank value is a null row. For a STRING field, booleans, objects and numbers are taken as
their text (numbers as written, where from_json formats them). A field of another type makes a bad record (from_json
nulls only that field), and so does a value that is not exactly one object in strict JSON (from_json accepts single
quotes and ignores what follows the object).

The C kernel decodes whole batches (json_batches.py). Values that it refuses, and all where there is no kernel, are
parsed one by one, many times slower; then a value is bad, too, whose unknown fields are nested very deep or have
integers of thousands of digits.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from broker.errors import ConfigError
from broker.records import native
from spark_connector.formats.frames import Group, decoded_by_schema
from spark_connector.formats.json_batches import JsonProgram
from spark_connector.formats.json_number import Number
from spark_connector.formats.kernel_columns import with_refused
from spark_connector.formats.schema_registry import UNASKED, SchemaRegistry, UnknownSchema
from spark_connector.formats.text_casts import fit_decimal, fit_float, fit_integer, parse_text
from spark_connector.formats.value_decoder import BadValue, Decoded, one_by_one


class JsonDecoder:
    """Decodes to `kind`, a struct."""

    def __init__(self, kind: pa.DataType) -> None:
        if not pa.types.is_struct(kind):
            raise ConfigError(f"JSON values need a schema of fields like 'a INT, b STRING', not {kind}")
        self.type = kind
        self._program = JsonProgram(kind)

    def decode(self, values: pa.Array, begin: int = 0) -> Decoded:
        """`begin`: of the JSON in each value."""

        def one(raw: bytes) -> Any:
            return self._one(raw[begin:])

        if native.kernel is None:
            return one_by_one(values, self.type, one)
        return with_refused(*self._program.decode(native.kernel, values, begin), values, one)

    def _one(self, raw: bytes) -> Any:
        if not raw.strip(b" \t\r\n"):
            return None
        if raw[0] == 0:
            raise BadValue(f"not JSON{UNASKED}")
        try:
            document = json.loads(raw.decode("utf-8"), parse_float=Number)
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
        return self._json.decode(group.values, 0 if group.schema is None else group.schema.begin)


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
    if isinstance(value, Number):
        return value.text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
