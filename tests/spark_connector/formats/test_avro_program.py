"""Avro read by plain Python: as fastavro reads it with the writer's schema, and no value may end the process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.avro_columns import column_of, members
from spark_connector.formats.avro_program import Program
from spark_connector.formats.avro_resolver import Step, resolve
from spark_connector.formats.avro_schema import AvroType, Decimal, parse_avro
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import AvroSchema
from tests.support.avro_cases import Case, cases

BAD = "bad"


class _Program(Program):
    def __init__(self, step: Step, kind: pa.DataType) -> None:
        super().__init__(step, kind)
        self.kind = kind


def program(writer: str, reader: str) -> _Program | None:
    try:
        ours = parse_avro(AvroSchema(reader))
        kind = column_of(ours, 2)
        return _Program(resolve(parse_avro(AvroSchema(writer)), ours), kind)
    except ConfigError:
        return None


def read(made: _Program, raw: bytes) -> Any:
    """The value as a column would show it, or why it is bad."""
    try:
        return pa.array([made.read(raw, 0)], made.kind).to_pylist()
    except (BadValue, pa.ArrowException, OverflowError) as error:
        return str(error)


def by_fastavro(schema: Any, kind: pa.DataType, raw: bytes) -> Any:
    """The same of fastavro, with all of its reasons alike."""
    stream = io.BytesIO(raw)
    try:
        value = fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # of all kinds
        return BAD
    try:
        return BAD if stream.tell() < len(raw) else pa.array([value], kind).to_pylist()
    except (pa.ArrowException, OverflowError):
        return BAD


def shows_as_is(one: AvroType, above: tuple[AvroType, ...] = ()) -> bool:
    """Whether a column has what fastavro gives: no struct for a union, and nothing left out of a record within itself.
    A decimal is an object of its own there, with fewer digits and other rules of what is none."""
    within = [*one.branches, *(field.type for field in one.fields), *([] if one.item is None else [one.item])]
    is_plain = one not in above and not isinstance(one.logical, Decimal) and one.other_logical == ""
    return is_plain and not members(one) and all(shows_as_is(inner, (*above, one)) for inner in within)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_values_are_read_as_by_fastavro(case: Case) -> None:
    made = program(case.writer, case.writer)
    if made is None or not shows_as_is(parse_avro(AvroSchema(case.writer))):
        return
    if '"decimal"' in case.writer:  # one that Avro says to ignore, as of no digits: fastavro reads nothing by it
        return
    try:
        schema = fastavro.parse_schema(json.loads(case.writer))
    except Exception:  # it refuses what Avro says to ignore
        return
    for raw in case.values:
        for one in (raw, raw + b"\0", *(raw[:end] for end in range(len(raw)))):
            found = read(made, one)
            assert (BAD if isinstance(found, str) else found) == by_fastavro(schema, made.kind, one)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.binary(max_size=60))
def test_hostile_bytes_are_bad_or_a_value(case: Case, raw: bytes) -> None:
    made = program(case.writer, case.reader)
    if made is not None:
        read(made, raw)


def test_values_of_any_depth_do_not_end_the_process() -> None:
    node = {
        "type": "record",
        "name": "N",
        "fields": [{"name": "n", "type": ["null", "N"]}, {"name": "a", "type": "int"}],
    }
    flat = {"type": "record", "name": "N", "fields": [{"name": "a", "type": "int"}]}
    script = f"""
import json, pyarrow as pa
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.value_format import AvroSchema
from spark_connector.formats.frames import confluents
class Registry:
    framing = staticmethod(confluents)
    def schema(self, _):
        return AvroSchema({json.dumps(json.dumps(node))})
deep = bytes([0, 0, 0, 0, 1]) + bytes([2]) * 200_000
for reader in ({json.dumps(json.dumps(flat))}, {json.dumps(json.dumps(node))}):
    decoder = AvroDecoder(AvroSchema(reader), Registry(), 2)
    decoded = decoder.decode(pa.array([deep + bytes([0]) + bytes([4]) * 200_001, deep]))
    print(decoded.column.to_pylist(), decoded.bad)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    bad = {1: "not Avro of the schema: the bytes end too early"}
    assert done.stdout.splitlines() == [f"[{{'a': 2}}, None] {bad}", f"[{{'n': {{'a': 2}}, 'a': 2}}, None] {bad}"]


def test_a_schema_that_doubles_at_every_level_takes_no_time() -> None:
    one: Any = {"type": "record", "name": "T0", "fields": [{"name": "a", "type": "null"}]}
    for level in range(1, 50):
        fields = [{"name": "a", "type": one}, {"name": "b", "type": f"T{level - 1}"}]
        one = {"type": "record", "name": f"T{level}", "fields": fields}
    writer = {"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "array", "items": one}}]}
    made = program(json.dumps(writer), json.dumps({"type": "record", "name": "R", "fields": []}))
    assert made is not None
    assert made.read(b"\6\0", 0) == {}


def test_a_branch_of_no_bytes_that_cannot_be_read_is_not_taken_for_null() -> None:
    empty = {"type": "record", "name": "C", "fields": []}
    writer = {"type": "record", "name": "R", "fields": [{"name": "b", "type": ["null", empty]}]}
    reader = {"type": "record", "name": "R", "fields": [{"name": "b", "type": ["null"]}]}
    made = program(json.dumps(writer), json.dumps(reader))
    assert made is not None
    assert read(made, b"\0") == [{"b": None}]
    assert "record C was written, which cannot be read as" in read(made, b"\2")
