"""The four codecs of a record batch, by Kafka's names and ids (`CompressionType`).

Used by the batch builders and by everything that reads records. Kafka's Java client can read what is written (snappy in
xerial framing, lz4 frames of independent blocks); data of any client can be read. A section that would decompress to
more than `limit` bytes raises CorruptBatch before it takes the memory, and so does a malformed one.

The fastest library does the work: the standard library (gzip), cramjam (snappy and lz4), pyarrow (zstd). The last two
are imported on first use, because a broker rarely needs pyarrow's 40 MB, and not before it gets compressed batches the
two of cramjam.
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

from broker.errors import ConfigError, CorruptBatch
from broker.records.batch import Buffer
from broker.records.lz4_frame import frame_pieces, is_usual_frame, write_frame
from broker.records.varint import read_unsigned_varint

DECOMPRESSION_LIMIT: Final = 256 << 20
"""The default for the most decompressed bytes of one batch. Batches of Kafka's clients are at most ~1 MB."""

_GZIP = 31  # zlib's window bits of a gzip stream

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest compatible version
_XERIAL_BLOCK = 32 << 10  # snappy-java's default
_SNAPPY_MAX_RATIO = 24  # a copy element makes at most 64 bytes out of 3

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_STREAM_HEADER = 6
_ZSTD_CHECKSUM, _ZSTD_SIZE_FLAG = 0x04, 0xC0
_ZSTD_SIZE = struct.Struct("<Q")
_ZSTD_BLOCK = 128 << 10  # the most that a block, which has at least 4 bytes, can hold

STEP_BYTES: Final = 128 << 10
"""Plain bytes compressed in one step of a check; a multiple of every codec's block size."""

PIECE_BYTES: Final = 256 << 10
"""Size of a piece when decompressing piece by piece."""

_READ_SIZE = 64 << 10

_ZSTD_AT_ONCE = 8 << 20
"""With a level above the default, so many plain bytes are collected and compressed at once. Only then zstd limits its
window (up to 128 MiB at level 22) and its tables (several times that) to the size of the data."""
_ZSTD_STREAM_LEVEL = 19
"""The highest level for more data than that, because higher levels have windows above 8 MiB."""


class GrowsTooLarge(CorruptBatch):
    """A batch decompresses to more bytes than its reader accepts."""


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes, with the names of `compression.type`."""

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
"""Kafka's defaults of `compression.<codec>.level`; lz4's 9 means its fast compressor."""


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """`data` compressed with `codec` (an id), or `data` itself for Codec.NONE.

    `level` is as in `compression.<codec>.level`; the default is Kafka's. snappy has no levels.
    """
    if codec == Codec.NONE:
        return data
    parts = list(compressed_parts(codec, (data,), level))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def compressed_parts(codec: int, pieces: Iterable[Buffer], level: int | None = None) -> Iterator[Buffer]:
    """`pieces` as one section compressed with `codec`, part by part.

    All pieces but the last must be a multiple of `STEP_BYTES` long, so that blocks are full. Join the parts when all
    are there: the first one may change until then.
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
    """Every frame has its plain size: librdkafka reads none that grows much and does not say how far.

    A single piece is compressed at once; so are some pieces with a slow level. The others are a stream, whose size is
    known and written into the header at its end.
    """
    kept, size, most = [next(pieces, b"")], 0, _ZSTD_AT_ONCE if takes_long(Codec.ZSTD, level) else 0
    for following in pieces:
        size += len(kept[-1])
        kept.append(following)
        if size + len(following) > most:
            break
    else:
        yield _zstd(level).compress(kept[0] if len(kept) == 1 else b"".join(kept), asbytes=True)
        return
    import cramjam

    stream = cramjam.zstd.Compressor(level=min(level, _ZSTD_STREAM_LEVEL))
    header, size = bytearray(), 0
    for more in itertools.chain(kept, pieces):
        stream.compress(more)
        size += len(more)
        part = bytes(stream.flush())
        if not header:
            header += _sized_zstd_header(part[:_ZSTD_STREAM_HEADER])
            yield header
            part = part[_ZSTD_STREAM_HEADER:]
        yield part
    yield bytes(stream.finish())
    header[-_ZSTD_SIZE.size :] = _ZSTD_SIZE.pack(size)


def _sized_zstd_header(header: bytes) -> bytes:
    """The header of a stream (magic, flags, window) with eight bytes for the plain size (RFC 8878, 3.1.1.1)."""
    flags = header[4]
    assert header[:4] == _ZSTD_MAGIC
    assert not flags & ~_ZSTD_CHECKSUM
    return header[:4] + bytes((flags | _ZSTD_SIZE_FLAG, header[5])) + bytes(_ZSTD_SIZE.size)


def in_steps(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """Pieces of any size as copies of `STEP_BYTES` each; the last one may be shorter."""
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
    """The same piece by piece, in little memory. A piece is valid until the next one is requested.

    A piece has at most `at_once` bytes, except a snappy block. Raises CorruptBatch, and GrowsTooLarge above `limit`.
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
    except (ValueError, OSError, zlib.error, struct.error) as error:
        raise CorruptBatch(f"{Codec(codec).name.lower()} data cannot be decompressed: {error}") from error


def starts_slowly(codec: int, section: Buffer = b"") -> bool:
    """Whether the first use of a codec takes long, because it imports cramjam, or pyarrow, some tenths of a second.

    It is pyarrow for zstd, and for lz4 frames of an unusual shape, such as Go clients write, when reading `section`.
    """
    if codec in (Codec.SNAPPY, Codec.LZ4) and "cramjam" not in sys.modules:
        return True
    if "pyarrow" in sys.modules:
        return False
    return codec == Codec.ZSTD or (codec == Codec.LZ4 and len(section) > 0 and not is_usual_frame(section))


def takes_long(codec: int, level: int | None) -> bool:
    """Whether compressing even little data takes milliseconds: a level above the default, or lz4's slow compressor."""
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
    """liblz4's slow compressor with its 12 levels. Kafka's levels above 12 mean 12."""
    codec = _pyarrow().Codec("lz4_raw", min(level, 12))
    return functools.partial(codec.compress, asbytes=True)


@functools.lru_cache(maxsize=8)
def _zstd(level: int = 3) -> Any:
    return _pyarrow().Codec("zstd", level)


def _read_stream(data: Buffer, codec: str, limit: int, step: int = PIECE_BYTES) -> Iterator[bytes]:
    """Reads piece by piece, because a frame may not contain its plain size."""
    pyarrow = _pyarrow()
    stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(data), codec)
    total = 0
    while piece := stream.read(min(step, limit + 1 - total)):
        total += len(piece)
        if total > limit:
            raise _too_large(limit)
        yield piece


def _unlz4(view: memoryview, limit: int) -> Iterator[Buffer]:
    """When a frame turns out to have an unusual shape, the stream reader yields what is still missing."""
    given = 0
    if not is_usual_frame(view):
        _pyarrow()  # even if one block can be read without it: the next batch then does not start slowly
    for piece in frame_pieces(view, limit):
        if piece is not None:
            given += len(piece)
            yield piece
            continue
        for more in _read_stream(view, "lz4", limit):
            yield memoryview(more)[given:]
            given -= min(given, len(more))


def _unzstd(view: memoryview, limit: int, at_once: int) -> Iterator[bytes]:
    """One piece if the frame contains its plain size, as librdkafka's and ours do; Java's frames do not."""
    size = _zstd_plain_size(view)
    if 0 < size <= min(limit, at_once, (len(view) // 4 + 1) * _ZSTD_BLOCK):
        try:
            plain: bytes = _zstd().decompress(view, size, asbytes=True)
        except (ValueError, OSError):  # malformed, or more frames follow
            pass
        else:
            yield plain
            return
    yield from _read_stream(view, "zstd", limit, max(_READ_SIZE, min(at_once, 4 * len(view))))


def _zstd_plain_size(view: memoryview) -> int:
    """The plain size in the frame's header (RFC 8878, 3.1.1.1), or -1."""
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
    """As snappy-java's SnappyOutputStream: a header, then blocks with their lengths."""
    import snappy

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
    """Decompress a raw block, after `before` bytes of earlier ones. Checks its claimed size before allocating."""
    size, _ = read_unsigned_varint(block, 0)
    if before + size > limit:
        raise _too_large(limit)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to hold {size}")
    import snappy

    try:
        plain: bytes = snappy.decompress(block)
    except snappy.UncompressError as error:
        raise ValueError(str(error)) from error
    return plain
