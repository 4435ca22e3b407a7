"""The Avro schema of columns, when a write registers one that nobody has given: as Spark's `to_avro` makes it.

record_encoder.py calls it on the driver. The rules are those of Spark's `SchemaConverters.toAvroType`: the record is
called topLevelRecord, nested ones are called after their columns, a column that may be null is a union whose null comes
last, and a decimal is a fixed of as few bytes as its precision needs.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.value_format import AvroSchema

_ROOT: Final = "topLevelRecord"
_PRIMITIVES: Final[dict[pa.DataType, Any]] = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def derived_schema(columns: pa.StructType) -> AvroSchema:
    """Raises ConfigError for a type or a name that Avro does not have."""
    return AvroSchema(json.dumps(_type(columns, _ROOT, "")))


def _type(kind: pa.DataType, name: str, space: str) -> Any:
    """`name`: of the nearest column or the root, by which a named type is called; `space`: its namespace."""
    inner = f"{space}.{name}" if space else name
    if pa.types.is_struct(kind):
        fields = [{"name": _checked(one.name), "type": _field(one, one.name, inner)} for one in kind]
        made = {"type": "record", "name": _checked(name), "fields": fields}
        return {**made, "namespace": space} if space else made
    if pa.types.is_list(kind):
        return {"type": "array", "items": _field(kind.value_field, name, space)}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _field(kind.item_field, name, space)}
    if pa.types.is_decimal128(kind):
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "name": "fixed", "namespace": inner, "size": _least_bytes(kind.precision), **logical}
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return {"type": "long", "logicalType": "timestamp-micros"}
    if kind not in _PRIMITIVES:
        raise ConfigError(f"Column {inner.removeprefix(f'{_ROOT}.')} of type {kind} has no type in Avro: cast it")
    return _PRIMITIVES[kind]


def _field(one: pa.Field, name: str, space: str) -> Any:
    made = _type(one.type, name, space)
    return [made, "null"] if one.nullable and made != "null" else made


def _least_bytes(precision: int) -> int:
    """Of a signed number of so many digits."""
    return next(size for size in range(1, 17) if 1 << (8 * size - 1) >= 10**precision)


def _checked(name: str) -> str:
    """As Avro's library for Java takes names: letters of all scripts, digits and underscores."""
    if name and not name[0].isdecimal() and all(one == "_" or one.isalpha() or one.isdecimal() for one in name):
        return name
    raise ConfigError(f"Column '{name}' has a name that Avro does not allow: rename it to letters, digits and '_'")
