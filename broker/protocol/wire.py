"""Strings, array lengths and varints in Kafka's encoding, for the messages that are encoded by hand.

`flexible` messages have compact lengths (KIP-482): the length plus one as an unsigned varint.
"""

from __future__ import annotations

import struct

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


def string(text: str, flexible: bool) -> bytes:
    raw = text.encode()
    return (unsigned_varint(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw


def nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else _INT16.pack(-1)
    return string(text, flexible)


def array_length(length: int, flexible: bool) -> bytes:
    return unsigned_varint(length + 1) if flexible else _INT32.pack(length)


def unsigned_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
