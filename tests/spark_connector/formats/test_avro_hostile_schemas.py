"""Avro schemas that ask for much work in few bytes: records nested by name, and types of no bytes.

Who may register a schema, or write a value, decides what a reader passes over; the value's size bounds the work.
"""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.records import native
from spark_connector.formats.avro_batches import BatchProgram, _Op
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.frames import confluents
from spark_connector.formats.value_format import AvroSchema

READER = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
LEAVES: list[Any] = ["null", "boolean", "int", "string", "fixed0", "fixed2"]


@st.composite
def nested(draw: st.DrawFn, levels: int = 4) -> list[Any]:
    """Definitions of named types, each made of those before it; the last is the outermost."""
    made: list[Any] = [{"type": "fixed", "name": f"fixed{size}", "size": size} for size in (0, 2)]
    for level in range(draw(st.integers(1, levels))):
        below = [f"R{level - 1}"] * 3 if level else []
        kinds = st.sampled_from([*LEAVES, *below])
        wrapped = kinds.flatmap(
            lambda one: (
                st.sampled_from([one] * 4 + [["boolean", "R0"] if one == "R0" else ["null", "int"]])
                | st.sampled_from([{"type": "array", "items": one}, {"type": "map", "values": one}])
            )
        )
        types = draw(st.lists(wrapped, max_size=3))
        fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(types)]
        made.append({"type": "record", "name": f"R{level}", "fields": fields})
    return made


def writer_of(definitions: list[Any]) -> dict[str, Any]:
    """A record of an id, and of all types; each is defined where it is first used, but never as the last of them."""
    fields = [{"name": f"x{number}", "type": ["null", one]} for number, one in enumerate(definitions)]
    last = {"name": "x", "type": definitions[-1]["name"]}
    return {"type": "record", "name": "Row", "fields": [*fields, last, {"name": "id", "type": "int"}]}


def drawn_value(draw: Any, kind: Any, known: dict[str, Any]) -> Any:
    kind = known.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(kind, list):
        index = draw(st.integers(0, len(kind) - 1))
        return None if kind[index] == "null" else drawn_value(draw, kind[index], known)
    if isinstance(kind, dict):
        if kind["type"] == "record":
            return {one["name"]: drawn_value(draw, one["type"], known) for one in kind["fields"]}
        if kind["type"] == "fixed":
            return b"x" * kind["size"]
        items = [
            drawn_value(draw, kind.get("items", kind.get("values")), known) for _ in range(draw(st.integers(0, 2)))
        ]
        return items if kind["type"] == "array" else {str(number): one for number, one in enumerate(items)}
    return {"null": None, "boolean": True, "int": 70, "string": "é"}[kind]


class Writers:
    """A registry of one schema."""

    def __init__(self, schema: Any) -> None:
        self._schema = AvroSchema(json.dumps(schema))

    framing = staticmethod(confluents)

    def schema(self, _: int | str, /) -> AvroSchema:
        return self._schema


def decoded(writer: Any, values: list[bytes]) -> Any:
    framed = [b"\0\0\0\0\1" + one for one in values]
    made = AvroDecoder(AvroSchema(json.dumps(READER)), Writers(writer)).decode(pa.array(framed, pa.binary()))
    return made.column.to_pylist(), made.bad


@settings(max_examples=20)
@given(st.data(), st.lists(st.binary(max_size=30), max_size=4))
def test_what_is_passed_over_is_passed_over_alike(data: st.DataObject, hostile: list[bytes]) -> None:
    """The judge is fastavro, which reads it all."""
    definitions = data.draw(nested())
    writer, known = writer_of(definitions), {one["name"]: one for one in definitions}
    parsed, values = fastavro.parse_schema(writer), []
    for number in range(3):
        row = {one["name"]: drawn_value(data.draw, one["type"], known) for one in writer["fields"][:-1]}
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed, {**row, "id": number})
        values.append(sink.getvalue())
        judged: Any = fastavro.schemaless_reader(io.BytesIO(values[-1]), parsed, None)
        assert judged["id"] == number
    column, bad = decoded(writer, values)
    assert (column, bad) == ([{"id": number} for number in range(3)], {})
    cut = [one[:at] for one in values for at in range(0, len(one), 3)]
    ours = decoded(writer, [*values, *cut, *hostile])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "kernel", None)
        assert decoded(writer, [*values, *cut, *hostile]) == ours


@settings(max_examples=20)
@given(nested(levels=20))
def test_what_is_passed_over_takes_a_byte_or_has_two_parts_that_do(definitions: list[Any]) -> None:
    """So the nodes that are visited are no more than three for a byte of the value."""
    writer, reader = (parse_avro(AvroSchema(json.dumps(one))) for one in (writer_of(definitions), READER))
    code = BatchProgram(resolve(writer, reader), column_of(reader))._code.tolist()
    at = 0
    while at < len(code):
        op, _, _, count = code[at : at + 4]
        operands = code[at + 4 : at + 4 + count]
        if op == _Op.PASS_RECORD:
            assert count > 1
            assert all((code[one], code[one + 2]) != (_Op.PASS_FIXED, 0) for one in operands)
        at += 4 + count


def doubled(levels: int, leaf: Any) -> list[Any]:
    """Records of two fields of the record below."""
    made = [{"type": "record", "name": "R0", "fields": [{"name": "a", "type": leaf}] if leaf else []}]
    for level in range(1, levels):
        fields = [{"name": name, "type": f"R{level - 1}"} for name in "ab"]
        made.append({"type": "record", "name": f"R{level}", "fields": fields})
    return made


NULLS = {"type": "array", "items": "null"}
MANY = b"\x80\x80\x80\x80\x80\x80\x40"  # 2^40 items
ID = b"\x0e"
CASES: dict[str, tuple[Any, bytes, bool]] = {
    "records of no bytes": (doubled(60, None), ID, True),
    "records of nulls": (doubled(60, "null"), ID, True),
    "items of no bytes": ([*doubled(60, None), {"type": "array", "items": "R59"}], b"\xa0\x1f\0" + ID, True),
    "few nulls": ([NULLS], b"\xa0\x1f\0" + ID, True),
    "many nulls": ([NULLS], MANY + b"\0" + ID, False),
    "many nulls in many blocks": ([NULLS], b"\xfe\xff\xff\xff\x0f" * 2 + b"\0" + ID, False),
    "many items": ([{"type": "array", "items": "int"}], MANY + b"\0" + ID, False),
    "many entries": ([{"type": "map", "values": "null"}], MANY + b"\0" + ID, False),
    "records that take too many bytes": (doubled(60, "boolean"), b"\1" * 1000 + ID, False),
}
"""Definitions of types, of which a field has the last; a value; and whether it is good."""

_SCRIPT = """
import json, pickle, resource, sys
import pyarrow as pa
from broker.records import native
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.frames import confluents
from spark_connector.formats.value_format import AvroSchema
class Writers:
    framing = staticmethod(confluents)
    def __init__(self, schema):
        self.schema = lambda _: AvroSchema(schema)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
by, reader, cases = pickle.load(sys.stdin.buffer)
if by == "Python":
    native.kernel = None
for name, writer, raw in cases:
    raw = bytes([0, 0, 0, 0, 1]) + raw
    decoded = AvroDecoder(AvroSchema(reader), Writers(writer)).decode(pa.array([raw] * 50 + [raw + bytes(1)]))
    print(json.dumps([name, decoded.column[0].as_py(), len(decoded.bad)]), flush=True)
"""


def only_last(definitions: list[Any]) -> dict[str, Any]:
    """A record with a field of the last type; the others are defined in a union that no value has."""
    named = [one for one in definitions if "name" in one]
    last = definitions[-1]
    fields = [
        {"name": "u", "type": {"type": "map", "values": ["null", *named]}},
        {"name": "x", "type": last.get("name", last)},
        {"name": "id", "type": "int"},
    ]
    return {"type": "record", "name": "Row", "fields": fields}


@pytest.mark.parametrize("by", ["C", "Python"])
def test_few_bytes_are_little_work(by: str) -> None:
    """In a process of its own, because nothing ends such a loop in C. Each value begins with an empty map."""
    cases = [(name, json.dumps(only_last(types)), b"\0" + raw) for name, (types, raw, _) in CASES.items()]
    given = pickle.dumps((by, json.dumps(READER), cases))
    done = subprocess.run([sys.executable, "-c", _SCRIPT], input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found == [[name, {"id": 7} if good else None, 1 if good else 51] for name, (_, _, good) in CASES.items()]
