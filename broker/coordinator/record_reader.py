"""A cursor over the bytes of an internal record.

Used by the record formats of this package. Every read is checked against the bytes that are left: invalid input raises
`MalformedRecord`. It never reads past the end and never allocates more than the input has.
"""

from __future__ import annotations

from struct import Struct

from broker.errors import CorruptBatch, ProtocolError
from broker.records.varint import read_unsigned_varint

MAX_STRING_BYTES = 32767

_I8 = Struct(">b")
_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")


class MalformedRecord(ProtocolError):
    """Bytes that are not a record of this format, or a value that does not fit into a record."""


def encode_string(text: str) -> bytes:
    """An i16 length and UTF-8. Raises MalformedRecord if the text is too long."""
    encoded = text.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise MalformedRecord(f"a string of {len(encoded)} bytes does not fit a record: {text[:40]!r}…")
    return _I16.pack(len(encoded)) + encoded


class RecordReader:
    """Reads big-endian fields one after the other."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def i8(self) -> int:
        return self._fixed(_I8)

    def i16(self) -> int:
        return self._fixed(_I16)

    def i32(self) -> int:
        return self._fixed(_I32)

    def i64(self) -> int:
        return self._fixed(_I64)

    def version(self, highest: int) -> int:
        """The i16 at the start of a value. Raises MalformedRecord unless it is one of 0 … `highest`."""
        version = self.i16()
        if not 0 <= version <= highest:
            raise MalformedRecord(f"value version {version} is not one of 0 to {highest}")
        return version

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRecord("null instead of a string")
        return text

    def nullable_string(self) -> str | None:
        length = self.i16()
        return None if length < 0 else self._text(length)

    def blob(self) -> bytes:
        """Bytes with an i32 length. Null reads as empty."""
        length = self.i32()
        return self.take(length) if length > 0 else b""

    def array_length(self) -> int:
        return self._plausible(self.i32())

    def _plausible(self, length: int) -> int:
        """Refuse a count above the number of bytes left: every element has at least one byte."""
        if not 0 <= length <= len(self._data) - self._position:
            raise MalformedRecord(f"an array of {length} elements in {len(self._data)} bytes")
        return length

    def nullable_array_length(self) -> int:
        """The count before an array. Null (-1) reads as empty."""
        length = self.i32()
        return self._plausible(0 if length == -1 else length)

    def unsigned_varint(self) -> int:
        try:
            value, self._position = read_unsigned_varint(self._data, self._position)
        except CorruptBatch as error:
            raise MalformedRecord(error.message) from None
        return value

    def compact_length(self) -> int:
        """The count before an array of a flexible version. Null reads as empty."""
        return self._plausible(max(self.unsigned_varint() - 1, 0))

    def compact_string(self) -> str:
        return self._text(self.unsigned_varint() - 1)

    def compact_nullable_string(self) -> str | None:
        length = self.unsigned_varint() - 1
        return None if length < 0 else self._text(length)

    def compact_blob(self) -> bytes:
        """Bytes of a flexible version. Null reads as empty."""
        return self.take(max(self.unsigned_varint() - 1, 0))

    def skip_tags(self) -> None:
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.take(self.unsigned_varint())

    def expect_end(self) -> None:
        if self._position != len(self._data):
            raise MalformedRecord(f"{len(self._data) - self._position} bytes too many")

    def _fixed(self, layout: Struct) -> int:
        end = self._position + layout.size
        if end > len(self._data):
            raise MalformedRecord(f"ends at byte {len(self._data)} inside a number")
        value: int = layout.unpack_from(self._data, self._position)[0]
        self._position = end
        return value

    def _text(self, length: int) -> str:
        if length < 0:
            raise MalformedRecord("null instead of a string")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"a string is no UTF-8: {error}") from None

    def take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise MalformedRecord(f"ends at byte {len(self._data)} inside a field of {length} bytes")
        taken = self._data[self._position : end]
        self._position = end
        return taken
