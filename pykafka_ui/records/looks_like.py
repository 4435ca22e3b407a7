"""What bytes look like of which nothing is known, by how they begin: a hint for people, and no more."""

from __future__ import annotations

from typing import Final

from pykafka_ui.records.registered_values import schema_id
from spark_connector.formats.protobuf_rows import field_numbers

_BEGINNINGS: Final = {
    b"Obj\x01": "an Avro file with its schema in it",
    b"\xc3\x01": "Avro's single-object encoding",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"ORC": "an ORC file",
    b"\x1f\x8b": "data that is compressed with gzip",
    b"\x28\xb5\x2f\xfd": "data that is compressed with zstd",
    b"\x04\x22\x4d\x18": "data that is compressed with LZ4",
    b"\x82SNAPPY\x00": "data that is compressed with Snappy",
    b"BZh": "data that is compressed with bzip2",
    b"PK\x03\x04": "a ZIP archive",
    b"\xac\xed\x00\x05": "a serialized Java object",
}
_LARGEST_ID: Final = 10_000_000
"""Of a schema: registries count from 1."""
_FEWEST_FIELDS, _LARGEST_FIELD, _LARGEST = 2, 2_000, 64 << 10
"""Of what may be Protobuf, in which almost any two bytes are a field."""


def looks_like(value: bytes) -> str:
    """What a sentence names, "a Parquet file"; "" if it looks like nothing that is known here."""
    for beginning, what in _BEGINNINGS.items():
        if value.startswith(beginning):
            return what
    key = schema_id(value)
    if key is not None and 0 < key < _LARGEST_ID:
        return f"Confluent's wire format, with schema {key} of a registry"
    return "Protobuf, whose fields only its schema can name" if _may_be_protobuf(value) else ""


def _may_be_protobuf(value: bytes) -> bool:
    fields = field_numbers(value) if len(value) <= _LARGEST else []
    return len(fields) >= _FEWEST_FIELDS and max(fields) <= _LARGEST_FIELD
