"""What bytes look like of which nothing is known, by how they begin: a hint for people, and no more."""

from __future__ import annotations

from typing import Final

from pykafka_ui.registered_values import schema_id

_BEGINNINGS: Final = {
    b"Obj\x01": "an Avro file with its schema in it: format avro of the Spark connector reads it",
    b"\xc3\x01": "Avro's single-object encoding, with the fingerprint of its schema",
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
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "a PDF document",
}
_LARGEST_ID: Final = 10_000_000
"""Of a schema: registries count from 1."""
_FEWEST_FIELDS: Final = 2
_LOOKED_AT: Final = 1_000
"""Fields of what may be Protobuf."""
_LARGEST_FIELD: Final = 2_000
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def looks_like(value: bytes) -> str:
    """A sentence's end, "data that is compressed with gzip"; "" if it looks like nothing that is known here."""
    for beginning, what in _BEGINNINGS.items():
        if value.startswith(beginning):
            return what
    key = schema_id(value)
    if key is not None and 0 < key < _LARGEST_ID:
        return f"Confluent's wire format, with schema {key} of a registry"
    return "Protobuf, whose fields only its schema can name" if _may_be_protobuf(value) else ""


def _may_be_protobuf(value: bytes) -> bool:
    """Whether it is nothing but fields, as far as it is looked at."""
    at = fields = 0
    while at < len(value) and fields < _LOOKED_AT:
        tag, at = _varint(value, at)
        if not 0 < tag >> 3 <= _LARGEST_FIELD:
            return False
        if tag & 7 == _VARINT:
            number, at = _varint(value, at)
            length = 0 if number >= 0 else len(value) + 1
        else:
            length = {_FIXED_64: 8, _FIXED_32: 4}.get(tag & 7, len(value) + 1)
            if tag & 7 == _BYTES:
                length, at = _varint(value, at)
        if length < 0 or at + length > len(value):
            return False
        at, fields = at + length, fields + 1
    return fields >= _FEWEST_FIELDS


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """(number, its end); -1 where it does not end."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(value):
            break
        number |= (value[at] & 0x7F) << shift
        at += 1
        if value[at - 1] < 0x80:
            return number, at
    return -1, at
