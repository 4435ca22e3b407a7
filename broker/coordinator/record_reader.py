"""A cursor over the hand-packed bytes of an internal record.

Called by the decoders of this package only. Every read is checked against what is left, so that no
input, however hostile, makes it read past the end, allocate what is not there, or raise anything
but `MalformedRecord`.
"""

from __future__ import annotations

from struct import Struct

from broker.errors import ProtocolError

__all__ = ["MalformedRecord", "RecordReader"]

_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")


class MalformedRecord(ProtocolError):
    """Bytes that are no record of this format, or a value that does not fit one."""


class RecordReader:
    """Reads big-endian fields one after the other."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def i16(self) -> int:
        return self._fixed(_I16)

    def i32(self) -> int:
        return self._fixed(_I32)

    def i64(self) -> int:
        return self._fixed(_I64)

    def version(self, highest: int) -> int:
        """The i16 a value begins with; raises MalformedRecord when it is not one of 0 … `highest`."""
        version = self.i16()
        if not 0 <= version <= highest:
            raise MalformedRecord(f"value version {version} is not one of 0 to {highest}")
        return version

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRecord("null where a string must stand")
        return text

    def nullable_string(self) -> str | None:
        length = self.i16()
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"a string is no UTF-8: {error}") from None

    def blob(self) -> bytes:
        """Bytes with an i32 length; null reads as empty."""
        length = self.i32()
        return self._take(length) if length > 0 else b""

    def array_length(self) -> int:
        """The count before an array; every element has at least one byte, so more than is left is a lie."""
        length = self.i32()
        if not 0 <= length <= len(self._data) - self._position:
            raise MalformedRecord(f"an array of {length} elements in {len(self._data)} bytes")
        return length

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

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise MalformedRecord(f"ends at byte {len(self._data)} inside a field of {length} bytes")
        taken = self._data[self._position : end]
        self._position = end
        return taken
