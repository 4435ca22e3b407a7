"""Zigzag varints, the integers inside a record (KIP-98; Kafka's `ByteUtils`).

A varint is a signed 64-bit number in at most 10 bytes; small numbers of either sign take one byte.
"""

from __future__ import annotations

from typing import Final

from broker.errors import CorruptBatch

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


SMALL_VARINTS: Final[tuple[bytes, ...]] = (
    *(bytes((2 * number,)) for number in range(64)),
    *(bytes((2 * number & 0x7F | 0x80, number >> 6)) for number in range(64, 8192)),
)
"""The varints of 0 to 8191, which have one or two bytes: a look-up is five times faster than the loop."""


def read_unsigned_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(the plain, not zigzag, varint at `position`, where it ends). Raises CorruptBatch."""
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
    """(the zigzag varint at `position`, where it ends). Raises CorruptBatch."""
    value, position = read_unsigned_varint(buffer, position)
    return (value >> 1) ^ -(value & 1), position
