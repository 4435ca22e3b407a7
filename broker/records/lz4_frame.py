"""The lz4 frame format, as far as record batches have it: independent blocks without checksums.

Called by compression.py. Block by block is twice as fast as a stream reader, and the batch's CRC covers all of it.
What clients write otherwise (linked blocks, checksums, dictionaries, several frames) is left to the stream reader.

    magic           4 bytes
    flags           1 byte: bits 6-7 version 1, 5 independent blocks, 4 and 2 checksums, 3 plain size, 0 dictionary
    block size      1 byte: bits 4-6, 4 for 64 KiB to 7 for 4 MiB
    plain size      8 bytes, if the flags say so
    header checksum 1 byte
    blocks          4 bytes of length, with the top bit for a stored one; a length of 0 ends the frame
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Final

import cramjam

__all__ = ["read_frame", "write_frame"]

_HEADER: Final = bytes.fromhex("04224d18 6040 82")  # version 1, independent blocks; 64 KiB; checksum of these
_MAGIC: Final = _HEADER[:4]
_BLOCK: Final = 64 << 10
_STORED: Final = 0x80000000

_INDEPENDENT: Final = 0x20
_PLAIN_SIZE: Final = 0x08
_VERSION: Final = 0x40
_MOST_RATIO: Final = 255
"""A byte of a block makes at most that many."""

_LENGTH: Final = struct.Struct("<I")


def _fast(plain: memoryview) -> bytes | memoryview:
    return memoryview(cramjam.lz4.compress_block(plain, store_size=False))


def write_frame(
    data: bytes | bytearray | memoryview, compress: Callable[[memoryview], bytes | memoryview] = _fast
) -> bytes:
    """One frame of independent blocks, each by `compress`: Kafka's Java client reads no others."""
    view = memoryview(data)
    parts: list[bytes | memoryview] = [_HEADER]
    for start in range(0, len(view), _BLOCK):
        plain = view[start : start + _BLOCK]
        block = compress(plain)
        if len(block) < len(plain):
            parts += (_LENGTH.pack(len(block)), block)
        else:
            parts += (_LENGTH.pack(len(plain) | _STORED), plain)
    parts.append(bytes(4))
    return b"".join(parts)


def read_frame(data: bytes | bytearray | memoryview, limit: int) -> bytes | None:
    """The plain bytes of a frame; None for one of another shape, malformed or of more than `limit` bytes."""
    view = memoryview(data)
    if len(view) < len(_HEADER) or view[:4] != _MAGIC or not 0x40 <= view[5] <= 0x70:
        return None
    flags = view[4]
    if flags & ~(_INDEPENDENT | _PLAIN_SIZE) != _VERSION:
        return None
    largest = 1 << (2 * (view[5] >> 4) + 8)
    position = len(_HEADER) + (8 if flags & _PLAIN_SIZE else 0)
    pieces: list[bytes | memoryview] = []
    room = limit
    while len(view) - position >= 4:
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if length == 0:
            return None if position != len(view) else bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        if pieces and not flags & _INDEPENDENT:
            return None
        stored, length = length & _STORED, length & ~_STORED
        block = view[position : position + length]
        position += length
        piece = block if stored else _plain(block, min(largest, room))
        if piece is None or len(block) < length or len(piece) > min(largest, room):
            return None
        pieces.append(piece)
        room -= len(piece)
    return None


class _Scratch(threading.local):
    """Room for the plain bytes of a block, one per thread: a new one for each would take a sixth of the time."""

    def __init__(self) -> None:
        self.room = bytearray(_BLOCK)


_SCRATCH: Final = _Scratch()


def _plain(block: memoryview, most: int) -> bytes | None:
    """What a block holds; None if it is malformed or holds more than `most` bytes."""
    room = min(most, _MOST_RATIO * len(block))
    out = _SCRATCH.room if room <= _BLOCK else bytearray(room)
    try:
        return bytes(memoryview(out)[: cramjam.lz4.decompress_block_into(block, out, room)])
    except cramjam.DecompressionError:
        return None
