"""The keys and values of the records of internal topics: a version, an i16, and a struct that a `Table` declares.

Kafka's tools can read what is written here, and what Kafka writes can be read. A record without a value is a tombstone.
Invalid bytes raise `MalformedRecord`, never anything else; nothing is read past their end, and nothing allocates more
than they have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from broker.errors import ProtocolError
from broker.protocol.entities import Table
from broker.protocol.struct_reader import Reader, reader
from broker.protocol.struct_writer import encoder

MAX_STRING_BYTES = 32767

# Key and value of one record. A None value is a tombstone.
KeyValue: TypeAlias = tuple[bytes, bytes | None]

T = TypeVar("T")
_VERSION = struct.Struct(">h")


class MalformedRecord(ProtocolError):
    """Bytes that are not a record of this format, or a value that does not fit into a record."""


class RecordFormat(Generic[T]):
    """The versions of a value, or of the keys of a topic, whose version says what the record is of."""

    def __init__(self, rows: Mapping[int, type[T]], flexible: int = 32767) -> None:
        """Version → the class that is its table. Those from `flexible` on are so (KIP-482)."""
        self._tables = {
            _VERSION.pack(version): Table(row, version, version >= flexible) for version, row in rows.items()
        }
        self._readers: dict[bytes, Reader] = {}
        self._encoders: dict[int, Callable[[Any], bytes]] = {}

    def encode(self, value: T | tuple[Any, ...], version: int = 0) -> bytes:
        """The bytes of an object of the version's class, or of a tuple of its fields."""
        encode = self._encoders.get(version)
        if encode is None:
            head = _VERSION.pack(version)
            encode = self._encoders[version] = encoder(self._tables[head], head)
        try:
            return encode(value)
        except struct.error as error:
            raise MalformedRecord(f"{value!r:.100} does not fit a record: {error}") from None

    def decode(self, data: bytes) -> T:
        """An object of the version's class."""
        try:
            read = self._readers[data[:2]]
        except KeyError:
            table = self._tables.get(data[:2])
            if table is None:
                raise MalformedRecord(f"version {int.from_bytes(data[:2], signed=True)} is not known") from None
            read = self._readers[data[:2]] = reader(table)
        try:
            value: T
            value, end = read(data, 2, len(data))
        except (ValueError, LookupError, OverflowError, struct.error) as error:
            raise MalformedRecord(f"a record of {len(data)} bytes: {error}") from None
        if end != len(data):
            raise MalformedRecord(f"{len(data) - end} bytes too many")
        return value

    def decode_key(self, data: bytes) -> T | None:
        """As `decode`, but None for another version: the record is another one, perhaps of a later Kafka."""
        is_known = data[:2] in self._tables or len(data) < 2 or data[0] > 127
        return self.decode(data) if is_known else None
