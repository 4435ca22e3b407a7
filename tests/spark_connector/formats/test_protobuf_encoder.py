"""Protobuf writes: the bytes of Confluent's serializer, the registry's schema, and what is refused."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from broker.errors import ConfigError
from spark_connector.formats.protobuf_decoder import ProtobufDecoder
from spark_connector.formats.protobuf_descriptors import file_of, message_of
from spark_connector.formats.protobuf_encoder import ProtobufEncoder
from spark_connector.formats.record_encoder import column_encoder, loaded
from spark_connector.formats.value_format import ProtobufRules, ProtobufSchema, RegistrySettings, SchemaFile
from spark_connector.formats.write_format import ColumnWrite, SubjectStrategy, WriteFormats
from tests.support.protobuf_cases import add, every_kind, file_with, schema_with
from tests.support.schema_registry import Registry, schema_registry

COLUMNS = pa.struct([("id", pa.int64()), ("carrier", pa.string()), ("leg", pa.struct([("to", pa.string())]))])
INNER = pa.struct([("a", pa.string())])
ROWS: list[dict[str, Any]] = [{"id": 1, "carrier": "UA", "leg": {"to": "ORD"}}, {"id": 0, "carrier": None, "leg": None}]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as one:
        yield one


def flights() -> ProtobufSchema:
    """A second message, with one within it, and no imports."""
    flight = DescriptorProto(name="Flight")
    add(flight, "id", 1, "int64")
    add(flight, "carrier", 2, "string")
    add(flight, "leg", 3, "t.Flight.Leg")
    flight.nested_type.add(name="Leg")
    add(flight.nested_type[0], "to", 1, "string")
    file = file_with(DescriptorProto(name="Other"), flight)
    del file.dependency[:]
    return schema_with(file, message="t.Flight")


def written(registry: Registry, **more: Any) -> list[bytes | None]:
    one = ColumnWrite("protobuf", tuple(field.name for field in COLUMNS), **more)
    formats = loaded(WriteFormats(value=one, registry=RegistrySettings((registry.url,))), "t", pa.schema(list(COLUMNS)))
    assert formats.registry is None
    values: list[bytes | None] = (
        column_encoder(formats.value, COLUMNS).encode(pa.array(ROWS, COLUMNS)).values.to_pylist()
    )
    return values


def by_confluent(registry: Registry, schema: ProtobufSchema) -> list[bytes | None]:
    message = GetMessageClass(message_of(schema))
    config = {"use.deprecated.format": False}
    serializer = ProtobufSerializer(message, SchemaRegistryClient({"url": registry.url}), config)
    rows = [{name: value for name, value in row.items() if value is not None} for row in ROWS]
    return [serializer(message(**row), SerializationContext("t", MessageField.VALUE)) for row in rows]


def test_bytes_are_those_of_confluents_serializer(registry: Registry, tmp_path: Path) -> None:
    """By the latest schema, by its id, and by a file that is looked up."""
    schema = flights()
    theirs = by_confluent(registry, schema)
    (tmp_path / "t.desc").write_bytes(schema.descriptors)
    file = SchemaFile(str(tmp_path / "t.desc"))
    assert written(registry, message="Flight") == theirs
    assert written(registry, message="t.Flight", schema_id="1") == theirs
    assert theirs[1] == b"\0\0\0\0\1\x02\x02"
    registry.register("t-value", base64.b64encode(file_of(schema)).decode(), schemaType="PROTOBUF")
    assert [one and one[5:] for one in written(registry, schema=file, message="Flight")] == [
        one and one[5:] for one in theirs
    ]


def test_a_schema_is_registered_only_if_asked_and_under_its_subject(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "t.desc").write_bytes(flights().descriptors)
    file: dict[str, Any] = {"schema": SchemaFile(str(tmp_path / "t.desc")), "message": "Flight"}
    with pytest.raises(
        ConfigError, match="'valueFormat'=protobuf: the schema is not registered under subject 't-value'"
    ):
        written(registry, **file)
    assert written(registry, **file, auto_register=True, strategy=SubjectStrategy.RECORD)[1] == b"\0\0\0\0\1\x02\x02"
    assert registry.subjects == {"t.Flight": [1]}
    with pytest.raises(ConfigError, match="'autoRegister' needs 'valueSchema': a file of protoc"):
        written(registry, auto_register=True)


def with_imports() -> ProtobufSchema:
    """trip.proto imports leg.proto, and this place.proto and Google's."""
    place = FileDescriptorProto(name="geo/place.proto", package="geo", syntax="proto3")
    place.message_type.add(name="Place")
    add(place.message_type[0], "to", 1, "string")
    leg = FileDescriptorProto(name="leg.proto", package="t", syntax="proto3", dependency=["geo/place.proto"])
    leg.message_type.add(name="Leg")
    add(leg.message_type[0], "place", 1, "geo.Place")
    imports = ["google/protobuf/timestamp.proto", "leg.proto", "geo/place.proto"]
    trip = FileDescriptorProto(name="trip.proto", package="t", syntax="proto3", dependency=imports)
    trip.message_type.add(name="Trip")
    for number, (name, kind) in enumerate({"id": "int64", "carrier": "string", "leg": "geo.Place"}.items(), 1):
        add(trip.message_type[0], name, number, kind)
    add(trip.message_type[0], "legs", 4, "t.Leg")
    return schema_with(place, leg, trip, message="t.Trip")


def test_files_that_are_imported_are_registered_as_by_confluents_serializer(registry: Registry, tmp_path: Path) -> None:
    schema = with_imports()
    (tmp_path / "t.desc").write_bytes(schema.descriptors)
    file: dict[str, Any] = {"schema": SchemaFile(str(tmp_path / "t.desc")), "message": "Trip"}
    with pytest.raises(ConfigError, match="the schema is not registered under subject 'geo/place.proto'"):
        written(registry, **file)
    ours = written(registry, **file, auto_register=True)
    assert registry.subjects == {"geo/place.proto": [1], "leg.proto": [2], "t-value": [3]}
    with schema_registry() as another:
        assert by_confluent(another, schema) == ours
        assert another.subjects == registry.subjects
        assert [another.text(number) for number in (1, 2, 3)] == [registry.text(number) for number in (1, 2, 3)]
        assert written(another, **file) == ours, "what it has registered is found"
        assert another.subjects == registry.subjects
    assert written(registry, message="Trip") == ours


@pytest.mark.parametrize(
    ("column", "kind", "field", "why"),
    [
        (["x"], pa.string(), "one_int32", "column of type string cannot be written as field one_int32, which is int32"),
        ([1], pa.int32(), "all_int32", "written as field all_int32, which is repeated int32"),
        ([1], pa.int32(), "one_inner", "which is t.Inner"),
        ([1.5], pa.float64(), "one_float", "which is float"),
        ([1], pa.int32(), "no", "t.All has no field for column no"),
        ([{"x": 1}], pa.struct([("x", pa.int32())]), "one_inner", "t.Inner has no field for column one_inner.x"),
    ],
)
def test_columns_that_do_not_fit_are_refused(column: list[Any], kind: pa.DataType, field: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ProtobufEncoder(every_kind(), pa.struct([(field, kind)]))


def encoded(kind: pa.DataType, field: str, column: list[Any]) -> Any:
    rows = pa.array([{field: one} for one in column], pa.struct([(field, kind)]))
    return ProtobufEncoder(every_kind(), rows.type).encode(rows)


@pytest.mark.parametrize(
    ("kind", "field", "bad", "good"),
    [
        (pa.int64(), "one_int32", 2**31, 2**31 - 1),
        (pa.int64(), "one_uint32", -1, 2**32 - 1),
        (pa.int32(), "one_uint64", -1, 7),
        (pa.decimal128(20, 0), "one_uint64", Decimal(2**64), Decimal(2**64 - 1)),
        (pa.string(), "one_enum", "PINK", "BLUE"),
        (pa.int32(), "one_enum", 3, -1),
        (pa.list_(pa.int32()), "all_sint32", [1, None], [1, -2]),
        (pa.map_(pa.int32(), INNER), "by_int32", [(1, None)], [(1, {"a": "x"})]),
        (pa.map_(pa.decimal128(20, 0), INNER), "by_uint64", [(Decimal(2**64), {})], [(Decimal(2**64 - 1), {"a": "x"})]),
    ],
)
def test_a_row_that_does_not_fit_is_bad_and_its_neighbours_are_not(
    kind: pa.DataType, field: str, bad: Any, good: Any
) -> None:
    made = encoded(kind, field, [good, bad, None, good])
    assert list(made.bad) == [1]
    assert field in made.bad[1]
    assert made.values[1].as_py() is None
    assert made.values[2].as_py() == b""
    message = GetMessageClass(message_of(every_kind()))
    assert made.values[0] == made.values[3]
    assert message.FromString(made.values[0].as_py()).ListFields()[0][0].name == field


def test_numbers_of_one_width_change_sign_as_spark_shows_them() -> None:
    """from_protobuf shows a large uint32 as a negative int, and to_protobuf takes it back."""
    message = GetMessageClass(message_of(every_kind()))
    assert message.FromString(encoded(pa.int32(), "one_uint32", [-1]).values[0].as_py()).one_uint32 == 2**32 - 1
    assert message.FromString(encoded(pa.int64(), "one_fixed64", [-1]).values[0].as_py()).one_fixed64 == 2**64 - 1


def test_times_keep_their_microseconds() -> None:
    moment = dt.datetime(1969, 12, 31, 23, 59, 58, 999_999, dt.UTC)
    message = GetMessageClass(message_of(every_kind()))
    made = message.FromString(encoded(pa.timestamp("us", "UTC"), "one_timestamp", [moment]).values[0].as_py())
    assert (made.one_timestamp.seconds, made.one_timestamp.nanos) == (-2, 999_999_000)
    span = dt.timedelta(seconds=-1, microseconds=-5)
    made = message.FromString(encoded(pa.duration("us"), "one_duration", [span]).values[0].as_py())
    assert (made.one_duration.seconds, made.one_duration.nanos) == (-1, -5000)


def test_of_a_oneof_one_field_is_written() -> None:
    kind = pa.struct([("choice_501", pa.int32()), ("choice_502", pa.string())])
    rows = pa.array([{"choice_501": 0, "choice_502": None}, {"choice_501": 1, "choice_502": "x"}], kind)
    made = ProtobufEncoder(every_kind(), kind).encode(rows)
    assert made.values.to_pylist() == [b"\xa8\x1f\x00", None]
    assert made.bad == {1: "several fields of oneof choice are set"}


def test_required_fields_need_a_column_and_get_their_default_for_null() -> None:
    whole = DescriptorProto(name="M")
    add(whole, "a", 1, "int32", default_value="7").label = FieldDescriptorProto.LABEL_REQUIRED
    add(whole, "b", 2, "int32")
    schema = schema_with(file_with(whole, syntax="proto2"), message="M")
    with pytest.raises(ConfigError, match="field a is required, and no column has its name"):
        ProtobufEncoder(schema, pa.struct([("b", pa.int32())]))
    kind = pa.struct([("A", pa.int32()), ("b", pa.int32())])
    made = ProtobufEncoder(schema, kind).encode(pa.array([{"A": None, "b": None}, {"A": 1, "b": 0}, None], kind))
    assert made.values.to_pylist() == [b"\x08\x07", b"\x08\x01\x10\x00", None]


@pytest.mark.parametrize("inner", [False, True], ids=["scalar", "message"])
def test_a_required_field_that_a_row_cannot_have_is_no_message_without_it(inner: bool) -> None:
    whole, part = DescriptorProto(name="M"), DescriptorProto(name="Part")
    add(part, "x", 1, "int32")
    add(whole, "a", 1, "t.Part" if inner else "int32").label = FieldDescriptorProto.LABEL_REQUIRED
    schema = schema_with(file_with(whole, part, syntax="proto2"), message="M")
    with pytest.raises(ConfigError, match="field a is required, and its column has no type: cast it"):
        ProtobufEncoder(schema, pa.struct([("a", pa.null())]))
    if inner:
        rows = pa.array([{"a": None}, {"a": {"x": 1}}], pa.struct([("a", pa.struct([("x", pa.int32())]))]))
        made = ProtobufEncoder(schema, rows.type).encode(rows)
        assert made.bad == {0: "field a is null, but it is required"}
        assert made.values.to_pylist() == [None, b"\x0a\x02\x08\x01"]


def test_text_that_is_no_utf8_is_written_as_java_writes_it() -> None:
    """Protobuf's runtimes refuse a message with other bytes in a string."""
    raw = pa.array([b"a\xffb", b"\xed\xa0\x80", "é".encode()], pa.binary())
    rows = pa.StructArray.from_arrays([raw.view(pa.string())], names=["one_string"])
    made = ProtobufEncoder(every_kind(), rows.type).encode(rows)
    message = GetMessageClass(message_of(every_kind()))
    found = [message.FromString(one).one_string for one in made.values.to_pylist()]
    assert found == ["a\ufffdb", "\ufffd", "é"]
    symbols = pa.StructArray.from_arrays([raw.view(pa.string())], names=["one_enum"])
    assert list(ProtobufEncoder(every_kind(), symbols.type).encode(symbols).bad) == [0, 1, 2]


def test_columns_of_nulls_and_hidden_values_are_not_written() -> None:
    inner = pa.array([{"c": "PINK"}, {"c": "GREEN"}], pa.struct([("c", pa.string())]))
    hidden = pa.Array.from_buffers(inner.type, 2, [pa.py_buffer(b"\x02")], children=[inner.field(0)])
    rows = pa.StructArray.from_arrays([hidden, pa.nulls(2)], names=["one_inner", "all_int32"])
    made = ProtobufEncoder(every_kind(), rows.type).encode(rows)
    assert made.bad == {}
    assert made.values[0].as_py() == b""
    assert GetMessageClass(message_of(every_kind())).FromString(made.values[1].as_py()).one_inner.c == 5


def test_a_file_that_many_import_is_registered_once(registry: Registry, tmp_path: Path) -> None:
    """Each of eight files imports the next two."""
    files = []
    for level in range(8):
        below = [f"f{other}.proto" for other in (level - 1, level - 2) if other >= 0]
        file = FileDescriptorProto(name=f"f{level}.proto", package="t", syntax="proto3", dependency=below)
        message = file.message_type.add(name=f"M{level}")
        for number, one in enumerate(below, 1):
            add(message, f"f{number}", number, f"t.M{one[1]}")
        add(message, "id", 9, "int64")
        files.append(file)
    schema = schema_with(*files, message="t.M7")
    (tmp_path / "t.desc").write_bytes(schema.descriptors)
    column = ColumnWrite("protobuf", ("id",), SchemaFile(str(tmp_path / "t.desc")), message="M7", auto_register=True)
    formats = WriteFormats(value=column, registry=RegistrySettings((registry.url,)))
    registry.asked.clear()
    loaded(formats, "t", pa.schema([("id", pa.int64())]))
    assert list(registry.subjects) == [*(f"f{level}.proto" for level in range(7)), "t-value"]
    assert registry.asked.count("/subjects/f0.proto/versions") == 1
    assert registry.asked.count("/subjects/f0.proto") == 2, "whether it is there, and which version it is"


def test_messages_without_fields_are_written_back_as_they_were_read() -> None:
    """As `retain.empty.message.types` reads them; the judge is protobuf's own runtime."""
    whole, nothing = DescriptorProto(name="M"), DescriptorProto(name="Nothing")
    add(whole, "a", 1, "t.Nothing")
    add(whole, "all", 2, "t.Nothing").label = FieldDescriptorProto.LABEL_REPEATED
    schema = schema_with(file_with(whole, nothing), message="M")
    made = GetMessageClass(message_of(schema))
    messages = [made(), made(a={}), made(all=[{}, {}])]
    written = [message.SerializeToString() for message in messages]
    read = ProtobufDecoder(schema, None, ProtobufRules(keeps_empty=True)).decode(pa.array(written))
    assert read.bad == {}
    back = ProtobufEncoder(schema, read.column.type).encode(read.column)
    assert (back.values.to_pylist(), back.bad) == (written, {})
    dummy = pa.struct([("a", pa.struct([("__dummy_field_in_empty_struct", pa.string())]))])
    filled = pa.array([{"a": {"__dummy_field_in_empty_struct": "x"}}], dummy)
    assert ProtobufEncoder(schema, dummy).encode(filled).bad == {
        0: "a.__dummy_field_in_empty_struct is not null, but the message has no field for it"
    }
