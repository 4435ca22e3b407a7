"""The Avro schema of a load's rows, made from their Arrow schema; every column nullable, as in Spark's own writer.

Called by loads/avro_output.py on the executors. Raises ConfigError for a type that Avro has no place for. Pure.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from broker.errors import ConfigError

__all__ = ["avro_schema"]

_RECORD = "KafkaRecord"
_HEADERS = "headers"


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The record `KafkaRecord` with a field per column, in their order."""
    return {"type": "record", "name": _RECORD, "fields": [_field(field, field.name) for field in schema]}


def _field(field: pa.Field, path: str) -> dict[str, Any]:
    return {"name": field.name, "type": ["null", _type(field.type, path)], "default": None}


def _type(type: pa.DataType, path: str) -> Any:
    """`path` names the column, and the record that a struct becomes: names are unique in an Avro schema."""
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        item = "Header" if path == _HEADERS else f"{path}_item"
        return {"type": "array", "items": ["null", _type(type.value_type, item)]}
    if pa.types.is_map(type):
        if not pa.types.is_string(type.key_type):
            raise ConfigError(f"avro output: the keys of map '{path}' must be strings, not {type.key_type}")
        return {"type": "map", "values": ["null", _type(type.item_type, f"{path}_value")]}
    if pa.types.is_struct(type):
        name = path.replace(".", "_")
        fields = [_field(type.field(index), f"{name}_{type.field(index).name}") for index in range(type.num_fields)]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_decimal(type):
        return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
    for matches, avro in _SIMPLE:
        if matches(type):
            return avro
    raise ConfigError(f"avro output has no type for column '{path}' ({type}); use format=parquet")


def _is_small(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type)) and type.bit_width <= 32


_SIMPLE: list[tuple[Any, Any]] = [
    (pa.types.is_boolean, "boolean"),
    (_is_small, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (
        lambda type: pa.types.is_timestamp(type) and type.tz is not None,
        {"type": "long", "logicalType": "timestamp-micros"},
    ),
    (pa.types.is_timestamp, {"type": "long", "logicalType": "local-timestamp-micros"}),
]
