"""What becomes of a column of each Spark type in each format, as a table: encoded and decoded again, here and now.

Used by reference_pages.py, so the table of the documents says what the encoders and decoders of this tree did;
tests/spark_connector/formats/test_typed_columns.py holds it.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from broker.errors import ConfigError
from spark_connector.formats.avro_derived import derived_schema
from spark_connector.formats.json_schema import json_column
from spark_connector.formats.record_decoder import column_decoder
from spark_connector.formats.record_encoder import column_encoder
from spark_connector.formats.schema_text import parse_ddl
from spark_connector.formats.value_format import ColumnFormat, JsonSchema, ProtobufSchema
from spark_connector.formats.write_format import ColumnWrite
from tests.support.markdown_table import table

_UTC: Final = dt.datetime(2026, 11, 26, 10, 30, tzinfo=dt.UTC)
VALUES: Final[dict[str, Any]] = {
    "BOOLEAN": True,
    "TINYINT": -7,
    "SMALLINT": 300,
    "INT": 70_000,
    "BIGINT": 1 << 40,
    "FLOAT": 0.5,
    "DOUBLE": -2.25,
    "DECIMAL(10,2)": Decimal("12.50"),
    "STRING": "tée",
    "BINARY": b"\x00\xff",
    "DATE": dt.date(2026, 11, 26),
    "TIMESTAMP": _UTC,
    "TIMESTAMP_NTZ": _UTC.replace(tzinfo=None),
    "ARRAY<INT>": [1, 2],
    "MAP<STRING,INT>": [("a", 1)],
    "STRUCT<a: INT>": {"a": 1},
}
"""A value of each type."""
_PROTO: Final = {
    "BOOLEAN": "bool",
    "TINYINT": "int32",
    "SMALLINT": "int32",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "bytes",
    "DATE": "int32",
    "TIMESTAMP": "google.protobuf.Timestamp",
    "ARRAY<INT>": "repeated int32",
    "MAP<STRING,INT>": "map<string, int32>",
    "STRUCT<a: INT>": "message",
}
"""Spark type → the field that is meant for it. For other types no field is: each of _ANY is tried."""
_ANY: Final = (*dict.fromkeys(_PROTO.values()), "uint32", "uint64", "sint64", "fixed64", "sfixed64")
_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "BOOLEAN": {"type": "boolean"},
    "TINYINT": {"type": "integer"},
    "SMALLINT": {"type": "integer"},
    "INT": {"type": "integer"},
    "BIGINT": {"type": "integer"},
    "FLOAT": {"type": "number"},
    "DOUBLE": {"type": "number"},
    "DECIMAL(10,2)": {"type": "number"},
    "STRING": {"type": "string"},
    "BINARY": {"type": "string", "contentEncoding": "base64"},
    "DATE": {"type": "string", "format": "date"},
    "TIMESTAMP": {"type": "string", "format": "date-time"},
    "TIMESTAMP_NTZ": {"type": "string"},
    "ARRAY<INT>": {"type": "array", "items": {"type": "integer"}},
    "MAP<STRING,INT>": {"type": "object", "additionalProperties": {"type": "integer"}},
    "STRUCT<a: INT>": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
"""Spark type → a JSON Schema that is meant for it."""
_TITLES: Final = {"json": "JSON", "JSON Schema": "JSON Schema", "avro": "Avro", "protobuf": "Protobuf", "csv": "CSV"}
FORMATS: Final = tuple(_TITLES)


class Cell(NamedTuple):
    """`written`: how the format shows the value, or its type; empty if it cannot be written. `read`: the type that a
    read gives it; empty if it is not read. `same`: whether the value came back."""

    written: str
    read: str
    same: bool


def cell(name: str, form: str) -> Cell:
    """A column of the Spark type `name` through the format `form`."""
    kind = parse_ddl(f"c {name}")
    rows = pa.array([{"c": VALUES[name]}], kind)
    if form == "csv":
        return _csv(kind, rows)
    if form == "protobuf":
        fields = (_PROTO[name],) if name in _PROTO else _ANY
        tried = (_written_and_read(form, rows, *_protobuf(field), field) for field in fields)
        return next((one for one in tried if one.written), Cell("", "", False))
    return _written_and_read(form, rows, *_schemas(name, form, kind))


def _written_and_read(form: str, rows: pa.StructArray, writes: Any, reads: Any, shown: str) -> Cell:
    try:
        raw = column_encoder(ColumnWrite(form.split()[0].lower(), ("c",), writes), rows.type).encode(rows).values
    except ConfigError:
        return Cell("", "", False)
    decoder = column_decoder(ColumnFormat(form.split()[0].lower(), reads))
    decoded = decoder.decode(raw)
    assert not decoded.bad
    if not shown:
        shown = raw[0].as_py().decode().removeprefix('{"c":').removesuffix("}")
    column = decoded.column.field("c")
    return Cell(shown, _ddl(column.type), column[0].as_py() == rows.field("c")[0].as_py())


def _csv(kind: pa.DataType, rows: pa.Array) -> Cell:
    """CSV is read only."""
    text = {bool: lambda one: str(one).lower(), dt.datetime: dt.datetime.isoformat}
    value = rows.field("c")[0].as_py()
    try:
        decoder = column_decoder(ColumnFormat("csv", kind))
    except ConfigError:
        return Cell("", "", False)
    raw = b"AP8=" if isinstance(value, bytes) else str(text.get(type(value), str)(value)).encode()
    decoded = decoder.decode(pa.array([raw], pa.binary()))
    assert not decoded.bad
    column = decoded.column.field("c")
    return Cell("", _ddl(column.type), column[0].as_py() == value)


def _schemas(name: str, form: str, kind: pa.DataType) -> tuple[Any, Any, str]:
    """(schema of the write, of the read, how the type is called; empty for its JSON text)."""
    if form == "json":
        return None, kind, ""
    if form == "JSON Schema":
        one = JsonSchema(json.dumps({"type": "object", "properties": {"c": _SCHEMAS[name]}}))
        shown = ", ".join(str(value) for value in _SCHEMAS[name].values() if isinstance(value, str))
        return one, json_column(one), shown
    if form == "avro":
        schema = derived_schema(kind)
        return schema, schema, _avro_name(schema.text)
    raise AssertionError(form)


def _protobuf(field: str) -> tuple[ProtobufSchema, ProtobufSchema]:
    """The same schema for the write and the read."""
    descriptors = ProtobufSchema(_descriptors(field))
    return descriptors, descriptors


def _avro_name(text: str) -> str:
    """The type of the only field, without null."""
    branch = json.loads(text)["fields"][0]["type"]
    one = next(one for one in branch if one != "null") if isinstance(branch, list) else branch
    if isinstance(one, str):
        return one
    return f"{one['type']}, {one['logicalType']}" if "logicalType" in one else str(one["type"])


def _descriptors(shown: str) -> bytes:
    """A descriptor file of a message with the field `c`."""
    file = FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="M")
    field = message.field.add(name="c", number=1, label=FieldDescriptorProto.LABEL_OPTIONAL)
    scalar = shown.removeprefix("repeated ")
    if shown.startswith(("repeated", "map")):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if shown.startswith("map"):
        entry = _message(message.nested_type.add(name="CEntry"), key="string", value="int32")
        entry.options.map_entry = True
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, ".p.M.CEntry"
    elif shown == "message":
        _message(message.nested_type.add(name="Inner"), a="int32")
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, ".p.M.Inner"
    elif shown.startswith("google"):
        file.dependency.append("google/protobuf/timestamp.proto")
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{shown}"
    else:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{scalar.upper()}")
    stamps = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamps)
    return bytes(FileDescriptorSet(file=[stamps, file]).SerializeToString())


def _message(message: DescriptorProto, **fields: str) -> DescriptorProto:
    for number, (name, kind) in enumerate(fields.items(), 1):
        one = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        one.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    return message


def _ddl(kind: pa.DataType) -> str:
    return next((name for name in VALUES if parse_ddl(f"c {name}").field("c").type == kind), _nested(kind))


def _nested(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"ARRAY<{_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{_ddl(kind.key_type)},{_ddl(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{one.name}: {_ddl(one.type)}' for one in kind)}>"
    return str(kind)


def typed_columns() -> str:
    """A row for each type."""
    return table(
        ["column", *_TITLES.values()],
        ([f"`{name}`", *(_shown(name, cell(name, form)) for form in FORMATS)] for name in VALUES),
    )


def _shown(name: str, one: Cell) -> str:
    if not one.written:
        return "reads" if one.read else "refused"
    if one.read == name and one.same:
        return f"`{one.written}`"
    return f"`{one.written}`, reads as `{one.read}`"
