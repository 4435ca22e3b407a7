"""What bytes look like: as real writers begin them, and nothing where they could be anything."""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
import zipfile
from collections.abc import Callable

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from google.protobuf import type_pb2

from pykafka_ui.records.registered_values import looks_like
from pykafka_ui.records.values import Decoder
from tests.support.randomness import noise

TABLE = pa.table({"id": [1, 2]})
SCHEMA = fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def arrow(file: io.BytesIO) -> None:
    with pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write(TABLE)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (written(lambda file: fastavro.writer(file, SCHEMA, [{"id": 1}])), "an Avro file"),
        (written(lambda file: pyarrow.parquet.write_table(TABLE, file)), "a Parquet file"),
        (written(lambda file: pyarrow.orc.write_table(TABLE, file)), "an ORC file"),
        (written(arrow), "an Arrow file"),
        (written(lambda file: zipfile.ZipFile(file, "w").writestr("a", "b")), "a ZIP archive"),
        (gzip.compress(b"x", mtime=0), "gzip"),
        (bz2.compress(b"x"), "bzip2"),
        (pa.compress(b"x", "zstd", asbytes=True), "zstd"),
        (pa.compress(b"x", "lz4", asbytes=True), "LZ4"),
        (b"\0\0\0\0\7\x02\x04", "schema 7 of a registry"),
        (type_pb2.Type(name="T", fields=[type_pb2.Field(name="f", number=3)]).SerializeToString(), "Protobuf"),
    ],
)
def test_what_writers_write_is_recognized(value: bytes, what: str) -> None:
    assert what in looks_like(value)
    assert what in Decoder().decode(value).note


@pytest.mark.parametrize("value", [b"", b"\0", b"\xff\xfe\0 x", pickle.dumps(1), b"\x08", bytes(5), b"\xff" * 99])
def test_what_may_be_anything_looks_like_nothing(value: bytes) -> None:
    assert looks_like(value) == ""


def test_noise_hardly_ever_looks_like_protobuf() -> None:
    drawn = noise(200 * 64)
    found = [looks_like(drawn[at : at + 64]) for at in range(0, len(drawn), 64)]
    assert found.count("") > 190
