"""Avro's single-object encoding and files as values. fastavro and Avro's library for Java are the judges."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

from broker.errors import ConfigError
from spark_connector.formats import single_object
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.record_decoder import column_decoder, loaded
from spark_connector.formats.record_encoder import RecordEncoder
from spark_connector.formats.record_encoder import loaded as write_loaded
from spark_connector.formats.single_object import canonical_form, single_object_prefix
from spark_connector.formats.value_decoder import Decoded
from spark_connector.formats.value_format import AvroSchema, ColumnFormat, ReadFormats
from spark_connector.formats.write_format import ColumnWrite, WriteFormats
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options
from tests.spark_connector.formats.test_avro_java import AvroJava, java

__all__ = ["java"]

V1 = json.dumps({"type": "record", "name": "R", "namespace": "a.b", "fields": [{"name": "id", "type": "long"}]})
V2 = json.dumps(
    {
        "type": "record",
        "name": "a.b.R",
        "doc": "é",
        "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string", "default": "?", "aliases": ["t"]}],
    }
)
SCHEMAS = [
    V1,
    V2,
    '"null"',
    '"long"',
    '{"type":"string","logicalType":"x"}',
    '{"type":"array","items":{"type":"map","values":["null","int"]}}',
    '{"type":"fixed","name":"F","namespace":"n.s","size":12,"logicalType":"duration"}',
    '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}',
    json.dumps({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}),
    json.dumps(
        {
            "type": "record",
            "name": "x.Outer",
            "fields": [
                {"name": "a", "type": {"type": "record", "name": "In", "fields": []}},
                {"name": "b", "type": {"type": "array", "items": "x.In"}},
                {"name": "c", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
            ],
        }
    ),
]


def test_fingerprints_are_those_of_fastavro() -> None:
    for text in SCHEMAS:
        canonical = to_parsing_canonical_form(fastavro.parse_schema(json.loads(text)))
        assert canonical_form(AvroSchema(text)) == canonical
        theirs = bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
        assert single_object_prefix(AvroSchema(text)) in {b"\xc3\x01" + theirs, b"\xc3\x01" + theirs[::-1]}


def read(one: ColumnFormat, *values: bytes | None) -> Decoded:
    return column_decoder(one).decode(pa.array(values, pa.binary()))


def plain(schema: str, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), value)
    return stream.getvalue()


def single(schema: str, value: Any) -> bytes:
    return single_object_prefix(AvroSchema(schema)) + plain(schema, value)


def container(schema: str, *values: Any, codec: str = "null") -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(json.loads(schema)), values, codec=codec)
    return stream.getvalue()


SINGLE = ColumnFormat("avro", AvroSchema(V2), encoding="single-object", writers=(AvroSchema(V1),))
CONTAINER = ColumnFormat("avro", AvroSchema(V2), encoding="container")


def test_each_value_is_read_by_the_schema_of_its_fingerprint() -> None:
    found = read(SINGLE, single(V2, {"id": 1, "s": "x"}), None, single(V1, {"id": 2}), single(V2, {"id": 3, "s": ""}))
    assert found.column.to_pylist() == [{"id": 1, "s": "x"}, None, {"id": 2, "s": "?"}, {"id": 3, "s": ""}]
    assert not found.bad


def test_what_is_not_single_object_or_of_an_unknown_schema_is_bad() -> None:
    values = [b"", b"\xc3\1", b"\2", b"\xc3\2" + bytes(9), b"\xc3\1" + bytes(9), single(V2, {"id": 1, "s": "x"})[:-1]]
    found = read(SINGLE, *values, single(V1, {"id": 5}))
    assert found.column.to_pylist() == [None] * 6 + [{"id": 5, "s": "?"}]
    assert all("c301 and the fingerprint" in found.bad[row] for row in range(4))
    assert found.bad[4] == (
        "the schema with the fingerprint 0000000000000000: it is none of those that the option of the schema names"
    )


def test_values_that_are_files() -> None:
    values = [
        container(V2, {"id": 1, "s": "x"}),
        None,
        container(V1, {"id": 2}, codec="deflate"),
        container('["null","long"]', 3),
    ]
    found = read(CONTAINER, *values)
    assert found.column.to_pylist() == [{"id": 1, "s": "x"}, None, {"id": 2, "s": "?"}, None]
    assert found.bad[3].startswith("long was written")


def test_files_of_other_than_one_record_and_broken_ones_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_object, "LARGEST", 1 << 20)
    good = container(V2, {"id": 1, "s": "x"})
    values = [
        container(V2, {"id": 1, "s": "x"}, {"id": 2, "s": "y"}),
        container(V2),
        good + good[-16:],
        good[:-1] + bytes([good[-1] ^ 1]),
        container(V2, {"id": 1, "s": "x" * (2 << 20)}, codec="deflate"),
        container(V2, {"id": 1, "s": "x"}, codec="bzip2"),
        b"Obj\1" + b"\xff" * 40,
        b"Obj\1\2\2a",
        *(good[:end] for end in range(0, len(good), 7)),
    ]
    found = read(CONTAINER, *values, good)
    assert list(found.bad) == list(range(len(values)))
    assert "more than one record" in found.bad[0]
    assert "inflated" in found.bad[4]
    assert "the codec bzip2; null and deflate are read" in found.bad[5]
    assert found.column.to_pylist()[-1] == {"id": 1, "s": "x"}


def test_files_of_thousands_of_schemas_take_little_memory() -> None:
    decoder = column_decoder(CONTAINER)
    assert isinstance(decoder, AvroDecoder)
    for n in range(0, 2400, 100):
        values = [container(V1.replace('"id"', f'"id{m}"'), {f"id{m}": 1}) for m in range(n, n + 100)]
        assert len(decoder.decode(pa.array([*values, container(V1, {"id": n})])).bad) == 100
    assert len(decoder._programs) <= 1000
    assert decoder.was_written("id")
    assert not decoder.was_written("s")


def test_java_reads_what_we_write_and_we_what_java_writes(java: AvroJava) -> None:
    avro = java.jvm.org.apache.avro
    one = ColumnWrite("avro", ("id", "s"), AvroSchema(V2), encoding="single-object")
    batch = pa.record_batch({"id": pa.array([7]), "s": pa.array(["né"])})
    formats = write_loaded(WriteFormats(value=one), "t", batch.schema)
    [ours] = RecordEncoder(formats, "t", 0).encode(batch).rows["value"].to_pylist()
    schema = avro.Schema.Parser().parse(V2)
    generic = avro.generic.GenericData.get()
    decoded = avro.message.BinaryMessageDecoder(generic, schema).decode(ours)
    assert str(decoded) == '{"id": 7, "s": "né"}'
    buffer = avro.message.BinaryMessageEncoder(generic, schema).encode(decoded)
    theirs = bytes(buffer.array())[: buffer.remaining()]
    assert theirs == ours
    assert read(SINGLE, theirs).column.to_pylist() == [{"id": 7, "s": "né"}]


OPTIONS = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "valueFormat": "avro"}


def test_several_files_are_named_and_the_first_is_the_schema_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "v1.avsc").write_text(V1)
    (tmp_path / "v2.avsc").write_text(V2)
    both = f"{tmp_path}/v2.avsc, {tmp_path}/v1.avsc"
    given = {**OPTIONS, "valueEncoding": "single-object", "valueSchema": both}
    found = loaded(parse_options(given, Mode.BATCH).formats, ["t"])
    assert found == ReadFormats(value=SINGLE)
    inline = parse_options({**OPTIONS, "valueEncoding": "container", "valueSchema": V2}, Mode.BATCH).formats
    assert inline.value == CONTAINER


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"valueEncoding": "framed", "valueSchema": V1}, "must be binary or single-object or container"),
        (
            {"valueEncoding": "container", "valueSchema": V1, "schema.registry.url": "http://r"},
            "beside a schema registry",
        ),
        ({"valueEncoding": "container", "valueSchema": "http://r/subjects/s/versions/1"}, "beside a schema registry"),
        ({"valueFormat": "json", "valueSchema": "id INT", "valueEncoding": "container"}, "has no effect"),
    ],
)
def test_encodings_that_have_no_effect_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options({**OPTIONS, **given}, Mode.BATCH)


def test_files_are_not_written() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", "valueFormat": "avro", "valueSchema": V1}
    with pytest.raises(ConfigError, match="'valueEncoding'=container is for reads"):
        parse_write_options({**given, "valueEncoding": "container"}, stream=False)
