"""A child of a null parent is not missing: what encoders refuse, on drawn types, rows and nestings.

The judges are protobuf's runtime, fastavro and jsonschema. A row is bad where a parent that is there lacks a child that
its schema requires, and nowhere else.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import fastavro
import jsonschema
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.records import native
from spark_connector.formats.protobuf_descriptors import message_of
from spark_connector.formats.record_encoder import column_encoder
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.value_format import AvroSchema, JsonSchema
from spark_connector.formats.write_format import ColumnWrite
from tests.support.protobuf_cases import add, add_map, file_with, schema_with


class Field(NamedTuple):
    """`shape`: one, list or map of `inner`. A required field, and an element, must not be null."""

    inner: Message | None
    """None: a text."""
    required: bool = False
    shape: str = "one"


class Message(NamedTuple):
    fields: tuple[Field, ...]


TEXTS = Message((Field(None, required=True),))
messages: st.SearchStrategy[Message] = st.recursive(
    st.just(TEXTS),
    lambda inner: st.builds(
        Message,
        st.lists(
            st.builds(Field, st.none() | inner, st.booleans(), st.sampled_from(["one", "one", "list", "map"])),
            min_size=1,
            max_size=3,
        ).map(lambda fields: tuple(one._replace(required=one.required and one.shape == "one") for one in fields)),
    ),
    max_leaves=4,
)


def rows_of(message: Message) -> st.SearchStrategy[Any]:
    """Any child may be null; elements are not."""
    made = {}
    for name, one in named(message):
        value = st.sampled_from(["", "é"]) if one.inner is None else rows_of(one.inner)
        if one.shape == "list":
            value = st.lists(value, max_size=2)
        elif one.shape == "map":
            value = st.dictionaries(st.sampled_from(["a", "b"]), value, max_size=2).map(lambda made: list(made.items()))
        made[name] = st.none() | value
    return st.fixed_dictionaries(made)


def named(message: Message) -> list[tuple[str, Field]]:
    return [(f"f{number}", one) for number, one in enumerate(message.fields)]


def lacks(message: Message, row: Any, is_missing: Callable[[Field], bool]) -> bool:
    """Whether a parent that is there lacks a child."""
    for name, one in named(message):
        value = row[name]
        if value is None:
            if one.required and is_missing(one):
                return True
            continue
        inner = {"one": [value], "list": value, "map": [item for _, item in value] if one.shape == "map" else []}
        if one.inner is not None and any(lacks(one.inner, each, is_missing) for each in inner[one.shape]):
            return True
    return False


def arrow(message: Message) -> pa.StructType:
    fields = []
    for name, one in named(message):
        kind = pa.string() if one.inner is None else arrow(one.inner)
        fields.append((name, {"one": kind, "list": pa.list_(kind), "map": pa.map_(pa.string(), kind)}[one.shape]))
    return pa.struct(fields)


def with_hidden(array: pa.StructArray) -> pa.StructArray:
    """The same rows, with values under the nulls of structs."""
    children = [
        with_hidden(array.field(number)) if pa.types.is_struct(one.type) else array.field(number)
        for number, one in enumerate(array.type)
    ]
    filled = [
        pc.if_else(array.is_null(), "hidden", child) if pa.types.is_string(child.type) else child for child in children
    ]
    return pa.StructArray.from_arrays(filled, fields=list(array.type), mask=array.is_null())


def encoded(name: str, schema: Any, rows: pa.StructArray) -> Encoded:
    columns = tuple(one.name for one in rows.type)
    return column_encoder(ColumnWrite(name, columns, schema), rows.type).encode(rows)


# ---- each format: its schema of a message, whether a required child may not be null, and how its judge reads a value


def protobuf(message: Message) -> tuple[Any, Callable[[bytes], Any]]:
    made: list[DescriptorProto] = []

    def add_message(one: Message) -> str:
        descriptor = DescriptorProto(name=f"M{len(made)}")
        made.append(descriptor)
        full = f"t.{descriptor.name}"
        for number, (name, field) in enumerate(named(one), 1):
            kind = "string" if field.inner is None else add_message(field.inner)
            if field.shape == "map":
                add_map(descriptor, name, number, "string", kind, full)
                continue
            proto = add(descriptor, name, number, kind, repeated=field.shape == "list")
            if field.required:
                proto.label = FieldDescriptorProto.LABEL_REQUIRED
        return full

    root = add_message(message)
    schema = schema_with(file_with(*made, syntax="proto2"), message=root)

    def judge(raw: bytes) -> Any:
        read = GetMessageClass(message_of(schema)).FromString(raw)  # refuses a message without a required field
        return _without_nulls(message, MessageToDict(read, preserving_proto_field_name=True))

    return schema, judge


def avro(message: Message) -> tuple[Any, Callable[[bytes], Any]]:
    count = iter(range(1000))

    def of(one: Message) -> Any:
        fields = []
        for name, field in named(one):
            kind: Any = "string" if field.inner is None else of(field.inner)
            if field.shape != "one":
                kind = {"type": "array", "items": kind} if field.shape == "list" else {"type": "map", "values": kind}
            fields.append({"name": name, "type": kind if field.required else ["null", kind]})
        return {"type": "record", "name": f"R{next(count)}", "fields": fields}

    schema = of(message)
    parsed = fastavro.parse_schema(schema)
    return (
        AvroSchema(json.dumps(schema)),
        lambda raw: _without_nulls(message, fastavro.schemaless_reader(io.BytesIO(raw), parsed, None)),
    )


def json_schema(message: Message) -> tuple[Any, Callable[[bytes], Any]]:
    def of(one: Message) -> Any:
        made = {}
        for name, field in named(one):
            kind: Any = {"type": "string"} if field.inner is None else of(field.inner)
            if field.shape != "one":
                kind = (
                    {"type": "array", "items": kind}
                    if field.shape == "list"
                    else {"type": "object", "additionalProperties": kind}
                )
            made[name] = kind
        required = [name for name, field in named(one) if field.required]
        return {"type": "object", "properties": made, "required": required}

    schema = of(message)

    def judge(raw: bytes) -> Any:
        value = json.loads(raw)
        jsonschema.validate(value, schema)
        return _without_nulls(message, value)

    return JsonSchema(json.dumps(schema)), judge


FORMATS = {"protobuf": protobuf, "avro": avro, "json": json_schema}


def _without_nulls(message: Message, value: Any) -> Any:
    """A row, or what a judge read, in one form: no nulls, no empty lists and maps, which Protobuf cannot tell apart."""
    made: dict[str, Any] = {}
    for name, one in named(message):
        found = value.get(name)
        if found is None or (one.shape != "one" and not found):
            continue
        if one.shape == "map":
            pairs = found.items() if isinstance(found, dict) else found
            made[name] = {key: item if one.inner is None else _without_nulls(one.inner, item) for key, item in pairs}
        elif one.inner is None:
            made[name] = found
        else:
            made[name] = (
                [_without_nulls(one.inner, item) for item in found]
                if one.shape == "list"
                else _without_nulls(one.inner, found)
            )
    return made


def check(form: str, message: Message, rows: list[Any], *, hidden: bool) -> None:
    schema, judge = FORMATS[form](message)
    column = pa.array(rows, arrow(message))
    made = encoded(form, schema, with_hidden(column) if hidden else column)
    # A required scalar that is null has its default in Protobuf.
    missing = [lacks(message, row, lambda one: form != "protobuf" or one.inner is not None) for row in rows]
    assert sorted(made.bad) == [number for number, is_bad in enumerate(missing) if is_bad]
    for raw, row, is_bad in zip(made.values.to_pylist(), rows, missing, strict=True):
        assert (raw is None) == is_bad
        if raw is not None and (form != "protobuf" or not lacks(message, row, lambda _: True)):
            assert judge(raw) == _without_nulls(message, row)
        elif raw is not None:
            judge(raw)


OPTIONAL = Message((Field(TEXTS),))
"""A struct that may be null, with a required child."""
OF_MESSAGE = Message((Field(TEXTS, required=True), Field(None)))
NESTINGS = {
    "struct": (OPTIONAL, [{"f0": None}, {"f0": {"f0": "x"}}, {"f0": {"f0": None}}]),
    "message": (
        Message((Field(OF_MESSAGE),)),
        [{"f0": None}, {"f0": {"f0": {"f0": "x"}, "f1": None}}, {"f0": {"f0": None, "f1": "x"}}],
    ),
    "struct in struct": (Message((Field(Message((Field(OF_MESSAGE),))),)), [{"f0": None}, {"f0": {"f0": None}}]),
    "list": (
        Message((Field(Message((Field(OF_MESSAGE),)), shape="list"),)),
        [{"f0": None}, {"f0": [{"f0": None}, {"f0": {"f0": {"f0": "x"}, "f1": None}}]}],
    ),
    "map": (
        Message((Field(Message((Field(OF_MESSAGE),)), shape="map"),)),
        [{"f0": None}, {"f0": [("a", {"f0": None}), ("b", {"f0": {"f0": {"f0": ""}, "f1": None}})]}],
    ),
}


@pytest.mark.parametrize("with_kernel", [True, False], ids=["C", "Python"])
@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_child_of_a_null_is_not_missing(
    form: str, nesting: str, with_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_kernel:
        monkeypatch.setattr(native, "kernel", None)
    check(form, *NESTINGS[nesting], hidden=False)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25)
@given(messages.flatmap(lambda one: st.tuples(st.just(one), st.lists(rows_of(one), max_size=4))), st.booleans())
@example(NESTINGS["message"], False)
def test_rows_are_bad_that_their_judge_would_refuse(form: str, drawn: tuple[Message, list[Any]], hidden: bool) -> None:
    check(form, *drawn, hidden=hidden)
