"""Placeholders of Debezium: each form of each connector, in each format and nesting, makes exactly its record bad.

The forms are those of Debezium's sources: PostgreSQL's UnchangedToastedPlaceholder with its array markers, and the
value converters of Oracle, SQL Server and MySQL/MariaDB (`convertString`, and `convertBinary` in each
binary.handling.mode). To read them again: https://github.com/debezium/debezium, `unavailable.value.placeholder`.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message_factory import GetMessageClass

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.formats.placeholder import Placeholder
from spark_connector.formats.protobuf_descriptors import message_of
from spark_connector.formats.record_decoder import RecordDecoder
from spark_connector.formats.schema_text import parse_schema_text
from spark_connector.formats.unavailable import PlaceholderFinder, name_uuid
from spark_connector.formats.value_format import ColumnFormat, ParseMode, ProtobufSchema, ReadFormats
from tests.support.protobuf_cases import add, add_map, file_with, schema_with

TEXT = "__debezium_unavailable_value"
DATA = TEXT.encode()
BYTES = list(DATA)  # all below 128
UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""What Java's UUID.nameUUIDFromBytes(TEXT.getBytes()) prints."""
B64 = base64.b64encode(DATA).decode()
SCALED = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
BIG = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def array(of: Any) -> Any:
    return {"type": "array", "items": of}


# The connector's column: DDL for JSON, Avro's type, Protobuf's field, the placeholder in JSON, in Avro, another value.
FORMS: dict[str, tuple[str, Any, str, Any, Any, Any]] = {
    "text, json, numeric as string": ("STRING", "string", "string", TEXT, TEXT, "x"),
    "bytea, blob": ("BINARY", "bytes", "bytes", B64, DATA, b"x"),
    "binary(40)": (
        "BINARY",
        "bytes",
        "bytes",
        base64.b64encode(DATA + bytes(12)).decode(),
        DATA + bytes(12),
        DATA + b"\0x",
    ),
    "blob as base64": ("STRING", "string", "string", B64, B64, B64[:-1]),
    "blob as hex": ("STRING", "string", "string", DATA.hex(), DATA.hex(), DATA.hex()[1:]),
    "bytea read as text": ("STRING", "string", "string", B64, B64, ""),
    "hstore as json": ("STRING", "string", "string", f'{{"{TEXT}":"{TEXT}"}}', f'{{"{TEXT}":"{TEXT}"}}', "{}"),
    "hstore": ("MAP<STRING,STRING>", {"type": "map", "values": "string"}, "map", {TEXT: TEXT}, {TEXT: TEXT}, {"a": ""}),
    "text[]": ("ARRAY<STRING>", array("string"), "string[]", [TEXT], [TEXT], ["x", ""]),
    "uuid[]": ("ARRAY<STRING>", array("string"), "string[]", [UUID], [UUID], ["x"]),
    "bytea[]": ("ARRAY<BINARY>", array("bytes"), "bytes[]", [B64], [DATA], [b"_"] * 27),
    "int[], date[]": ("ARRAY<INT>", array("int"), "int32[]", BYTES, BYTES, [*BYTES[:-1], 0]),
    "int2[]": ("ARRAY<SMALLINT>", array("int"), "sint32[]", BYTES, BYTES, BYTES[:-1]),
    "bigint[]": ("ARRAY<BIGINT>", array("long"), "int64[]", BYTES, BYTES, [*BYTES, 1]),
    "float4[]": ("ARRAY<FLOAT>", array("float"), "float[]", BYTES, BYTES, []),
    "float8[], numeric[] as double": ("ARRAY<DOUBLE>", array("double"), "double[]", BYTES, BYTES, [95.0] * 28),
    "connect dates": ("ARRAY<STRING>", array({"type": "int", "logicalType": "date"}), "", None, BYTES, [0]),
    "connect times": ("", array({"type": "long", "logicalType": "timestamp-millis"}), "", None, BYTES, [0]),
    "numeric[]": ("", array(BIG), "", None, [Decimal(b).scaleb(-2) for b in BYTES], [Decimal("0.95")] * 28),
    "numeric[] of any scale": (
        "ARRAY<STRUCT<scale: INT, value: BINARY>>",
        array({"type": "record", "name": "V", "fields": SCALED}),
        "",
        [{"scale": 0, "value": base64.b64encode(bytes([b])).decode()} for b in BYTES],
        [{"scale": 0, "value": bytes([b])} for b in BYTES],
        [{"scale": 0, "value": b"_"}] * 28,
    ),
    "int[] read as text": ("STRING", "", "", BYTES, None, [1]),
    "text[] read as text": ("STRING", "", "", [TEXT], None, ["x"]),
    "map read as text": ("STRING", "", "", {TEXT: TEXT}, None, {"x": TEXT + "!"}),
}
NESTINGS = ("plain", "struct", "elements", "map values")
PATHS = {"plain": "c", "struct": "after.c", "elements": "list[].c", "map values": "map.c"}


class Collected:
    """The bad records of a decoder."""

    needs = ("offset",)
    is_quiet = True

    def __init__(self) -> None:
        self.bad: dict[int, str] = {}

    def look(self, *_decoded: object) -> None:
        pass

    def write(self, tp: TopicPartition, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        self.bad.update(zip(records["offset"].to_pylist(), reasons, strict=True))


def bad_of(
    value: ColumnFormat,
    raw: list[bytes | None],
    placeholder: Placeholder | None,
    mode: ParseMode = ParseMode.PERMISSIVE,
) -> tuple[dict[int, str], pa.RecordBatch]:
    """(the bad records and why, the decoded batch)"""
    source = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    collected = Collected()
    formats = ReadFormats(value=value, unavailable=placeholder, mode=mode)
    decoder = RecordDecoder(formats, source, TopicPartition("t", 0), collected)
    batch = pa.RecordBatch.from_arrays([pa.array(raw, pa.binary()), pa.array(range(len(raw)))], schema=source)
    return collected.bad, decoder.decode(batch)


def nested(nesting: str, value: Any) -> dict[str, Any]:
    row = {"id": 1, "c": value}
    return {
        "plain": row,
        "struct": {"id": 1, "after": row},
        "elements": {"id": 1, "list": [{"id": 2, "c": None}, row]},
        "map values": {"id": 1, "map": {"k": row}},
    }[nesting]


def check(value: ColumnFormat, raw: list[bytes], path: str) -> None:
    """Of `raw` the second is a placeholder."""
    rows = [*raw, None, raw[0]]
    bad, batch = bad_of(value, rows, Placeholder())
    assert list(bad) == [1], bad
    assert bad[1].startswith(f"value: field {path} does not have its value"), bad
    assert batch["value"].null_count == 2
    assert batch["_corrupt_record"].to_pylist() == [None, raw[1], None, None]
    assert len(bad_of(value, rows, Placeholder(), ParseMode.DROPMALFORMED)[1]) == 3
    assert bad_of(value, rows, None)[0] == {}
    assert bad_of(value, rows, Placeholder("another"))[0] == {}
    read_elsewhere = Placeholder(fields=(("value", (("id",),)),))
    assert bad_of(value, rows, read_elsewhere)[0] == {}


def json_ready(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [json_ready(one) for one in value]
    return {key: json_ready(one) for key, one in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form[0] and form[3] is not None])
def test_in_json(form: str, nesting: str) -> None:
    ddl, _, _, placeholder, _, other = FORMS[form]
    row = f"id INT, c {ddl}"
    schemas = {
        "plain": row,
        "struct": f"id INT, after STRUCT<{row}>",
        "elements": f"id INT, list ARRAY<STRUCT<{row}>>",
        "map values": f"id INT, map MAP<STRING,STRUCT<{row}>>",
    }
    raw = [json.dumps(nested(nesting, json_ready(one))).encode() for one in (other, placeholder)]
    check(ColumnFormat("json", parse_schema_text(schemas[nesting], avro=False)), raw, path_of(form, nesting))


def path_of(form: str, nesting: str) -> str:
    return PATHS[nesting] + ("[]" if form in ("text[]", "uuid[]", "bytea[]") else "")


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form[1] and form[4] is not None])
def test_in_avro(form: str, nesting: str) -> None:
    _, kind, _, _, placeholder, other = FORMS[form]

    def record(name: str, *more: dict[str, Any]) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": "id", "type": "int"}, *more]}

    row = record("Row", {"name": "c", "type": ["null", kind]})
    schema = {
        "plain": row,
        "struct": record("Event", {"name": "after", "type": row}),
        "elements": record("Event", {"name": "list", "type": array(row)}),
        "map values": record("Event", {"name": "map", "type": {"type": "map", "values": row}}),
    }[nesting]
    raw = []
    for one in (other, placeholder):
        made = io.BytesIO()
        fastavro.schemaless_writer(made, fastavro.parse_schema(schema), nested(nesting, one))
        raw.append(made.getvalue())
    check(ColumnFormat("avro", parse_schema_text(json.dumps(schema), avro=True)), raw, path_of(form, nesting))


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form[2]])
def test_in_protobuf(form: str, nesting: str) -> None:
    _, _, kind, _, placeholder, other = FORMS[form]
    schema = messages(kind)
    made = GetMessageClass(message_of(schema))
    raw = []
    for one in (other, placeholder):
        value = nested(nesting, one)
        if nesting == "elements":
            del value["list"][0]["c"]
        raw.append(made(**value).SerializeToString())
    check(ColumnFormat("protobuf", schema), raw, path_of(form, nesting))


def messages(kind: str) -> ProtobufSchema:
    row, event = DescriptorProto(name="Row"), DescriptorProto(name="Event")
    for message in (row, event):
        add(message, "id", 1, "int32")
        if kind == "map":
            add_map(message, "c", 2, "string", "string", f"t.{message.name}")
        else:
            add(message, "c", 2, kind.removesuffix("[]"), repeated=kind.endswith("[]"))
    add(event, "after", 3, "t.Row")
    add(event, "list", 4, "t.Row", repeated=True)
    add_map(event, "map", 5, "string", "t.Row", "t.Event")
    return schema_with(file_with(row, event), message="Event")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gone", "gone"),
        ("hex:DEADbeef00", bytes.fromhex("deadbeef00")),
        ("hex:DEADbeef00", "hex:DEADbeef00"),
        ("hex:DEADbeef00", bytes.fromhex("deadbeef00").decode("utf-8", "replace")),
        ("hex:DEADbeef00", [-34, -83, -66, -17, 0]),
        ("hex:DEADbeef00", "[-34,-83,-66,-17,0]"),
        ("ünavail", ["c484dcad-0166-36cd-8513-0563da0e8e6e"]),  # as Java prints it
        ("ünavail", {"ünavail": "ünavail"}),
    ],
)
def test_another_placeholder(text: str, value: Any) -> None:
    kind = pa.map_(pa.string(), pa.string()) if isinstance(value, dict) else pa.infer_type([value])
    column = pa.array([None, list(value.items()) if isinstance(value, dict) else value, None], kind)
    placeholder = Placeholder.parse(text)
    assert placeholder is not None
    assert list(PlaceholderFinder(placeholder, kind, "c").find(column)) == [1]
    assert PlaceholderFinder(Placeholder(), kind, "c").find(column) == {}


def test_what_is_no_placeholder() -> None:
    yes = pa.array([[True] * len(DATA)])  # Debezium has no form for arrays of booleans, and a person may well have it
    assert PlaceholderFinder(Placeholder(), yes.type, "c").find(yes) == {}
    as_text = pa.array([json.dumps([True] * len(DATA), separators=(",", ":"))])
    assert PlaceholderFinder(Placeholder(), as_text.type, "c").find(as_text) == {}
    assert Placeholder.parse("") is None
    assert name_uuid(bytes.fromhex("deadbeef00e28241")) == "a729f0c7-1a1a-3b31-9c51-d0e1a762c496"  # Java's
    with pytest.raises(ConfigError, match="must be a text, or bytes like hex:DEADBEEF, not 'hex:xyz'"):
        Placeholder.parse("hex:xyz")


def test_a_value_that_is_one_text_has_no_field_to_name() -> None:
    bad, _ = bad_of(ColumnFormat("string"), [b"x", DATA], Placeholder())
    assert list(bad) == [1]
    assert bad[1].startswith("value: it does not have its value, which the update has not changed")


def test_slices_and_what_nulls_hide() -> None:
    """A batch may be a slice of another, and a null may have anything behind it."""
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 2], pa.int32()), pa.array([TEXT, TEXT]), mask=pa.array([True, False, False])
    )
    finder = PlaceholderFinder(Placeholder(), hidden.type, "c")
    assert list(finder.find(hidden)) == [1]
    assert list(finder.find(hidden[1:])) == [0]
    assert finder.find(hidden[2:]) == {}
    pairs = pa.array([[("a", "b")], [(TEXT, TEXT)], None, []], pa.map_(pa.string(), pa.string()))
    finder = PlaceholderFinder(Placeholder(), pairs.type, "c")
    assert [list(finder.find(pairs[start:])) for start in range(4)] == [[1], [0], [], []]
    numbers = pa.array([[1], BYTES, None, [*BYTES, 1], BYTES])
    assert list(PlaceholderFinder(Placeholder(), numbers.type, "c").find(numbers[1:])) == [0, 3]
