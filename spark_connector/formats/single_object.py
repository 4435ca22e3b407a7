"""Avro without a registry: values that have the fingerprint of their schema before them, and files as values.

Single-object encoding is two bytes and the 64-bit Rabin fingerprint of the schema's parsing canonical form (Avro's
specification, "Single-object encoding" and "Schema Fingerprints"). A container is Avro's file format; as a value it is
a file of one record. Both are split by schemas as what a registry's serializer writes is (frames.py), and the
AvroDecoder reads them as such.
"""

from __future__ import annotations

import functools
import json
import zlib
from typing import Final

import numpy as np
import pyarrow as pa

from spark_connector.formats.avro_schema import AvroType, parse_avro
from spark_connector.formats.frames import LARGEST, Frames, Framing, Group, Key, Place, SchemaId, Splits
from spark_connector.formats.schema_registry import UnknownSchema
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import AvroSchema

_MARKER: Final = b"\xc3\x01"
_HEAD: Final = 10
_MAGIC: Final = b"Obj\x01"
_SYNC: Final = 16
_EMPTY: Final = 0xC15D213AA4D7A795
"""The fingerprint of nothing."""
_NOT_SINGLE: Final = "not in Avro's single-object encoding, which begins with c301 and the fingerprint of its schema"
_NOT_CONTAINER: Final = "not a container file of Avro, which begins with 'Obj' and a byte of 1"


def canonical_form(schema: AvroSchema) -> str:
    """The parsing canonical form. Raises ConfigError for what is no schema."""
    return json.dumps(_canonical(parse_avro(schema), set()), separators=(",", ":"), ensure_ascii=False)


def _canonical(one: AvroType | None, defined: set[str]) -> object:
    assert one is not None
    if one.name:
        if one.name in defined:
            return one.name
        defined.add(one.name)
    match one.kind:
        case "record":
            fields = [{"name": field.name, "type": _canonical(field.type, defined)} for field in one.fields]
            return {"name": one.name, "type": "record", "fields": fields}
        case "enum":
            return {"name": one.name, "type": "enum", "symbols": list(one.symbols)}
        case "fixed":
            return {"name": one.name, "type": "fixed", "size": one.size}
        case "array":
            return {"type": "array", "items": _canonical(one.item, defined)}
        case "map":
            return {"type": "map", "values": _canonical(one.item, defined)}
        case "union":
            return [_canonical(branch, defined) for branch in one.branches]
    return one.kind


@functools.cache
def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_EMPTY & -(number & 1))
        table.append(number)
    return table


@functools.lru_cache(maxsize=512)
def single_object_prefix(schema: AvroSchema) -> bytes:
    """What values of the schema begin with. Raises ConfigError."""
    found, table = _EMPTY, _table()
    for byte in canonical_form(schema).encode():
        found = found >> 8 ^ table[(found ^ byte) & 0xFF]
    return _MARKER + found.to_bytes(8, "little")


class _FingerprintId(SchemaId):
    __slots__ = ()

    @property
    def name(self) -> str:
        return f"the schema with the fingerprint {self.key}"


class SingleObjects:
    """Finds schemas by their fingerprints among those that the user has named."""

    def __init__(self, schemas: tuple[AvroSchema, ...]) -> None:
        """Raises ConfigError."""
        self._schemas = {single_object_prefix(one)[2:].hex(): one for one in schemas}

    def framing(self, column: str, format: str) -> Splits:
        """As AvroSchemas."""
        return Framing((Place(_fingerprint, _HEAD),), _NOT_SINGLE)

    def schema(self, key: Key) -> AvroSchema:
        """As AvroSchemas."""
        if key not in self._schemas:
            raise UnknownSchema("it is none of those that the option of the schema names")
        return self._schemas[str(key)]


def _fingerprint(head: bytes) -> SchemaId | None:
    if len(head) < _HEAD or not head.startswith(_MARKER):
        return None
    return _FingerprintId(head[2:].hex(), _HEAD)


class _OwnId(SchemaId):
    __slots__ = ()

    @property
    def name(self) -> str:
        return "the schema in it"


class Containers:
    """Each value is a file, which has its schema with it."""

    reads_headers = False

    def framing(self, column: str, format: str) -> Splits:
        """As AvroSchemas."""
        return self

    def schema(self, key: Key) -> AvroSchema:
        """As AvroSchemas."""
        return AvroSchema(str(key))

    def split(self, values: pa.Array, headers: pa.Array | None = None, *, is_plain_too: bool = False) -> Frames:
        """As Splits. One file after the other: each has a header as long as its data."""
        found: dict[str, tuple[list[int], list[bytes]]] = {}
        bad: dict[int, str] = {}
        for row, raw in enumerate(values.to_pylist()):
            if raw is None:
                continue
            try:
                schema, data = _opened(raw)
            except BadValue as error:
                bad[row] = str(error)
                continue
            rows, parts = found.setdefault(schema, ([], []))
            rows.append(row)
            parts.append(data)
        groups = [
            Group(_OwnId(schema), np.array(rows, np.int64), pa.array(parts, pa.binary()))
            for schema, (rows, parts) in found.items()
        ]
        return Frames(groups, bad)


def _opened(raw: bytes) -> tuple[str, bytes]:
    """(schema, data of the one record) of a file. Raises BadValue."""
    if not raw.startswith(_MAGIC):
        raise BadValue(_NOT_CONTAINER)
    meta, at = _metadata(raw, len(_MAGIC))
    mark = raw[at : at + _SYNC]
    records, at = _long(raw, at + _SYNC)
    size, at = _long(raw, at)
    data, end = raw[at : at + size], raw[at + size :]
    if size < 0 or len(data) != size or end[:_SYNC] != mark or len(mark) != _SYNC:
        raise BadValue("its file is broken: the block of its record does not end with the mark of the file")
    if records != 1 or len(end) != _SYNC:
        raise BadValue(f"its file has more than one record, or none: {records} in its first block")
    codec = meta.get("avro.codec", b"null")
    try:
        if codec == b"deflate":
            machine = zlib.decompressobj(-15)
            data = machine.decompress(data, LARGEST)
            if not machine.eof:
                raise BadValue(f"its data is cut off, or has more than {LARGEST >> 20} MiB when it is inflated")
        elif codec != b"null":
            raise BadValue(f"its file has the codec {codec.decode('utf-8', 'replace')[:20]}; null and deflate are read")
        return meta["avro.schema"].decode(), data
    except (zlib.error, UnicodeDecodeError, KeyError) as error:
        raise BadValue(f"its file is broken: {type(error).__name__} {error}") from None


def _metadata(raw: bytes, at: int) -> tuple[dict[str, bytes], int]:
    """(the map in a file's header, its end). Raises BadValue."""
    found: dict[str, bytes] = {}
    while True:
        count, at = _long(raw, at)
        if count == 0:
            return found, at
        if count < 0:
            _, at = _long(raw, at)  # the size of the block, for those that pass over it
        for _ in range(abs(count)):
            name, at = _bytes(raw, at)
            found[name.decode("utf-8", "replace")], at = _bytes(raw, at)


def _bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(raw, at)
    if not 0 <= size <= len(raw) - at:
        raise BadValue("its file is cut off within the header")
    return raw[at : at + size], at + size


def _long(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        number |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return number >> 1 ^ -(number & 1), at
    raise BadValue("its file is cut off, or has a number of more than 64 bits")
