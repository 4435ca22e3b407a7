"""The keys and values of the records of internal topics: a version, an i16, and a struct that a `Table` declares.

Kafka's tools can read what is written here, and what Kafka writes can be read. A record without a value is a tombstone.
Invalid bytes raise `MalformedRecord`, never anything else; nothing is read past their end, and nothing allocates more
than they have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from broker.errors import ProtocolError
from broker.protocol.entities import Table
from broker.protocol.struct_codec import Reader, encoder, reader

MAX_STRING_BYTES = 32767

# Key and value of one record. A None value is a tombstone.
KeyValue: TypeAlias = tuple[bytes, bytes | None]

_VERSION = struct.Struct(">h")


class MalformedRecord(ProtocolError):
    """Bytes that are not a record of this format, or a value that does not fit into a record."""


class RecordFormat:
    """The versions of a key or of a value."""

    def __init__(self, *tables: Table, is_key: bool = False) -> None:
        """Other versions of a key are skipped, because the record is another one, perhaps of a later Kafka."""
        self._tables = {table.version: table for table in tables}
        self._is_key = is_key
        self._readers: dict[bytes, Reader | None] = {}
        self._encoders: dict[int, Callable[[Any], bytes]] = {}

    def encode(self, value: object, version: int = 0) -> bytes:
        """`value` is an object of the table's class, or a tuple."""
        encode = self._encoders.get(version)
        if encode is None:
            encode = self._encoders[version] = encoder(self._tables[version], _VERSION.pack(version))
        try:
            return encode(value)
        except struct.error as error:
            name = self._tables[version].row.__name__
            raise MalformedRecord(f"{name} does not fit a record: {error}") from None

    def decode(self, data: bytes) -> Any:
        """An object of the version's class; None for a key that should be skipped."""
        try:
            read = self._readers[data[:2]]
        except KeyError:
            read = self._readers[data[:2]] = self._reader(data[:2])
        if read is None:
            return None
        try:
            value, end = read(data, 2, len(data))
        except (ValueError, LookupError, OverflowError, struct.error) as error:
            raise MalformedRecord(f"a record of {len(data)} bytes: {error}") from None
        if end != len(data):
            raise MalformedRecord(f"{len(data) - end} bytes too many")
        return value

    def _reader(self, head: bytes) -> Reader | None:
        version = int.from_bytes(head, signed=True) if len(head) == _VERSION.size else -1
        if version in self._tables:
            return reader(self._tables[version])
        if self._is_key and version >= 0:
            return None
        raise MalformedRecord(f"version {version} is not one of {', '.join(map(str, map(int, self._tables)))}")
