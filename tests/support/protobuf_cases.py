"""Protobuf schemas and messages for tests: a schema with every kind of field, and drawn ones with messages of them."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pyarrow as pa
from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from spark_connector.formats.protobuf_columns import Message
from spark_connector.formats.protobuf_descriptors import schema_of_file
from spark_connector.formats.value_format import ProtobufSchema

KINDS = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "group": 10,
    "message": 11,
    "bytes": 12,
    "uint32": 13,
    "enum": 14,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
SCALARS = tuple(kind for kind in KINDS if kind not in {"group", "message", "enum"})
KEYS = tuple(kind for kind in SCALARS if kind not in {"double", "float", "bytes"})
EVERYWHERE = {
    "google.protobuf.Timestamp": timestamp_pb2,
    "google.protobuf.Duration": duration_pb2,
    "google.protobuf.Int32Value": wrappers_pb2,
    "google.protobuf.UInt64Value": wrappers_pb2,
    "google.protobuf.StringValue": wrappers_pb2,
}
COLOR = {"RED": 0, "GREEN": 5, "BLUE": -1}


def file_with(*messages: DescriptorProto, syntax: str = "proto3", name: str = "t.proto") -> FileDescriptorProto:
    """A file of package `t` with an enum Color and `messages`."""
    file = FileDescriptorProto(name=name, package="t", syntax=syntax)
    color = file.enum_type.add(name="Color")
    for symbol, number in COLOR.items():
        color.value.add(name=symbol, number=number)
    file.message_type.extend(messages)
    file.dependency.extend({module.DESCRIPTOR.name: None for module in EVERYWHERE.values()})
    return file


def schema_with(*files: FileDescriptorProto, message: str) -> ProtobufSchema:
    """As protoc writes them with --include_imports."""
    imported = {module.DESCRIPTOR.name: module.DESCRIPTOR for module in EVERYWHERE.values()}
    made = FileDescriptorSet()
    for descriptor in imported.values():
        descriptor.CopyToProto(made.file.add())
    made.file.extend(files)
    return schema_of_file(made.SerializeToString(), message)


def add(
    message: DescriptorProto, name: str, number: int, kind: str, *, repeated: bool = False, **more: Any
) -> FieldDescriptorProto:
    """A field; `kind` is a scalar type, `enum`, or the full name of a message."""
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if kind == "enum":
        return message.field.add(name=name, number=number, label=label, type=14, type_name=".t.Color", **more)
    if kind in KINDS:
        return message.field.add(name=name, number=number, label=label, type=KINDS[kind], **more)
    more.setdefault("type", 11)
    return message.field.add(name=name, number=number, label=label, type_name=f".{kind}", **more)


def add_map(message: DescriptorProto, name: str, number: int, key: str, value: str, within: str) -> None:
    """A map field of the message whose full name is `within`."""
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    add(entry, "key", 1, key)
    add(entry, "value", 2, value)
    add(message, name, number, f"{within}.{entry.name}", repeated=True)


def every_kind(syntax: str = "proto3") -> ProtobufSchema:
    """A message t.All with every kind of field, alone, repeated and in maps."""
    inner = DescriptorProto(name="Inner")
    add(inner, "a", 1, "string")
    add(inner, "b", 2, "int64", repeated=True)
    add(inner, "c", 3, "enum")
    add_map(inner, "m", 4, "string", "double", "t.Inner")
    whole = DescriptorProto(name="All")
    for number, kind in enumerate((*SCALARS, "enum", "t.Inner", *EVERYWHERE), 1):
        name = kind.rpartition(".")[2].lower()
        add(whole, f"one_{name}", number, kind)
        add(whole, f"all_{name}", number + 100, kind, repeated=True)
        if kind in SCALARS and syntax == "proto3":
            optional = add(whole, f"opt_{name}", number + 200, kind, proto3_optional=True)
            optional.oneof_index = 0  # set below
    for number, key in enumerate(KEYS, 301):
        add_map(whole, f"by_{key}", number, key, "t.Inner", "t.All")
    for number, kind in enumerate((*SCALARS, "enum", "google.protobuf.Timestamp"), 401):
        add_map(whole, f"to_{kind.rpartition('.')[2].lower()}", number, "int32", kind, "t.All")
    for number, kind in enumerate(("int32", "string", "enum", "t.Inner"), 501):
        add(whole, f"choice_{number}", number, kind, oneof_index=0)
    whole.oneof_decl.add(name="choice")
    for field in whole.field:
        if field.proto3_optional:
            field.oneof_index = len(whole.oneof_decl)
            whole.oneof_decl.add(name=f"_{field.name}")
    return schema_with(file_with(whole, inner, syntax=syntax), message="t.All")


def drawn_schema(dice: Random) -> ProtobufSchema:
    """A message t.M0 with others in it."""
    syntax = dice.choice(["proto3", "proto2"])
    made: list[DescriptorProto] = []
    for index in (2, 1, 0):
        message = DescriptorProto(name=f"M{index}")
        kinds = [*SCALARS, "enum", *EVERYWHERE, *(f"t.{other.name}" for other in made)]
        for place, number in enumerate(dice.sample([*range(1, 41), 2000, 536870911], dice.randint(1, 8))):
            _draw_field(dice, message, f"f{place}", number, dice.choice(kinds), syntax)
        made.append(message)
    return schema_with(file_with(*made, syntax=syntax), message="t.M0")


def _draw_field(dice: Random, message: DescriptorProto, name: str, number: int, kind: str, syntax: str) -> None:
    shape = dice.choice(["one", "one", "list", "map", "oneof", "required"])
    if shape == "map":
        add_map(message, name, number, dice.choice(KEYS), kind, f"t.{message.name}")
        return
    field = add(message, name, number, kind, repeated=shape == "list")
    if shape == "list" and kind in SCALARS and kind not in {"string", "bytes"} and dice.random() < 0.7:
        field.options.packed = dice.random() < 0.5
    if shape == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="o")
        field.oneof_index = 0
    if shape == "required" and syntax == "proto2":
        field.label = FieldDescriptorProto.LABEL_REQUIRED


def drawn_value(dice: Random, field: Any) -> Any:
    """A value of a scalar field."""
    kind = next(name for name, number in KINDS.items() if number == field.type)
    if kind in {"double", "float"}:
        return dice.choice([0.0, -0.0, 1.5, -2.25, math.inf, math.nan, 2.0**100])
    if kind == "bool":
        return dice.random() < 0.5
    if kind == "string":
        return "".join(dice.choices("aé€😀\0", k=dice.randint(0, 12)))
    if kind == "bytes":
        return dice.randbytes(dice.randint(0, 5))
    if kind == "enum":
        return dice.choice(list(COLOR.values()))
    bits = 64 if "64" in kind else 32
    low, high = (0, 2**bits - 1) if kind.startswith(("u", "f")) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return dice.choice([low, high, 0, 1, max(low, -1), dice.randint(low, high), dice.randint(0, 300)])


def drawn_message(dice: Random, descriptor: Any, share: float = 0.3) -> Any:
    """A message of the type, with `share` of its fields and all required ones set."""
    made = GetMessageClass(descriptor)()
    _fill(dice, made, share)
    return made


def _fill(dice: Random, made: Any, share: float) -> None:
    descriptor = made.DESCRIPTOR
    if descriptor.full_name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
        made.seconds = dice.randint(-(10**11), 10**11)
        made.nanos = dice.randint(0, 999_999) * 1000 * (-1 if made.seconds < 0 and descriptor.name == "Duration" else 1)
        return
    for field in descriptor.fields:
        if not field.is_required and dice.random() > share:
            continue
        if not field.is_repeated:
            if field.message_type is None:
                setattr(made, field.name, drawn_value(dice, field))
            else:
                getattr(made, field.name).SetInParent()
                _fill(dice, getattr(made, field.name), share)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for one in [drawn_value(dice, key) for _ in range(dice.randint(0, 3))]:
                if value.message_type is None:
                    getattr(made, field.name)[one] = drawn_value(dice, value)
                else:
                    _fill(dice, getattr(made, field.name)[one], share)
        elif field.message_type is not None:
            for _ in range(dice.randint(0, 2)):
                _fill(dice, getattr(made, field.name).add(), share)
        else:
            getattr(made, field.name).extend([drawn_value(dice, field) for _ in range(dice.randint(0, 3))])


def hostile(dice: Random, raw: bytes) -> bytes:
    """`raw`, changed in up to three places."""
    made = bytearray(raw or dice.randbytes(8))
    for _ in range(dice.randint(0, 3)):
        place = dice.randint(0, len(made))
        made[place : place + dice.randint(0, 2)] = dice.randbytes(dice.randint(0, 3))
    return bytes(made)


def same(value: Any) -> Any:
    """For comparisons: maps without order, numbers that are none alike, and floats told from their negatives."""
    if isinstance(value, dict):
        return {name: same(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return sorted((repr(same(key)), same(one)) for key, one in value)
        return [same(one) for one in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    return value


def rows(column: pa.Array) -> list[Any]:
    """The rows, for comparisons. Times are numbers, since Python's do not reach as far."""
    return [same(row) for row in _plain(column).to_pylist()]


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(_numbers(column.type))


def _numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_numbers(kind.value_type))
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


def has_maps(message: Message) -> bool:
    """Whether the order of bytes may differ, because there are maps in it."""
    return any(one.is_map or (one.message is not None and has_maps(one.message)) for one in message.fields)
