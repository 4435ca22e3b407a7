"""A cursor over the bytes of an internal record.

Used by the record formats of this package. Every read is checked against the bytes that are left: invalid input raises
`MalformedRecord`. It never reads past the end and never allocates more than the input has.
"""

from __future__ import annotations

from struct import Struct
from typing import TypeAlias

from broker.errors import CorruptBatch, ProtocolError
from broker.records.varint import read_unsigned_varint

MAX_STRING_BYTES = 32767

# Key and value of one record. A None value is a tombstone.
KeyValue: TypeAlias = tuple[bytes, bytes | None]

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

    __slots__ = ("_data", "_is_flexible", "_position")

    def __init__(self, data: bytes, *, is_flexible: bool = False) -> None:
        """`is_flexible`: the lengths are varints, as in a tagged field of a flexible version."""
        self._data = data
        self._position = 0
        self._is_flexible = is_flexible

    def i8(self) -> int:
        return self._fixed(_I8)

    def i16(self) -> int:
        return self._fixed(_I16)

    def i32(self) -> int:
        return self._fixed(_I32)

    def i64(self) -> int:
        return self._fixed(_I64)

    def key_version(self) -> int:
        """The i16 at the start of a key. Raises MalformedRecord if it is negative."""
        version = self.i16()
        if version < 0:
            raise MalformedRecord(f"key version {version} is negative")
        return version

    def version(self, highest: int, *, flexible: int) -> int:
        """The i16 at the start of a value. Raises MalformedRecord unless it is one of 0 … `highest`.

        From the version `flexible` on, the lengths that follow are unsigned varints of the length plus one.
        """
        version = self.i16()
        if not 0 <= version <= highest:
            raise MalformedRecord(f"value version {version} is not one of 0 to {highest}")
        self._is_flexible = version >= flexible
        return version

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRecord("null instead of a string")
        return text

    def nullable_string(self) -> str | None:
        length = self._length(_I16)
        if length < 0:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"a string is no UTF-8: {error}") from None

    def blob(self) -> bytes:
        """Bytes. Null reads as empty."""
        return self.take(max(self._length(_I32), 0))

    def array_length(self, *, nullable: bool = False) -> int:
        """The count before an array. Null reads as empty if the array is `nullable` or the version flexible.

        A count above the number of bytes left is refused: every element has at least one byte.
        """
        length = self._length(_I32)
        if length == -1 and (nullable or self._is_flexible):
            return 0
        if not 0 <= length <= len(self._data) - self._position:
            raise MalformedRecord(f"an array of {length} elements in {len(self._data)} bytes")
        return length

    def tags(self) -> dict[int, bytes]:
        """The tagged fields of a flexible version; there are none in others."""
        count = self.unsigned_varint() if self._is_flexible else 0
        return {self.unsigned_varint(): self.take(self.unsigned_varint()) for _ in range(count)}

    def unsigned_varint(self) -> int:
        try:
            value, self._position = read_unsigned_varint(self._data, self._position)
        except CorruptBatch as error:
            raise MalformedRecord(error.message) from None
        return value

    def expect_end(self) -> None:
        if self._position != len(self._data):
            raise MalformedRecord(f"{len(self._data) - self._position} bytes too many")

    def _length(self, layout: Struct) -> int:
        return self.unsigned_varint() - 1 if self._is_flexible else self._fixed(layout)

    def _fixed(self, layout: Struct) -> int:
        end = self._position + layout.size
        if end > len(self._data):
            raise MalformedRecord(f"ends at byte {len(self._data)} inside a number")
        value: int = layout.unpack_from(self._data, self._position)[0]
        self._position = end
        return value

    def take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise MalformedRecord(f"ends at byte {len(self._data)} inside a field of {length} bytes")
        taken = self._data[self._position : end]
        self._position = end
        return taken
