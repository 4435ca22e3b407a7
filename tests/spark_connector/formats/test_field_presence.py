"""Which fields of a schema no record has: found in what was decoded, and by name in JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from spark_connector.formats.field_presence import FieldWatch
from spark_connector.formats.record_decoder import column_decoder
from spark_connector.formats.schema_text import parse_schema_text
from spark_connector.formats.value_format import ColumnFormat, ReadFormats


def watch(ddl: str, *batches: list[bytes]) -> list[str]:
    """The absent fields of values in JSON."""
    value = ColumnFormat("json", parse_schema_text(ddl, avro=False))
    formats, decoder = ReadFormats(value=value), column_decoder(value)
    watch = FieldWatch(formats)
    for batch in batches:
        raw = pa.array([None, *batch, None], pa.binary())[1:]  # a slice, as batches may be
        watch.look("value", raw, decoder.decode(raw).column, decoder)
    return [".".join(path[1:]) for path in watch.seen.absent(formats, {"value": decoder.type})]


def raw(*documents: Any) -> list[bytes]:
    return [json.dumps(one).encode() for one in documents]


@pytest.mark.parametrize(
    ("ddl", "batches", "absent"),
    [
        ("a INT, b STRING", [raw({"a": 1, "b": None})], []),
        ("a INT, b STRING", [raw({"a": 1}), raw({"a": 2})], ["b"]),
        ("a INT, b STRING", [raw({"a": 1}), raw({"b": None})], []),
        ("l ARRAY<STRUCT<x: INT, y: INT>>", [raw({"l": [{"x": 1}]})], ["l.y"]),
        ("a INT, s STRUCT<b: INT>", [raw({"a": 1})], ["s"]),
        ("a INT, `größe` INT", [['{"a": 1, "größe": null}'.encode()]], []),
        ("a INT, `größe` INT", [raw({"a": 1, "größe": None})], []),
        ('a INT, `a"b` INT', [raw({"a": 1, 'a"b': None})], []),
        ("a INT", [[b"{}"]], ["a"]),
        ("a INT", [[]], []),
        ("a INT, late INT", [raw(*[{"a": one} for one in range(9_000)], {"a": 1, "late": None})], []),
    ],
)
def test_fields_that_no_record_has(ddl: str, batches: list[list[bytes]], absent: list[str]) -> None:
    assert watch(ddl, *batches) == absent


def test_two_thousand_fields_that_are_null_cost_little() -> None:
    """Of names that are there the whole text is not read; and RE2 is slow once the states of a pattern are too many."""
    names = [f"a_quite_long_name_of_a_column_{number}" for number in range(2_000)]
    ddl = ", ".join(f"{name} STRING" for name in names)
    begun = time.process_time()
    assert watch(ddl, raw(*[dict.fromkeys(names)] * 20)) == []
    assert time.process_time() - begun < 2
