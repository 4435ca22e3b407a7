"""Protobuf reads by Spark's rules: the types, what null means, the registry's prefix, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from broker.errors import ConfigError
from spark_connector.formats.protobuf_decoder import ProtobufDecoder
from spark_connector.formats.protobuf_descriptors import message_of
from spark_connector.formats.record_decoder import decoders, loaded
from spark_connector.formats.value_format import ProtobufRules, ProtobufSchema
from spark_connector.options.read_options import Mode, parse_options
from tests.support.protobuf_cases import add, add_map, every_kind, file_with, schema_with
from tests.support.schema_registry import Registry, schema_registry

READ = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t", "valueFormat": "protobuf"}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as one:
        yield one


def flights(syntax: str = "proto3") -> ProtobufSchema:
    plane = DescriptorProto(name="Plane")
    add(plane, "tail", 1, "string")
    flight = DescriptorProto(name="Flight")
    add(flight, "id", 1, "int64")
    add(flight, "carrier", 2, "string")
    add(flight, "plane", 3, "t.Plane")
    flight.nested_type.add(name="Leg")
    add(flight.nested_type[0], "to", 1, "string")
    return schema_with(file_with(plane, flight, syntax=syntax), message="Flight")


def decode(schema: ProtobufSchema, raw: list[bytes | None], **rules: Any) -> Any:
    return ProtobufDecoder(schema, None, ProtobufRules(**rules)).decode(pa.array(raw, pa.binary()))


def made(schema: ProtobufSchema, **fields: Any) -> Any:
    return GetMessageClass(message_of(schema))(**fields)


def test_types_are_those_of_from_protobuf() -> None:
    kinds = {field.name: field.type for field in ProtobufDecoder(every_kind()).type}
    assert {name: kinds[f"one_{name}"] for name in ("uint32", "fixed64", "float", "bytes", "enum")} == {
        "uint32": pa.int32(),
        "fixed64": pa.int64(),
        "float": pa.float32(),
        "bytes": pa.binary(),
        "enum": pa.string(),
    }
    assert kinds["one_timestamp"] == pa.timestamp("us", "UTC")
    assert kinds["all_duration"] == pa.list_(pa.duration("us"))
    assert kinds["one_int32value"] == pa.struct([("value", pa.int32())])
    assert kinds["to_enum"] == pa.map_(pa.int32(), pa.string())
    wide = ProtobufRules(enums_as_ints=True, upcasts_unsigned=True, unwraps_wrappers=True)
    kinds = {field.name: field.type for field in ProtobufDecoder(every_kind(), None, wide).type}
    assert kinds["one_uint32"] == pa.int64()
    assert kinds["all_uint64"] == pa.list_(pa.decimal128(20, 0))
    assert kinds["one_uint64value"] == pa.decimal128(20, 0)
    assert kinds["one_stringvalue"] == pa.string()
    assert kinds["one_enum"] == pa.int32()


def test_zero_is_null_where_nobody_records_presence_unless_defaults_are_emitted() -> None:
    schema = every_kind()
    message = made(schema, one_int32=0, opt_int32=0, choice_501=0)
    (row,) = decode(schema, [message.SerializeToString()]).column.to_pylist()
    assert [row[name] for name in ("one_int32", "one_string", "one_enum", "all_int32", "by_string")] == [
        *(None, None, None),
        *([], []),
    ]
    assert [row[name] for name in ("opt_int32", "opt_string", "choice_501", "choice_502")] == [0, None, 0, None]
    (row,) = decode(schema, [message.SerializeToString()], emits_defaults=True).column.to_pylist()
    assert [row[name] for name in ("one_int32", "one_string", "one_enum")] == [0, "", "RED"]
    assert [row[name] for name in ("opt_string", "choice_502", "one_inner")] == [None, None, None]


def test_defaults_of_proto2_stand_for_fields_that_are_not_there() -> None:
    whole = DescriptorProto(name="M")
    add(whole, "a", 1, "int32", default_value="7")
    add(whole, "b", 2, "enum", default_value="GREEN")
    add(whole, "c", 3, "string")
    schema = schema_with(file_with(whole, syntax="proto2"), message="M")
    assert decode(schema, [b"", b"\x08\x00"]).column.to_pylist() == [
        {"a": 7, "b": "GREEN", "c": None},
        {"a": 0, "b": "GREEN", "c": None},
    ]


def test_numbers_that_an_enum_does_not_have() -> None:
    """proto3: a name that Java makes. proto2: unknown fields, which Spark refuses at the top."""
    assert decode(every_kind(), [made(every_kind(), one_enum=9).SerializeToString()]).column[0]["one_enum"].as_py() == (
        "UNKNOWN_ENUM_VALUE_Color_9"
    )
    new, old = (made(schema, one_enum=9).SerializeToString() for schema in (every_kind(), every_kind()))
    assert new == old
    assert "does not have" in decode(every_kind("proto2"), [old]).bad[0]


def test_a_field_of_another_type_makes_a_bad_record_at_the_top_and_is_null_deeper() -> None:
    schema = flights()
    decoded = decode(schema, [b"\x0a\x01a", b"\x1a\x02\x08\x01"])
    assert decoded.bad == {0: "field id (number 1) is not of the type that it has in t.Flight"}
    assert decoded.column[1].as_py() == {"id": None, "carrier": None, "plane": {"tail": None}}


def test_required_fields_may_come_in_two_parts_of_one_message() -> None:
    inner, whole = DescriptorProto(name="I"), DescriptorProto(name="M")
    for number in (1, 2):
        add(inner, f"r{number}", number, "int32").label = FieldDescriptorProto.LABEL_REQUIRED
    add(whole, "i", 1, "t.I")
    schema = schema_with(file_with(inner, whole, syntax="proto2"), message="M")
    decoded = decode(schema, [b"\x0a\x02\x08\x01", b"\x0a\x02\x08\x01\x0a\x02\x10\x02", None, b""])
    assert list(decoded.bad) == [0]
    assert "required" in decoded.bad[0]
    assert decoded.column.to_pylist() == [None, {"i": {"r1": 1, "r2": 2}}, None, {"i": None}]


def test_of_one_key_of_a_map_the_last_entry_counts() -> None:
    whole = DescriptorProto(name="M")
    add_map(whole, "m", 1, "string", "int32", "t.M")
    schema = schema_with(file_with(whole), message="M")
    entry = [b"\x0a\x05\x0a\x01a\x10\x01", b"\x0a\x05\x0a\x01b\x10\x02", b"\x0a\x05\x0a\x01a\x10\x03", b"\x0a\x00"]
    decoded = decode(schema, [b"".join(entry), entry[0]])
    assert [dict(row["m"]) for row in decoded.column.to_pylist()] == [{"a": 3, "b": 2, "": 0}, {"a": 1}]


@pytest.mark.parametrize(("levels", "names"), [(1, ["name"]), (2, ["name", "bff", "all"])])
def test_messages_that_contain_themselves_end_after_some_levels(levels: int, names: list[str]) -> None:
    person = DescriptorProto(name="P")
    add(person, "name", 1, "string")
    add(person, "bff", 2, "t.P")
    add(person, "all", 3, "t.P", repeated=True)
    schema = schema_with(file_with(person), message="P")
    with pytest.raises(ConfigError, match=r"recursive in t.P.bff: set the option 'recursive.fields.max.depth' to 1 to"):
        ProtobufDecoder(schema)
    decoded = decode(schema, [b"\x0a\x01a\x12\x07\x0a\x01b\x12\x02\x0a\x00\x1a\x00"], most_levels=levels)
    assert [field.name for field in decoded.column.type] == names
    assert decoded.column[0]["name"].as_py() == "a"
    if levels == 2:
        assert decoded.column[0].as_py() == {"name": "a", "bff": {"name": "b"}, "all": [{"name": None}]}


def test_empty_messages_are_left_out_unless_they_are_kept() -> None:
    empty, whole = DescriptorProto(name="E"), DescriptorProto(name="M")
    add(whole, "e", 1, "t.E")
    add(whole, "a", 2, "int32")
    schema = schema_with(file_with(empty, whole), message="M")
    assert decode(schema, [b"\x0a\x00"]).column.to_pylist() == [{"a": None}]
    kept = decode(schema, [b"\x0a\x00"], keeps_empty=True).column.to_pylist()
    assert kept == [{"e": {"__dummy_field_in_empty_struct": None}, "a": None}]


def test_times_beyond_microseconds_are_bad() -> None:
    decoded = decode(every_kind(), [made(every_kind(), one_timestamp={"seconds": 2**62}).SerializeToString()])
    assert "beyond all timestamps" in decoded.bad[0]


def test_a_value_that_is_cut_off_makes_no_longer_one_bad(registry: Registry) -> None:
    schema = flights()
    leg = GetMessageClass(message_of(ProtobufSchema(schema.descriptors, "t.Flight.Leg")))
    client, context = SchemaRegistryClient({"url": registry.url}), SerializationContext("t", MessageField.VALUE)
    whole = ProtobufSerializer(leg, client, {"use.deprecated.format": False})(leg(to="X"), context)
    assert whole is not None
    given = {**READ, "valueMessage": "t.Flight.Leg", "schema.registry.url": registry.url}
    decoder = decoders(loaded(parse_options(given, Mode.BATCH).formats, ["t"]))["value"]
    for end in (5, 6, 7):
        decoded = decoder.decode(pa.array([whole[:end], whole, whole[:end], whole], pa.binary()))
        assert list(decoded.bad) == [0, 2]


def test_values_of_confluents_serializer(registry: Registry) -> None:
    """Each group of rows with one prefix; other messages, unknown ids and other bytes are bad."""
    schema = flights()
    flight = GetMessageClass(message_of(schema))
    leg = GetMessageClass(message_of(ProtobufSchema(schema.descriptors, "t.Flight.Leg")))
    client, context = SchemaRegistryClient({"url": registry.url}), SerializationContext("t", MessageField.VALUE)
    config = {"use.deprecated.format": False}
    framed = ProtobufSerializer(flight, client, config)(flight(id=3), context)
    other = ProtobufSerializer(leg, client, config)(leg(to="X"), context)
    assert framed is not None
    formats = loaded(
        parse_options({**READ, "valueMessage": "Flight", "schema.registry.url": registry.url}, Mode.BATCH).formats,
        ["t"],
    )
    decoder = decoders(formats)["value"]
    raw = [framed, None, other, b"\1" + framed[1:], b"\0\0\0\0\x63\0", framed[:5], framed[:5] + b"\x04\x02", framed]
    decoded = decoder.decode(pa.array([*raw], pa.binary()))
    good = {"id": 3, "carrier": None, "plane": None}
    assert decoded.column.to_pylist() == [good, None, None, None, None, None, None, good]
    assert {row: why.partition(":")[0] for row, why in decoded.bad.items()} == {
        2: "schema id 1",
        3: "not in the wire format of a schema registry, which begins with a zero byte and the schema's id",
        4: "schema id 99",
        5: "not in the wire format of a schema registry, which begins with a zero byte and the schema's id",
        6: "its prefix ends within the message indexes",
    }
    assert decoded.bad[2] == "schema id 1: it is a message t.Flight.Leg, not t.Flight"


def test_schemas_of_a_registry_have_references_and_the_files_of_everybody(registry: Registry) -> None:
    inner, whole = DescriptorProto(name="I"), DescriptorProto(name="M")
    add(inner, "at", 1, "google.protobuf.Timestamp")
    add(whole, "i", 1, "t.I")
    inner_file, file = file_with(inner, name="inner.proto"), file_with(whole)
    del file.enum_type[:]
    file.dependency.append("inner.proto")
    text = [base64.b64encode(one.SerializeToString()).decode() for one in (inner_file, file)]
    registry.register("inner", text[0], schemaType="PROTOBUF")
    reference = {"name": "inner.proto", "subject": "inner", "version": 1}
    registry.register("t-value", text[1], schemaType="PROTOBUF", references=[reference])
    formats = loaded(parse_options({**READ, "schema.registry.url": registry.url}, Mode.BATCH).formats, ["t"])
    assert decoders(formats)["value"].type == pa.struct([("i", pa.struct([("at", pa.timestamp("us", "UTC"))]))])
    registry.register("text-value", 'syntax = "proto3"; message M {}', schemaType="PROTOBUF")
    options = {**READ, "subscribe": "text", "schema.registry.url": registry.url}
    with pytest.raises(ConfigError, match=r"only as .proto text: set it to a file of protoc"):
        loaded(parse_options(options, Mode.BATCH).formats, ["text"])


def test_a_descriptor_file_beside_a_registry_that_has_only_text(registry: Registry, tmp_path: Path) -> None:
    """The place of the message in the file tells it from others then."""
    schema = flights()
    (tmp_path / "t.desc").write_bytes(schema.descriptors)
    registry.register("x", 'syntax = "proto3"; …', schemaType="PROTOBUF")
    options = {**READ, "valueSchema": str(tmp_path / "t.desc"), "valueMessage": "t.Flight"}
    formats = loaded(parse_options({**options, "schema.registry.url": registry.url}, Mode.BATCH).formats, ["t"])
    decoded = decoders(formats)["value"].decode(pa.array([b"\0\0\0\0\1\2\2\x08\1", b"\0\0\0\0\1\0\x08\1"]))
    assert decoded.column[0]["id"].as_py() == 1
    assert decoded.bad == {1: "schema id 1: it is the message at [0], not t.Flight at [1]"}
    plain = decoders(loaded(parse_options(options, Mode.BATCH).formats, None))["value"]
    assert plain.decode(pa.array([b"\x08\1"])).column[0]["id"].as_py() == 1
    assert "set the option 'schema.registry.url'" in plain.decode(pa.array([b"\0\0\0\0\1\0\x08\1"])).bad[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs option 'valueSchema': a file of protoc --descriptor_set_out, or a registry"),
        ({"valueSchema": "t.desc"}, "a file needs option 'valueMessage'"),
        ({"valueSchema": "missing.desc", "valueMessage": "M"}, "Cannot read the schema in 'missing.desc'"),
        (
            {"valueSchema": "x", "valueMessage": "M", "recursive.fields.max.depth": "11"},
            "should not be greater than 10",
        ),
        ({"valueFormat": "string", "enums.as.ints": "true"}, "no effect: it needs 'valueFormat' or 'keyFormat' to be"),
        ({"valueFormat": "json", "valueSchema": "a INT", "valueMessage": "M"}, "'valueMessage' has no effect"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        loaded(parse_options({**READ, **options}, Mode.BATCH).formats, ["t"])


def test_files_and_messages_that_cannot_be_used(tmp_path: Path) -> None:
    schema = flights()
    for data, message, why in (
        (b"\xff", "M", "not a file of protoc"),
        (b"", "M", "has no .proto file"),
        (schema.descriptors, "N", r"has no message 'N'. There are: t.Plane, t.Flight, t.Flight.Leg"),
    ):
        (tmp_path / "t.desc").write_bytes(data)
        options = {**READ, "valueSchema": str(tmp_path / "t.desc"), "valueMessage": message}
        with pytest.raises(ConfigError, match=why):
            loaded(parse_options(options, Mode.BATCH).formats, ["t"])


def test_a_short_value_of_many_empty_elements_is_bad_before_it_fills_the_memory() -> None:
    part, whole = DescriptorProto(name="Part"), DescriptorProto(name="Whole")
    for number in range(1, 101):
        add(part, f"f{number}", number, "int64")
    add(whole, "parts", 1, "t.Part", repeated=True)
    raw = b"\x0a\x00"
    decoded = decode(schema_with(file_with(part, whole), message="Whole"), [raw * 500_000, raw * 2, None])
    assert list(decoded.bad) == [0]
    assert "memory" in decoded.bad[0]
    assert [None if one is None else len(one["parts"]) for one in decoded.column.to_pylist()] == [None, 2, None]
