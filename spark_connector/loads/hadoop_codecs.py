"""Text files as Hadoop's codecs leave them: decompressed by the end of their name, whole, without Hadoop.

Called by loads/file_rows.py. gzip, bzip2 and zstd are what they are elsewhere; `.deflate` is zlib's format. `.snappy`
and `.lz4` are Hadoop's own (`BlockCompressorStream`): blocks, each the number of its bytes in plain and then pieces of
compressed data with their lengths, until the block is full; all numbers are 4 bytes, big-endian.

Damaged data raises ValueError, or what the codec raises.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Callable

import cramjam
import pyarrow as pa

__all__ = ["decompressed"]

_LARGEST_BLOCK = 256 << 20  # bytes; Hadoop's default is 256 KiB

_MOST_BY_LZ4 = 255  # plain bytes for one of LZ4's

_Unpack = Callable[[bytes, int], bytes]
"""A piece, and how much of its block is to come, to plain bytes."""


def decompressed(name: str, data: bytes) -> bytes:
    """The plain text of the file `name`, whose bytes are `data`; these themselves for an ending that is no codec's."""
    decompress = _BY_ENDING.get(posixpath.splitext(name)[1])
    return data if decompress is None else decompress(data)


def _by_arrow(codec: str) -> Callable[[bytes], bytes]:
    return lambda data: bytes(pa.CompressedInputStream(pa.BufferReader(data), codec).read())


def _blocks(unpack: _Unpack) -> Callable[[bytes], bytes]:
    return lambda data: _plain_blocks(data, unpack)


def _plain_blocks(data: bytes, unpack: _Unpack) -> bytes:
    plain = []
    position = 0
    while position < len(data):
        left, position = _number(data, position)
        if left > _LARGEST_BLOCK:
            raise ValueError(f"a block of {left} bytes")
        while left:
            size, position = _number(data, position)
            if size > len(data) - position:
                raise ValueError("the file ends within a block")
            piece = unpack(data[position : position + size], left)
            if not 0 < len(piece) <= left:
                raise ValueError(f"a piece of {len(piece)} bytes where {left} are left of its block")
            plain.append(piece)
            left -= len(piece)
            position += size
    return b"".join(plain)


def _number(data: bytes, position: int) -> tuple[int, int]:
    """The number there, and the position behind it."""
    if len(data) - position < 4:
        raise ValueError("the file ends within a number")
    return int.from_bytes(data[position : position + 4], "big"), position + 4


def _snappy(piece: bytes, left: int) -> bytes:
    if (size := cramjam.snappy.decompress_raw_len(piece)) > left:
        raise ValueError(f"a piece of {size} bytes where {left} are left of its block")
    return bytes(cramjam.snappy.decompress_raw(piece))


def _lz4(piece: bytes, left: int) -> bytes:
    plain = bytearray(min(left, len(piece) * _MOST_BY_LZ4 + 64))
    return bytes(plain[: cramjam.lz4.decompress_block_into(piece, plain)])


_BY_ENDING: dict[str, Callable[[bytes], bytes]] = {
    ".gz": _by_arrow("gzip"),
    ".bz2": _by_arrow("bz2"),
    ".zst": _by_arrow("zstd"),
    ".deflate": zlib.decompress,
    ".snappy": _blocks(_snappy),
    ".lz4": _blocks(_lz4),
}
