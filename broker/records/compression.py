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
import itertools
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from types import ModuleType
from typing import Any, Final

import cramjam
import snappy

from broker.errors import ConfigError, CorruptBatch
from broker.records.lz4_frame import frame_pieces, is_usual_frame, write_frame
from broker.records.varint import read_unsigned_varint

__all__ = [
    "DECOMPRESSION_LIMIT",
    "DEFAULT_LEVELS",
    "PIECE_BYTES",
    "STEP_BYTES",
    "Codec",
    "GrowsTooLarge",
    "compress",
    "compressed_parts",
    "decompress",
    "in_steps",
    "plain_pieces",
    "starts_slowly",
    "takes_long",
]

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

STEP_BYTES: Final = 128 << 10
"""Plain bytes compressed between two looks at how long it takes; a multiple of every codec's blocks."""

PIECE_BYTES: Final = 256 << 10
"""Of what is decompressed piece by piece."""

_READ_SIZE = 64 << 10

_ZSTD_AT_ONCE = 8 << 20
"""Plain bytes that are kept to be compressed at once with a level above the default: only then the window, of up to
128 MiB at level 22, and the tables, of several times that, are no larger than what there is to compress."""
_ZSTD_STREAM_LEVEL = 19
"""The highest for what is more than that: those above have windows of more than 8 MiB."""


class GrowsTooLarge(CorruptBatch):
    """A batch that holds more plain bytes than its reader takes."""


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
    if codec == Codec.NONE:
        return data
    parts = list(compressed_parts(codec, (data,), level))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def compressed_parts(codec: int, pieces: Iterable[Buffer], level: int | None = None) -> Iterator[Buffer]:
    """`pieces` as one section compressed with `codec`, part by part.

    All but the last have a multiple of `STEP_BYTES`, so that blocks are full.
    """
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.NONE:
            yield from pieces
        case Codec.GZIP:
            stream = zlib.compressobj(level, wbits=_GZIP)
            for piece in pieces:
                yield stream.compress(piece)
            yield stream.flush()
        case Codec.SNAPPY:
            yield from _snappy_xerial(pieces)
        case Codec.LZ4 if level == DEFAULT_LEVELS[codec]:
            yield from write_frame(pieces)
        case Codec.LZ4:
            yield from write_frame(pieces, _lz4_thorough(level))
        case Codec.ZSTD:
            yield from _zstd_frame(iter(pieces), level)
        case _:
            raise ConfigError(f"compression codec {codec} is not known: use 0 to {max(Codec)}")


def _zstd_frame(pieces: Iterator[Buffer], level: int) -> Iterator[Buffer]:
    """A single piece is compressed at once, and the frame tells its size; so are several that take long."""
    kept, size, most = [next(pieces, b"")], 0, _ZSTD_AT_ONCE if takes_long(Codec.ZSTD, level) else 0
    for following in pieces:
        size += len(kept[-1])
        kept.append(following)
        if size + len(following) > most:
            break
    else:
        yield _zstd(level).compress(kept[0] if len(kept) == 1 else b"".join(kept), asbytes=True)
        return
    stream = cramjam.zstd.Compressor(level=min(level, _ZSTD_STREAM_LEVEL))
    for more in itertools.chain(kept, pieces):
        stream.compress(more)
        yield bytes(stream.flush())
    yield bytes(stream.finish())


def in_steps(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """Pieces of any size as copies of `STEP_BYTES`, the last one as long as it is."""
    step = bytearray()
    for piece in pieces:
        step += piece
        while len(step) > STEP_BYTES:
            yield bytes(memoryview(step)[:STEP_BYTES])
            del step[:STEP_BYTES]
    yield bytes(step)


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSION_LIMIT) -> Buffer:
    """The plain bytes of `data`, at most `limit` of them; `data` itself for Codec.NONE. Raises CorruptBatch."""
    if codec == Codec.NONE:
        return data
    pieces = [bytes(piece) for piece in plain_pieces(codec, data, limit, at_once=limit)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def plain_pieces(
    codec: int, data: Buffer, limit: int = DECOMPRESSION_LIMIT, *, at_once: int = PIECE_BYTES
) -> Iterator[Buffer]:
    """The same bytes piece by piece, in little memory; each piece is to be used before the next is asked for.

    A piece has up to `at_once` bytes, where it is no snappy block. Raises CorruptBatch: GrowsTooLarge beyond `limit`.
    """
    view = memoryview(data)
    try:
        match codec:
            case Codec.NONE:
                for start in range(0, len(view), at_once):
                    yield view[start : start + at_once]
            case Codec.GZIP:
                yield from _gunzip(view, limit)
            case Codec.SNAPPY:
                yield from _unsnappy(view, limit)
            case Codec.LZ4:
                yield from _unlz4(view, limit)
            case Codec.ZSTD:
                yield from _unzstd(view, limit, at_once)
            case _:
                raise CorruptBatch(f"compression codec {codec} is not known")
    except (ValueError, OSError, zlib.error, snappy.UncompressError, struct.error) as error:
        raise CorruptBatch(f"{Codec(codec).name.lower()} data cannot be decompressed: {error}") from error


def starts_slowly(codec: int, section: Buffer = b"") -> bool:
    """Whether the first use of a codec in this process will take some tenths of a second: pyarrow is to be loaded.

    For lz4 that is with frames that Go's clients write, say; `section` is what is to be read.
    """
    if "pyarrow" in sys.modules:
        return False
    return codec == Codec.ZSTD or (codec == Codec.LZ4 and len(section) > 0 and not is_usual_frame(section))


def takes_long(codec: int, level: int | None) -> bool:
    """Whether to compress even little takes some ms: with a level above the default, or lz4's thorough compressor."""
    if level is None or codec not in DEFAULT_LEVELS:
        return False
    return level != DEFAULT_LEVELS[codec] if codec == Codec.LZ4 else level > (3 if codec == Codec.ZSTD else 6)


def _pyarrow() -> ModuleType:
    import pyarrow

    module: ModuleType = pyarrow
    return module


def _too_large(limit: int) -> GrowsTooLarge:
    return GrowsTooLarge(f"a batch grows beyond {limit} bytes when decompressed")


@functools.lru_cache(maxsize=8)
def _lz4_thorough(level: int) -> Callable[[memoryview], bytes]:
    """The slow compressor of liblz4, of 12 levels; Kafka's five above are its highest, too."""
    codec = _pyarrow().Codec("lz4_raw", min(level, 12))
    return functools.partial(codec.compress, asbytes=True)


@functools.lru_cache(maxsize=8)
def _zstd(level: int = 3) -> Any:
    return _pyarrow().Codec("zstd", level)


def _read_stream(data: Buffer, codec: str, limit: int, step: int = PIECE_BYTES) -> Iterator[bytes]:
    """Frames do not tell their plain size for sure, so they are read piece by piece."""
    pyarrow = _pyarrow()
    stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(data), codec)
    total = 0
    while piece := stream.read(min(step, limit + 1 - total)):
        total += len(piece)
        if total > limit:
            raise _too_large(limit)
        yield piece


def _unlz4(view: memoryview, limit: int) -> Iterator[Buffer]:
    """The stream reader takes over, behind what it has been given, where a frame turns out to be of another shape."""
    given = 0
    if not is_usual_frame(view):
        _pyarrow()  # though it might be a frame of one block: then the next one does not start slowly
    for piece in frame_pieces(view, limit):
        if piece is not None:
            given += len(piece)
            yield piece
            continue
        for more in _read_stream(view, "lz4", limit):
            yield memoryview(more)[given:]
            given -= min(given, len(more))


def _unzstd(view: memoryview, limit: int, at_once: int) -> Iterator[bytes]:
    """In one piece where the frame tells its plain size, as those of librdkafka and of `compress` do; Java's do not."""
    size = _zstd_plain_size(view)
    if 0 < size <= min(limit, at_once, (len(view) // 4 + 1) * _ZSTD_BLOCK):
        try:
            plain: bytes = _zstd().decompress(view, size, asbytes=True)
        except (ValueError, OSError):  # malformed, or frames follow that the first one does not count
            pass
        else:
            yield plain
            return
    yield from _read_stream(view, "zstd", limit, max(_READ_SIZE, min(at_once, 4 * len(view))))


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


def _gunzip(view: memoryview, limit: int) -> Iterator[bytes]:
    """One or more gzip members, as Java's GZIPInputStream reads them."""
    member, room = zlib.decompressobj(_GZIP), limit
    for start in range(0, len(view), _READ_SIZE):
        rest: Buffer = view[start : start + _READ_SIZE]
        while rest:
            if member.eof:
                member = zlib.decompressobj(_GZIP)
            piece = member.decompress(rest, min(PIECE_BYTES, room + 1))
            rest = member.unused_data if member.eof else member.unconsumed_tail
            room -= len(piece)
            if room < 0:
                raise _too_large(limit)
            yield piece
    if not member.eof:
        raise CorruptBatch("gzip data ends before its trailer")


def _snappy_xerial(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """snappy-java's SnappyOutputStream: a header, then length-prefixed blocks."""
    yield _XERIAL_HEADER
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _XERIAL_BLOCK):
            block = snappy.compress(view[start : start + _XERIAL_BLOCK])
            yield struct.pack(">i", len(block))
            yield block


def _unsnappy(view: memoryview, limit: int) -> Iterator[bytes]:
    """Xerial framing (Java clients) or one raw block (librdkafka)."""
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield _unsnappy_block(view, 0, limit)
        return
    position, total = len(_XERIAL_HEADER), 0
    while position < len(view):
        (length,) = struct.unpack_from(">i", view, position)
        position += 4
        if not 0 <= length <= len(view) - position:
            raise CorruptBatch(f"a snappy block of {length} bytes does not fit in {len(view) - position}")
        block = _unsnappy_block(view[position : position + length], total, limit)
        total += len(block)
        position += length
        yield block


def _unsnappy_block(block: memoryview, before: int, limit: int) -> bytes:
    """A raw block; earlier ones gave `before` bytes. What it claims to hold is checked before it is allocated."""
    size, _ = read_unsigned_varint(block, 0)
    if before + size > limit:
        raise _too_large(limit)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to hold {size}")
    plain: bytes = snappy.decompress(block)
    return plain
