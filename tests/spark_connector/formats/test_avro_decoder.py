"""Avro to columns: the types of spark-avro, resolution of schemas, and bytes that are none."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.frames import confluents
from spark_connector.formats.schema_registry import UnknownSchema
from spark_connector.formats.value_decoder import Decoded
from spark_connector.formats.value_format import AvroSchema
from tests.support.arrow_values import exact
from tests.support.codec_choice import in_turn

US = pa.timestamp("us", "UTC")


class Schemas:  # stands for a registry
    framing = staticmethod(confluents)

    def __init__(self, schemas: Mapping[int | str, Any]) -> None:
        self._schemas = schemas

    def schema(self, schema_id: int | str) -> AvroSchema:
        if schema_id not in self._schemas:
            raise UnknownSchema(f"HTTP 404 Schema {schema_id} not found")
        return AvroSchema(json.dumps(self._schemas[schema_id]))


def record(*fields: tuple[Any, ...], name: str = "R") -> dict[str, Any]:
    """Of (name, type) or (name, type, default)."""
    made = [{"name": one[0], "type": one[1], **({"default": one[2]} if len(one) > 2 else {})} for one in fields]
    return {"type": "record", "name": name, "fields": made}


def write(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def decoded_by(decoder: AvroDecoder, *values: bytes | None) -> Decoded:
    """Decoded with the kernel and without, which must be the same."""
    found = [decoder.decode(pa.array(values, pa.binary())) for _ in in_turn()]
    assert [(exact(one.column), one.bad) for one in found] == [(exact(found[0].column), found[0].bad)] * len(found)
    return found[0]


def decode(schema: Any, *values: bytes | None) -> Decoded:
    return decoded_by(AvroDecoder(AvroSchema(json.dumps(schema))), *values)


def resolve(writer: Any, reader: Any, value: Any) -> Any:
    """`value` written as `writer` and read as `reader`; "bad"."""
    decoder = AvroDecoder(AvroSchema(json.dumps(reader)), Schemas({7: writer}))
    decoded = decoded_by(decoder, b"\0\0\0\0\7" + write(writer, value))
    return "bad" if decoded.bad else decoded.column[0].as_py()


MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)
INNER = record(("q", "int"), name="com.x.Inner")
NEWER = {**INNER, "name": "com.x.Newer", "aliases": ["Inner"]}


@pytest.mark.parametrize(
    ("avro", "kind", "value", "expected"),
    [
        ("boolean", pa.bool_(), True, True),
        ("int", pa.int32(), -5, -5),
        ("long", pa.int64(), 2**40, 2**40),
        ("float", pa.float32(), 1.5, 1.5),
        ("double", pa.float64(), 1.1, 1.1),
        ("bytes", pa.binary(), b"\xff", b"\xff"),
        ("string", pa.string(), "é", "é"),
        (["null", "int"], pa.int32(), None, None),
        (["int", "null"], pa.int32(), 4, 4),
        (["int", "long"], pa.int64(), 2**40, 2**40),
        (["null", "float", "double"], pa.float64(), 1.1, 1.1),
        ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32()), [1, None], [1, None]),
        ({"type": "map", "values": "string"}, pa.map_(pa.string(), pa.string()), {"a": "b"}, [("a", "b")]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"ab", b"ab"),
        (INNER, pa.struct([("q", pa.int32())]), {"q": 1}, {"q": 1}),
        ({"type": "int", "logicalType": "date"}, pa.date32(), dt.date(2024, 1, 2), dt.date(2024, 1, 2)),
        ({"type": "long", "logicalType": "timestamp-millis"}, US, MOMENT, MOMENT),
        ({"type": "long", "logicalType": "timestamp-micros"}, US, MOMENT, MOMENT),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            pa.timestamp("us"),
            MOMENT.replace(tzinfo=None),
            MOMENT.replace(tzinfo=None),
        ),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32(), dt.time(0, 0, 1), 1000),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            pa.decimal128(6, 2),
            Decimal("-12.34"),
            Decimal("-12.34"),
        ),
        (
            {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 6, "scale": 2},
            pa.decimal128(6, 2),
            Decimal("12.34"),
            Decimal("12.34"),
        ),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), uuid.UUID(int=5), str(uuid.UUID(int=5))),
        (
            ["null", "int", "string", INNER],
            pa.struct([("member0", pa.int32()), ("member1", pa.string()), ("member2", pa.struct([("q", pa.int32())]))]),
            ("com.x.Inner", {"q": 3}),
            {"member0": None, "member1": None, "member2": {"q": 3}},
        ),
    ],
)
def test_types(avro: Any, kind: pa.DataType, value: Any, expected: Any) -> None:
    schema = record(("a", avro), ("z", {"type": "array", "items": avro}) if not named(avro) else ("z", "int"))
    raw = write(schema, {"a": value, "z": [value, value] if not named(avro) else 1})
    decoded = decode(schema, raw, None)
    assert not decoded.bad
    assert decoded.column.type.field("a").type == kind
    row, tombstone = decoded.column.to_pylist()
    assert row == {"a": expected, "z": 1 if named(avro) else [expected, expected]}
    assert tombstone is None


def named(avro: Any) -> bool:
    return "name" in json.dumps(avro)


def test_named_types_may_be_used_again() -> None:
    schema = record(("a", INNER), ("b", ["null", "com.x.Inner"]), ("c", {"type": "map", "values": "com.x.Inner"}))
    raw = write(schema, {"a": {"q": 1}, "b": {"q": 2}, "c": {"x": {"q": 3}}})
    assert decode(schema, raw).column.to_pylist() == [{"a": {"q": 1}, "b": {"q": 2}, "c": [("x", {"q": 3})]}]


def test_a_schema_may_refer_to_others() -> None:
    outer = json.dumps(record(("a", "com.x.Inner")))
    decoder = AvroDecoder(AvroSchema(outer, (json.dumps(INNER),)))
    assert decoder.type == pa.struct([("a", pa.struct([("q", pa.int32())]))])
    with pytest.raises(ConfigError, match=r"com\.x\.Inner"):
        AvroDecoder(AvroSchema(outer))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"type":"record"}', "Not an Avro schema"),
        ("{", "Not an Avro schema"),
        ('"strin"', "Not an Avro schema"),
        ('{"type":"record","name":"R","fields":3}', "Not an Avro schema: 'fields' of 'R' is not a list"),
        ('{"type":"record","name":"R","fields":[{"type":"int"}]}', "a field of record 'R' has no name"),
        ('{"type":"record","name":"R","fields":[{"name":"a"}]}', "field 'a' of record 'R' has no type"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "enum 'E' has 'A' twice"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "the default 'B' of enum 'E'"),
        ('{"type":"enum","name":"E"}', "enum 'E' has no symbols"),
        ('{"type":"fixed","name":"F","size":"4"}', "fixed 'F' needs a size"),
        ('{"type":"fixed","name":"F","size":2147483648}', "fixed 'F' needs a size"),
        ('["int",["null"]]', "a union has a union as its branch"),
        ('["int","int"]', "a union has 'int' twice"),
        ('{"type":"array"}', "array without items"),
        ('{"type":7}', "Not an Avro schema"),
        ("[" * 5000 + "]" * 5000, "Not an Avro schema"),
        (json.dumps(record(("next", ["null", "R"]))), "recursive in R: set the option 'recursiveFieldMaxDepth'"),
        (json.dumps({"type": "array", "items": "null"}), "take no bytes"),
        (json.dumps({"type": "array", "items": record()}), "take no bytes"),
        ('{"type":"bytes","logicalType":"decimal","precision":40,"scale":2}', "38 at most"),
    ],
)
def test_schemas_that_cannot_be_read(schema: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        AvroDecoder(AvroSchema(schema))


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        (record(("a", "int")), record(("a", "int"), ("b", "string", "new")), {"a": 1}, {"a": 1, "b": "new"}),
        (record(("a", "int")), record(("a", "int"), ("b", "bytes", "\u00ff")), {"a": 1}, {"a": 1, "b": b"\xff"}),
        (record(("a", "int")), record(("a", "int"), ("b", ["null", "int"], None)), {"a": 1}, {"a": 1, "b": None}),
        (record(("a", "int")), record(("a", "int"), ("b", "string")), {"a": 1}, "bad"),
        (record(("a", "int"), ("gone", "string")), record(("a", "int")), {"a": 1, "gone": "x"}, {"a": 1}),
        (record(("a", "int")), record(("a", "double")), {"a": 1}, {"a": 1.0}),
        (record(("a", "string")), record(("a", "int")), {"a": "x"}, "bad"),
        (record(("a", "int")), record(("a", ["null", "int"])), {"a": 1}, {"a": 1}),
        (record(("a", ["null", "int"])), record(("a", "int")), {"a": None}, "bad"),
        (record(("a", "int")), record(("a", ["int", "string"])), {"a": 1}, {"a": {"member0": 1, "member1": None}}),
        (
            record(("a", ["null", "int"])),
            record(("a", ["null", "string", "int"])),
            {"a": 1},
            {"a": {"member0": None, "member1": 1}},
        ),
        (
            record(("a", ["int", "string"])),
            record(("a", ["string", "int"])),
            {"a": 1},
            {"a": {"member0": None, "member1": 1}},
        ),
        (record(("a", ["int", "string"])), record(("a", ["null", "string"])), {"a": "x"}, {"a": "x"}),
        (
            record(),
            record(("a", ["string", "int"], "old")),
            {},
            {"a": {"member0": "old", "member1": None}},
        ),
        (
            record(("a", {"type": "long", "logicalType": "timestamp-millis"})),
            record(("a", {"type": "long", "logicalType": "timestamp-millis"}), ("b", "int", 3)),
            {"a": MOMENT},
            {"a": MOMENT, "b": 3},
        ),
    ],
)
def test_evolution(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert resolve(writer, reader, value) == expected


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", ["null", "long", "string"], 7, {"member0": 7, "member1": None}),
        ("int", ["null", "double", "int"], 7, {"member0": None, "member1": 7}),
        (["int", "long", "string"], ["long", "bytes"], "x", {"member0": None, "member1": b"x"}),
        (["int", "long", "string"], ["long", "bytes"], 7, {"member0": 7, "member1": None}),
        ([INNER, "int"], ["long", NEWER], {"q": 1}, {"member0": None, "member1": {"q": 1}}),
        ("long", ["null", "int", "string"], 7, "bad"),
    ],
)
def test_a_type_that_can_be_promoted_or_was_renamed_finds_its_branch_of_a_union(
    writer: Any, reader: Any, value: Any, expected: Any
) -> None:
    found = resolve(record(("f", writer)), record(("f", reader)), {"f": value})
    assert found == (expected if expected == "bad" else {"f": expected})


def test_renamed_fields_are_found_by_alias() -> None:
    reader = record(("new", "int"))
    reader["fields"][0]["aliases"] = ["old"]
    assert resolve(record(("old", "int")), reader, {"old": 4}) == {"new": 4}


def read(writer: Any, reader: Any, raw: bytes, levels: int = -1) -> Any:
    """The bytes of a value, for schemas that fastavro does not write; a str is the reason why it is bad."""
    decoder = AvroDecoder(AvroSchema(json.dumps(reader)), Schemas({7: writer}), levels)
    decoded = decoded_by(decoder, b"\0\0\0\0\7" + raw)
    return decoded.bad.get(0) or decoded.column[0].as_py()


T1 = record(("x", "int", 0), name="db.t1.Envelope")
T2 = record(("y", "string"), name="db.t2.Envelope")
OTHERS = [record(("x", "int", 0), name=f"db.o{n}.Envelope") for n in range(40)]


@pytest.mark.parametrize(
    ("union", "member"),
    [([T1, T2], 1), ([T2, T1], 0), (["null", T1, T2], 1), ([*OTHERS, T2], 40), ([T1, "null", "string", T2, "int"], 2)],
)
def test_a_record_is_the_branch_of_its_full_name(union: list[Any], member: int) -> None:
    """Debezium gives the records of every table the same simple name."""
    raw = write(T2, {"y": "a"})
    found = read(T2, union, raw)
    assert {name: value for name, value in found.items() if value is not None} == {f"member{member}": {"y": "a"}}
    nullable = ["null", *(one for one in union if one != "null")]
    for writer, reader, one in (
        (record(("f", T2)), record(("f", union)), raw),
        (record(("f", ["null", T2])), record(("f", nullable)), b"\2" + raw),
        (record(("f", nullable)), record(("f", nullable)), bytes([2 * (nullable.index(T2))]) + raw),
    ):
        assert read(writer, reader, one)["f"] == found
    items = {"type": "array", "items": union}
    assert read({"type": "array", "items": T2}, items, b"\2" + raw + b"\0") == [found]


def test_a_record_of_another_name_is_the_first_branch_that_it_fits() -> None:
    named_so = record(("y", "string"), name="a.b.Envelope")
    fits = record(("y", "string"), name="Other")
    assert read(T2, [T1, fits], b"\2a")["member0"] == {"x": 0}, (
        "it fits by its default, and the simple name is the same"
    )
    assert read(T2, [fits, named_so], b"\2a") == {"member0": None, "member1": {"y": "a"}}
    assert read(T2, ["int", record(("z", "int"), name="No")], b"\2a") == (
        "record db.t2.Envelope was written, which cannot be read as union of int, record No"
    )


def test_names_of_records_need_not_be_the_same() -> None:
    """`to_avro` calls a record topLevelRecord, and one in its field a topLevelRecord.a."""
    inner = record(("b", "int"), name="topLevelRecord.a")
    writer = record(("a", inner), ("l", {"type": "array", "items": record(("c", "int"), name="topLevelRecord.l")}))
    writer["name"] = "topLevelRecord"
    reader = record(
        ("a", record(("b", "long"), name="com.x.A")), ("l", {"type": "array", "items": INNER | {"name": "L"}})
    )
    reader["fields"][1]["type"]["items"] = record(("c", "int"), name="L")
    assert read(writer, reader, b"\2\2\4\0") == {"a": {"b": 1}, "l": [{"c": 2}]}
    assert read(writer, ["null", reader], b"\2\2\4\0") == {"a": {"b": 1}, "l": [{"c": 2}]}


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize(
    ("avro", "default", "expected"),
    [
        (MONEY, "\0", Decimal("0.00")),
        (MONEY, "\u00ff", Decimal("-0.01")),
        ({**MONEY, "type": "fixed", "name": "D", "size": 5}, "\0\0\0\4\u00d2", Decimal("12.34")),
        ("bytes", "\u00ff", b"\xff"),
        (FIXED, "\u00ff\u0080", b"\xff\x80"),
        ([MONEY, "null"], "\1", Decimal("0.01")),
        ([FIXED, "null"], "\u00e9a", b"\xe9a"),
        (["null", "bytes"], "\u00ff", b"\xff"),
        (["bytes", "int"], "\u00ff", {"member0": b"\xff", "member1": None}),
        (["int", MONEY], "\2", {"member0": None, "member1": Decimal("0.02")}),
        ({"type": "array", "items": "bytes"}, ["\u00ff", ""], [b"\xff", b""]),
        ({"type": "array", "items": MONEY}, ["\3"], [Decimal("0.03")]),
        ({"type": "map", "values": FIXED}, {"k": "ab"}, [("k", b"ab")]),
        (record(("b", "bytes"), ("m", MONEY, "\4"), name="In"), {"b": "\u00fe"}, {"b": b"\xfe", "m": Decimal("0.04")}),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1000, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        ({"type": "int", "logicalType": "date"}, 1, dt.date(1970, 1, 2)),
        ("float", 1, 1.0),
        ("float", "Infinity", math.inf),
        ("float", 1e39, math.inf),
        ("double", "-Infinity", -math.inf),
        ("double", " 1.5e3d", 1500.0),
        ("double", 10**400, math.inf),
        ("long", -1, -1),
    ],
)
def test_a_new_field_has_its_default(avro: Any, default: Any, expected: Any) -> None:
    assert read(record(("id", "long")), record(("id", "long"), ("f", avro, default)), b"\2") == {"id": 1, "f": expected}


def test_the_default_of_a_number_may_be_nan() -> None:
    found = read(record(("id", "long")), record(("id", "long"), ("f", "double", "NaN")), b"\2")
    assert math.isnan(found["f"])


@pytest.mark.parametrize(
    ("avro", "default", "why"),
    [
        ({**MONEY, "precision": 3}, "\1\0\0", "the default of this is wrong: the number has more than 3 digits"),
        (
            "int",
            "5",
            "record R was written without field f, and the default of this is wrong: '5' is not a value of int",
        ),
        ("int", 2**31, "is not a value of int"),
        ("double", "nan", "'nan' is not a value of double"),
        ("double", "\u0661", "is not a value of double"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "is not a value of enum E"),
    ],
)
def test_a_default_that_is_wrong_matters_only_to_records_without_the_field(avro: Any, default: Any, why: str) -> None:
    reader = record(("id", "long"), ("f", avro, default))
    assert why in read(record(("id", "long")), reader, b"\2")
    kind = avro if isinstance(avro, str) else avro["type"]
    value = {"int": b"\4", "bytes": b"\2\1", "enum": b"\0", "double": bytes(8)}[kind]
    assert read(reader, record(("id", "long")), b"\2" + value) == {"id": 1}
    assert isinstance(read(reader, reader, b"\2" + value), dict)


NODE = record(("v", "string"), ("next", ["null", "Node"]), name="Node")
TREE = record(("kids", {"type": "array", "items": "Tree"}), ("by", {"type": "map", "values": "Tree"}), name="Tree")
LONG_LIST = b"\2a\2" * 10_000 + b"\2a\0"


@pytest.mark.parametrize(
    ("avro", "raw"),
    [
        (NODE, b"\2a\2\2b\0"),
        (NODE, LONG_LIST),
        (TREE, b"\2\0\0\0" + b"\2\2k\0\0\0"),
        ({"type": "array", "items": NODE}, b"\3\x0c\2a\0\2a\0\0"),
        ({**MONEY, "precision": 64}, b"\2\1"),
        ({**MONEY, "precision": 3}, b"\6\1\1\1"),
        (MONEY, b"\0"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\0"),
        ({"type": "array", "items": record(name="E")}, b"\6\0"),
        ({"type": "array", "items": {"type": "array", "items": "null"}}, b"\4\6\0\6\0\0"),
        ({"type": "map", "values": {"type": "array", "items": {**FIXED, "size": 0}}}, b"\2\2k\6\0\0"),
        ("string", b"\2\xff"),
        ({"type": "map", "values": "int"}, b"\2\2\xff\4\0"),
        ({"type": "map", "values": {"type": "array", "items": "null"}}, b"\1\x0a\2\xff\6\0\0"),
        ({"type": "map", "values": NODE}, b"\2\2\xff\2a\0\0"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x0a"),
        (["null", NODE, "int"], b"\2\2a\0"),
    ],
)
def test_what_the_reader_leaves_out_makes_no_record_bad(avro: Any, raw: bytes) -> None:
    writer = record(("id", "long"), ("f", avro), ("z", "int"))
    assert read(writer, record(("id", "long"), ("z", "int")), b"\2" + raw + b"\4") == {"id": 1, "z": 2}
    nested = record(("o", record(("f", avro), ("z", "int"), name="O")), ("end", "int"))
    reader = record(("o", record(("z", "int"), name="O")), ("end", "int"))
    assert read(nested, reader, raw + b"\4\6") == {"o": {"z": 2}, "end": 3}


def test_arrays_of_items_that_take_no_bytes_are_not_read_into_memory() -> None:
    writer = record(("f", {"type": "array", "items": record(name="E")}))
    reader = record(("f", {"type": "array", "items": record(("n", "int", 1), name="E")}))
    many = b"\xfe\xff\xff\xff\xff\xff\xff\x7f\0"
    assert (
        read(writer, reader, many) == "field f: an array of items that take no bytes, so its length cannot be trusted"
    )
    assert read(writer, reader, b"\0") == {"f": []}


@pytest.mark.parametrize(("levels", "expected"), [(1, {"v": "a"}), (2, {"v": "a", "next": {"v": "b"}})])
def test_levels_of_a_record_that_contains_itself(levels: int, expected: Any) -> None:
    """As Spark: what lies deeper is left out."""
    raw = b"\2a\2\2b\2\2c\0"
    assert read(NODE, NODE, raw, levels) == expected
    assert read(NODE, NODE, LONG_LIST, levels)["v"] == "a"
    assert read(
        record(("v", "string"), name="Node"),
        {**NODE, "fields": [NODE["fields"][0], {**NODE["fields"][1], "default": None}]},
        b"\2a",
        2,
    ) == {"v": "a", "next": None}


def test_all_places_where_a_record_may_contain_itself() -> None:
    schema = record(
        ("id", "int"), ("kids", {"type": "array", "items": "Tree"}), ("u", ["null", "int", "Tree"]), name="Tree"
    )
    assert AvroDecoder(AvroSchema(json.dumps(schema)), None, 1).type == pa.struct(
        [("id", pa.int32()), ("u", pa.struct([("member0", pa.int32())]))]
    )
    leaf = b"\4\0\0"
    raw = b"\2" + b"\2" + leaf + b"\0" + b"\4" + leaf
    assert read(schema, schema, raw, 1) == {"id": 1, "u": {"member0": None}}
    two = read(schema, schema, raw, 2)
    assert two["kids"] == [{"id": 2, "u": None}]
    assert two["u"] == {"member0": None, "member1": {"id": 2, "u": None}}


@pytest.mark.parametrize("endless", [record(("r", "R")), record(("a", "int"), ("b", record(("r", "R"), name="B")))])
def test_a_record_that_must_contain_itself_has_no_end(endless: Any) -> None:
    with pytest.raises(ConfigError, match="record 'R' contains itself without an end"):
        AvroDecoder(AvroSchema(json.dumps(endless)), None, 3)
    assert "without an end" in read(endless, record(name="Q"), b"")


@pytest.mark.parametrize(
    "attributes",
    [
        {"precision": 64, "scale": 127},
        {"precision": 4, "scale": 5},
        {"precision": 4, "scale": -1},
        {"precision": "10", "scale": 2},
        {"precision": 10, "scale": "2"},
        {"precision": 10.0},
        {"precision": 0},
        {},
    ],
)
def test_a_logical_type_that_is_invalid_is_ignored(attributes: dict[str, Any]) -> None:
    for avro, raw in (("bytes", b"\4ab"), ("fixed", b"ab")):
        node = {"type": avro, "name": "F", "size": 2, "logicalType": "decimal", **attributes}
        assert read(record(("f", node)), record(("f", node)), raw) == {"f": b"ab"}
    small = {**FIXED, "logicalType": "decimal", "precision": 5}
    assert read(small, small, b"ab") == b"ab"
    for node in ({"type": "string", "logicalType": "date"}, {"type": "string", "logicalType": "timestamp-millis"}):
        assert read(node, node, b"\4ab") == "ab"
    day = {"type": "long", "logicalType": "date"}
    assert read(day, day, b"\2") == 1


@pytest.mark.parametrize(
    ("writer", "reader", "expected"),
    [
        ("bytes", MONEY, Decimal("249.30")),
        ("string", MONEY, Decimal("249.30")),
        (MONEY, "bytes", b"ab"),
        (MONEY, "string", "ab"),
        (MONEY, {**MONEY, "scale": 0, "precision": 5}, Decimal("24930")),
        ({**MONEY, "precision": 64}, MONEY, Decimal("249.30")),
        ("string", "bytes", b"ab"),
        ("bytes", ["null", "int", MONEY], {"member0": None, "member1": Decimal("249.30")}),
        (MONEY, {**MONEY, "precision": 4}, "the number has more than 4 digits"),
    ],
)
def test_bytes_strings_and_decimals_are_read_as_each_other(writer: Any, reader: Any, expected: Any) -> None:
    assert read(writer, reader, b"\4ab") == expected


def test_numbers_are_rounded_once() -> None:
    value = 2**60 + 2**36 + 1  # the double next to it lies in the middle of two floats
    raw = write("long", value)
    assert read("long", "float", raw) == 2.0**60 + 2.0**37
    assert read("long", "double", raw) == float(value)


def test_a_decimal_that_does_not_fit_is_bad_and_names_its_field() -> None:
    schema = record(("a", record(("m", ["null", {**MONEY, "precision": 3}]), name="In")))
    assert read(schema, schema, b"\2\4\3\xe7") == {"a": {"m": Decimal("9.99")}}
    assert read(schema, schema, b"\2\4\3\xe8") == "field a.m: the number has more than 3 digits"
    assert read(schema, schema, b"\2\0") == "field a.m: a decimal of no bytes is no number"


def test_indices_below_zero_are_no_values() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    for schema, raw in ((enum, b"\1"), (["int", "string"], b"\1\2a"), (record(("u", ["null", "int"])), b"\1\2")):
        assert "a branch of a union or a symbol" in read(schema, schema, raw)


def test_a_writer_that_does_not_resolve_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Schemas({7: ["int", "int"]})
    decoder = AvroDecoder(AvroSchema('"int"'), registry)
    asked = []

    def ask(_: Schemas, schema_id: int) -> AvroSchema:
        asked.append(schema_id)
        return AvroSchema('["int","int"]')

    monkeypatch.setattr(Schemas, "schema", ask)
    decoded = decoder.decode(pa.array([b"\0\0\0\0\7\0\2"] * 3, pa.binary()))
    assert asked == [7]
    assert set(decoded.bad.values()) == {
        'schema id 7: Not an Avro schema: a union has \'int\' twice, in: ["int","int"]'
    }


def test_names_may_be_used_before_they_are_defined() -> None:
    """As in Java since Avro 1.12."""
    schema = record(("a", "In"), ("b", record(("q", "int"), name="In")))
    assert read(schema, schema, b"\2\4") == {"a": {"q": 1}, "b": {"q": 2}}


def test_a_time_beyond_microseconds_is_bad_wherever_it_stands() -> None:
    schema = record(("m", {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}))
    good, late = (b"\2\2k" + write("long", value) + b"\0" for value in (5, 2**62))
    decoded = decode(schema, good, late, good)
    assert list(decoded.bad) == [1]
    assert "beyond all timestamps" in decoded.bad[1]
    assert decoded.column[0].as_py() == decoded.column[2].as_py() != {"m": []}


SCHEMA = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("tags", {"type": "array", "items": "string"}),
    ("m", {"type": "map", "values": "double"}),
    ("t", {"type": "long", "logicalType": "timestamp-millis"}),
    ("u", ["int", "bytes"]),
)
GOOD = write(SCHEMA, {"id": 1, "name": "x", "tags": ["a"], "m": {"k": 1.5}, "t": MOMENT, "u": b"q"})


@pytest.mark.parametrize(
    "value", [b"", GOOD[:-1], GOOD + b"\0", b"\xff" * 50, b"\2\2\xff\xff\xff\xff\xff\xff\xff\xff\x7f"]
)
def test_bytes_that_are_no_avro(value: bytes) -> None:
    decoded = decode(SCHEMA, GOOD, value, GOOD)
    assert list(decoded.bad) == [1]
    assert decoded.column[1].as_py() is None
    assert decoded.column[0].as_py() == decoded.column[2].as_py() == decode(SCHEMA, GOOD).column[0].as_py()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_bytes_are_bad_or_a_value(data: st.DataObject) -> None:
    spoiled = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        spoiled = spoiled or bytearray(b"\0")
    decoded = decode(SCHEMA, GOOD, bytes(spoiled), data.draw(st.binary(max_size=30)))
    decoded.column.validate(full=True)
    assert decoded.column[0].as_py()["id"] == 1
    for row in decoded.bad:
        assert decoded.column[row].as_py() is None


def test_the_wire_format_of_registries() -> None:
    registry = Schemas({7: SCHEMA, 8: {"type": "array", "items": "null"}})
    decoder = AvroDecoder(AvroSchema(json.dumps(SCHEMA)), registry)
    values = [b"\0\0\0\0\7" + GOOD, b"\1\0\0\0\7" + GOOD, b"\0\0\0", b"", b"\0\0\0\0\6" + GOOD, b"\0\0\0\0\x08\2", None]
    decoded = decoded_by(decoder, *values)
    assert decoded.column[0].as_py() == decode(SCHEMA, GOOD).column[0].as_py()
    assert list(decoded.bad) == [1, 2, 3, 4, 5]
    assert "wire format" in decoded.bad[1]
    assert decoded.bad[4] == "schema id 6: HTTP 404 Schema 6 not found"
    assert decoded.bad[5] == "array was written, which cannot be read as record R"
