"""The four codecs of a record batch, by Kafka's names and ids (`CompressionType`).

Used by the batch builders and by everything that reads records. What is written can be read by
Kafka's Java client (snappy in xerial framing, lz4 frames of independent blocks); what is read may
come from any client. Reading is bounded: a section that would grow beyond `limit` raises
CorruptBatch before the memory is taken, as does every malformed one.

The fastest of what is there does the work: the standard library (gzip), cramjam (snappy and lz4), pyarrow (zstd).
pyarrow is loaded with the first use, for a broker has none and should not carry its 40 MB.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import ModuleType
from typing import Any, Final

import snappy

from broker.errors import ConfigError, CorruptBatch
from broker.records.lz4_frame import read_frame, write_frame
from broker.records.varint import read_unsigned_varint

__all__ = ["DECOMPRESSION_LIMIT", "DEFAULT_LEVELS", "Codec", "compress", "decompress"]

Buffer = bytes | bytearray | memoryview

DECOMPRESSION_LIMIT: Final = 256 << 20
"""Bytes that one batch may grow to, by default. Kafka's own batches are at most ~1 MB."""

_GZIP = 31  # zlib's window bits of a gzip stream

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest compatible version
_XERIAL_BLOCK = 32 << 10  # snappy-java's default
_SNAPPY_MAX_RATIO = 24  # a copy element makes at most 64 bytes out of 3

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 128 << 10  # most that a block, of 4 bytes at least, can hold

_READ_SIZE = 64 << 10


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes; the names are those of `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Codec:
        """The codec called `name` in a configuration. Raises ConfigError."""
        for codec in cls:
            if codec.name.lower() == name.strip().lower():
                return codec
        known = ", ".join(codec.name.lower() for codec in cls)
        raise ConfigError(f"compression {name!r} is not known: use one of {known}")


DEFAULT_LEVELS: Final[Mapping[int, int]] = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}
"""What Kafka's `compression.<codec>.level` are when nobody sets them; lz4's 9 stands for its fast compressor."""


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """`data` compressed with `codec` (an id), with Kafka's default level or another of its `compression.<codec>.level`.

    Returns `data` itself for Codec.NONE; snappy has no levels.
    """
    if level == DEFAULT_LEVELS.get(codec):
        level = None
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return zlib.compress(data, DEFAULT_LEVELS[codec] if level is None else level, wbits=_GZIP)
        case Codec.SNAPPY:
            return _snappy_xerial(data)
        case Codec.LZ4:
            return write_frame(data) if level is None else write_frame(data, _lz4_thorough(level))
        case Codec.ZSTD:
            compressed: bytes = _zstd(DEFAULT_LEVELS[codec] if level is None else level).compress(data, asbytes=True)
            return compressed
        case _:
            raise ConfigError(f"compression codec {codec} is not known: use 0 to {max(Codec)}")


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSION_LIMIT) -> Buffer:
    """The plain bytes of `data`, at most `limit` of them; `data` itself for Codec.NONE. Raises CorruptBatch."""
    try:
        match codec:
            case Codec.NONE:
                return data
            case Codec.GZIP:
                return _gunzip(data, limit)
            case Codec.SNAPPY:
                return _unsnappy(memoryview(data), limit)
            case Codec.LZ4:
                plain = read_frame(data, limit)
                return _read_stream(data, "lz4", limit) if plain is None else plain
            case Codec.ZSTD:
                return _unzstd(data, limit)
    except (ValueError, OSError, zlib.error, snappy.UncompressError, struct.error) as error:
        raise CorruptBatch(f"{Codec(codec).name.lower()} data cannot be decompressed: {error}") from error
    raise CorruptBatch(f"compression codec {codec} is not known")


def _pyarrow() -> ModuleType:
    import pyarrow

    module: ModuleType = pyarrow
    return module


@functools.lru_cache(maxsize=8)
def _lz4_thorough(level: int) -> Callable[[memoryview], bytes]:
    """The slow compressor of liblz4, of 12 levels; Kafka's five above are its highest, too."""
    codec = _pyarrow().Codec("lz4_raw", min(level, 12))
    return functools.partial(codec.compress, asbytes=True)


@functools.lru_cache(maxsize=8)
def _zstd(level: int = 3) -> Any:
    return _pyarrow().Codec("zstd", level)


def _too_large(limit: int) -> CorruptBatch:
    return CorruptBatch(f"a batch grows beyond {limit} bytes when decompressed")


def _read_stream(data: Buffer, codec: str, limit: int) -> bytes:
    """Frames do not tell their plain size for sure, so they are read piece by piece."""
    pyarrow = _pyarrow()
    stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(data), codec)
    pieces: list[bytes] = []
    total, step = 0, max(_READ_SIZE, 4 * len(data))
    while piece := stream.read(min(step, limit + 1 - total)):
        pieces.append(piece)
        total += len(piece)
        if total > limit:
            raise _too_large(limit)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unzstd(data: Buffer, limit: int) -> bytes:
    """At once where the frame tells its plain size, as those of librdkafka and of `compress` do; Java's do not."""
    size = _zstd_plain_size(memoryview(data))
    if 0 < size <= min(limit, (len(data) // 4 + 1) * _ZSTD_BLOCK):
        try:
            plain: bytes = _zstd().decompress(data, size, asbytes=True)
            return plain
        except (ValueError, OSError):  # malformed, or frames follow that the first one does not count
            pass
    return _read_stream(data, "zstd", limit)


def _zstd_plain_size(view: memoryview) -> int:
    """What the frame's header says (RFC 8878, 3.1.1.1), or -1."""
    if len(view) < 6 or view[:4] != _ZSTD_MAGIC:
        return -1
    flags = view[4]
    single_segment = flags >> 5 & 1
    width = (single_segment, 2, 4, 8)[flags >> 6]
    at = 5 + (1 - single_segment) + (0, 1, 2, 4)[flags & 3]
    if width == 0 or len(view) < at + width:
        return -1
    return int.from_bytes(view[at : at + width], "little") + (256 if width == 2 else 0)


def _gunzip(data: Buffer, limit: int) -> bytes:
    """One or more gzip members, as Java's GZIPInputStream reads them."""
    plain = b""
    while True:
        member = zlib.decompressobj(_GZIP)
        plain += member.decompress(data, limit + 1 - len(plain))
        if len(plain) > limit:
            raise _too_large(limit)
        if not member.eof:
            raise CorruptBatch("gzip data ends before its trailer")
        data = member.unused_data
        if not data:
            return plain


def _snappy_xerial(data: Buffer) -> bytes:
    """snappy-java's SnappyOutputStream: a header, then length-prefixed blocks."""
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = snappy.compress(view[start : start + _XERIAL_BLOCK])
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _unsnappy(view: memoryview, limit: int) -> bytes:
    """Xerial framing (Java clients) or one raw block (librdkafka)."""
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_block(view, 0, limit)
    position, parts, total = len(_XERIAL_HEADER), [], 0
    while position < len(view):
        (length,) = struct.unpack_from(">i", view, position)
        position += 4
        if not 0 <= length <= len(view) - position:
            raise CorruptBatch(f"a snappy block of {length} bytes does not fit in {len(view) - position}")
        block = _unsnappy_block(view[position : position + length], total, limit)
        parts.append(block)
        total += len(block)
        position += length
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unsnappy_block(block: memoryview, before: int, limit: int) -> bytes:
    """A raw block; earlier ones gave `before` bytes. What it claims to hold is checked before it is allocated."""
    size, _ = read_unsigned_varint(block, 0)
    if before + size > limit:
        raise _too_large(limit)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to hold {size}")
    plain: bytes = snappy.decompress(block)
    return plain
