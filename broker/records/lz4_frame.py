"""The lz4 frame format as far as record batches use it: independent blocks without checksums.

Called by compression.py. Reading block by block is twice as fast as a stream reader, and the batch's CRC covers all of
it. Other frames (linked blocks, checksums, dictionaries, several frames) are left to the stream reader.

    magic           4 bytes
    flags           1 byte: bits 6-7 version 1, 5 independent blocks, 4 and 2 checksums, 3 plain size, 0 dictionary
    block size      1 byte: bits 4-6, 4 for 64 KiB to 7 for 4 MiB
    plain size      8 bytes, if the flags say so
    header checksum 1 byte
    blocks          4 bytes of length, with the top bit for a stored one; a length of 0 ends the frame
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

_HEADER: Final = bytes.fromhex("04224d18 6040 82")  # version 1, independent blocks; 64 KiB; checksum of these
_MAGIC: Final = _HEADER[:4]
_BLOCK: Final = 64 << 10
_STORED: Final = 0x80000000

_INDEPENDENT: Final = 0x20
_PLAIN_SIZE: Final = 0x08
_VERSION: Final = 0x40
_MOST_RATIO: Final = 255
"""The most plain bytes that one byte of a block can make."""

_LENGTH: Final = struct.Struct("<I")


def _fast(plain: memoryview) -> bytes:
    import cramjam

    return bytes(cramjam.lz4.compress_block(plain, store_size=False))  # a copy: cramjam's buffer is much larger


def write_frame(
    pieces: Iterable[bytes | bytearray | memoryview], compress: Callable[[memoryview], bytes] = _fast
) -> Iterator[bytes | memoryview]:
    """One frame of independent blocks (Kafka's Java client reads no others), part by part."""
    yield _HEADER
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _BLOCK):
            plain = view[start : start + _BLOCK]
            block = compress(plain)
            stored = len(block) >= len(plain)
            yield _LENGTH.pack(len(plain) | _STORED if stored else len(block))
            yield plain if stored else block
    yield bytes(4)


def is_usual_frame(view: bytes | bytearray | memoryview) -> bool:
    """Whether the header promises independent blocks without checksums, which `frame_pieces` can read completely."""
    return view[:4] == _MAGIC and len(view) > 4 and view[4] & ~_PLAIN_SIZE == _VERSION | _INDEPENDENT


def frame_pieces(view: memoryview, limit: int) -> Iterator[memoryview | None]:
    """The plain bytes of a frame, block by block; a block is valid until the next one is requested.

    Yields None and stops where the frame has an unusual shape, is malformed or has more than `limit` bytes.
    """
    if len(view) < len(_HEADER) or view[:4] != _MAGIC or not 0x40 <= view[5] <= 0x70:
        yield None
        return
    flags = view[4]
    position = len(_HEADER) + (8 if flags & _PLAIN_SIZE else 0)
    if flags & ~(_INDEPENDENT | _PLAIN_SIZE) != _VERSION:
        yield None
        return
    largest = 1 << (2 * (view[5] >> 4) + 8)
    import cramjam

    scratch = bytearray()
    blocks = 0
    while len(view) - position >= 4:
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if length == 0:
            if position != len(view):
                break
            return
        if blocks and not flags & _INDEPENDENT:
            break
        stored, length = length & _STORED, length & ~_STORED
        block = view[position : position + length]
        if len(block) < length:
            break
        position += length
        blocks += 1
        if stored:
            piece = block
        else:
            room = min(largest, limit, _MOST_RATIO * length)
            if len(scratch) < room:
                scratch = bytearray(room)  # shared by all blocks, which saves a sixth of the time
            try:
                piece = memoryview(scratch)[: cramjam.lz4.decompress_block_into(block, scratch, room)]
            except cramjam.DecompressionError:
                break
        if len(piece) > min(largest, limit):
            break
        limit -= len(piece)
        yield piece
    yield None
