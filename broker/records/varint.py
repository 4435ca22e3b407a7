"""Zigzag varints, the integers inside a record (KIP-98; Kafka's `ByteUtils`).

Used by the record codec, the batch builder and control records; the column codec has its own
vectorised form of the same rules. A varint has at most 10 bytes and stands for a signed 64-bit
number; small numbers of either sign take one byte.
"""

from __future__ import annotations

from typing import Final

from broker.errors import CorruptBatch

__all__ = ["MAX_VARINT_BYTES", "SMALL_VARINTS", "encode_varint", "read_unsigned_varint", "read_varint"]

MAX_VARINT_BYTES: Final = 10

_MASK = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """The zigzag varint of a signed 64-bit number."""
    rest = ((value << 1) ^ (value >> 63)) & _MASK
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


SMALL_VARINTS: Final[tuple[bytes, ...]] = tuple(encode_varint(number) for number in range(8192))
"""The varints of 0 to 8191, those of one and two bytes: a look-up is five times cheaper than the loop."""


def read_unsigned_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The plain (not zigzag) varint at `position`, and where it ends. Raises CorruptBatch."""
    value = shift = 0
    try:
        while True:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _MASK, position
            shift += 7
            if shift >= 7 * MAX_VARINT_BYTES:
                raise CorruptBatch(f"a varint ending at byte {position} is longer than {MAX_VARINT_BYTES} bytes")
    except IndexError:
        raise CorruptBatch(f"a varint runs past the end of {len(buffer)} bytes") from None


def read_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The zigzag varint at `position`, and where it ends. Raises CorruptBatch."""
    value, position = read_unsigned_varint(buffer, position)
    return (value >> 1) ^ -(value & 1), position
