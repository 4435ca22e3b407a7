"""Walk the batches of a segment file: to find one, by header alone, or verifying every byte.

Used by segment.py (reads, index rebuild), recovery.py and the offline tools. The scans yield (position,
header) and raise CorruptBatch at the first byte that cannot be a batch; whatever was yielded before is
sound. `find_batch` and `boundary_before` are the reader's part: a few small reads, no objects.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from broker.errors import CorruptBatch
from broker.log.segment_file import SegmentFile
from broker.records.batch import HEADER_SIZE, LENGTH_END, BatchHeader, parse_header, verify_batch
from broker.records.crc32c import crc32c

__all__ = ["boundary_before", "find_batch", "glance", "scan_headers", "scan_verified"]

HEADER_CHUNK = 8 * 1024
VERIFY_CHUNK = 1024 * 1024
CRC_SPAN_START = 21

# What finding a batch needs of its header: base offset, length, magic, last offset delta.
_GLANCE = struct.Struct(">qi4xb6xi")
_GLANCE_CHUNK = 4096
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_MIN_LENGTH = HEADER_SIZE - LENGTH_END


def find_batch(file: SegmentFile, position: int, end: int, offset: int) -> tuple[int, int] | None:
    """(position, size) of the first batch from `position` whose last offset is `offset` or above.

    None when no batch before byte `end` is. Raises CorruptBatch when `position` is no batch's start, or lies behind
    the batch that is looked for, and ColdRead.
    """
    started = position
    while position < end:
        chunk = file.glance(min(_GLANCE_CHUNK, end - position), position)
        at, last = 0, len(chunk) - _GLANCE.size
        while at <= last:
            base, length, magic, delta = _GLANCE.unpack_from(chunk, at)
            if magic != 2 or length < _MIN_LENGTH or delta < 0:
                raise CorruptBatch(f"no batch at byte {position + at}")
            if base + delta >= offset:
                if started and base > offset and position + at == started:
                    raise CorruptBatch(f"offset {offset} lies before byte {started}")
                return position + at, length + LENGTH_END
            at += length + LENGTH_END
        if not at:
            raise CorruptBatch(f"a cut batch at byte {position}")
        position += at
    return None


def glance(file: SegmentFile, position: int) -> tuple[int, int] | None:
    """(first offset, last offset) of the batch that begins at `position`; None when none does. Raises ColdRead."""
    chunk = file.glance(_GLANCE.size, position)
    if len(chunk) < _GLANCE.size:
        return None
    base, length, magic, delta = _GLANCE.unpack(chunk)
    return None if magic != 2 or length < _MIN_LENGTH or delta < 0 else (base, base + delta)


def boundary_before(file: SegmentFile, boundary: int, end: int, limit: int) -> int:
    """The last start of a batch, or `end`, at or before byte `limit`; `boundary` is a known one before it."""
    while boundary < end:
        chunk = file.glance(min(_GLANCE_CHUNK, end - boundary), boundary)
        at, last = 0, len(chunk) - _LENGTH_POSITION - _LENGTH.size
        while at <= last:
            step = _LENGTH.unpack_from(chunk, at + _LENGTH_POSITION)[0] + LENGTH_END
            if boundary + at + step > limit or step < HEADER_SIZE:
                return boundary + at
            at += step
        if not at:
            break
        boundary += at
    return boundary


def scan_headers(file: SegmentFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Batches in [start, end) by their headers; small ones share a read. Raises ColdRead."""
    position = start
    while position < end:
        chunk = file.glance(min(HEADER_CHUNK, end - position), position)
        at = 0
        while at == 0 or len(chunk) - at >= HEADER_SIZE:
            header = parse_header(chunk, at)
            _check_frame(header, position + at, end)
            yield position + at, header
            at += header.size
        position += at


def scan_verified(file: SegmentFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Batches in [start, end), each with magic, length, CRC and counts checked."""
    buffer = bytearray(min(VERIFY_CHUNK, max(end - start, HEADER_SIZE)))
    view = memoryview(buffer)
    position = start
    while position < end:
        filled = os.preadv(file.fileno(), [view[: end - position]], position)
        chunk = view[:filled]
        at = 0
        while filled - at >= HEADER_SIZE:
            header = parse_header(chunk, at)
            _check_frame(header, position + at, end)
            if header.size > filled - at:
                break
            verify_batch(chunk, at, header)
            yield position + at, header
            at += header.size
        if at == 0:  # a batch larger than the buffer, or the torn rest of one
            header = parse_header(chunk)
            _verify_in_pieces(file, position, header, view)
            yield position, header
            at = header.size
        position += at


def _check_frame(header: BatchHeader, position: int, end: int) -> None:
    if header.magic != 2 or header.length < _MIN_LENGTH or position + header.size > end:
        raise CorruptBatch(f"no whole batch at byte {position} (magic {header.magic}, length {header.length})")


def _verify_in_pieces(file: SegmentFile, position: int, header: BatchHeader, view: memoryview) -> None:
    """Verify without holding the batch: its length may be garbage as large as the file."""
    at, end, crc = position + CRC_SPAN_START, position + header.size, 0
    while at < end:
        filled = os.preadv(file.fileno(), [view[: end - at]], at)
        if not filled:
            break
        crc = crc32c(view[:filled], crc)
        at += filled
    if at < end or crc != header.crc:
        raise CorruptBatch(f"CRC of the batch at offset {header.base_offset} does not match")
