"""The record batch, version 2: read, check and patch its header without touching a record.

Used by the log, the client and the column codec. The layout is KIP-98's:

    offset  size  field
         0     8  base offset             patched by the broker
         8     4  length                  of everything after this field
        12     4  partition leader epoch  patched by the broker
        16     1  magic                   always 2
        17     4  crc                     CRC-32C of all that follows
        21     2  attributes              bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
        23     4  last offset delta
        27     8  base timestamp          ms; with bit 6 the delete horizon (KIP-534), which replaces it
        35     8  max timestamp           ms
        43     8  producer id             -1 none
        51     2  producer epoch
        53     4  base sequence
        57     4  record count
        61     …  records, compressed as the codec says

The CRC does not cover base offset and leader epoch, so patching them needs no new checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from broker.errors import CorruptBatch
from broker.records import native
from broker.records.crc32c import crc32c

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_CHECKED = struct.Struct(">hiqqqhii")
_HEAD = struct.Struct(">qiibI")

HEADER_SIZE = _HEADER.size
LENGTH_END = 12
"""Bytes before the counted length: a batch has `LENGTH_END + length` bytes."""

_CRC_POSITION = 17
_MAGIC_POSITION = 16
_CHECKED_POSITION = 21
_ATTRIBUTES_POSITION = 22  # the low byte of the two
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
_HORIZON_BIT = 0x40
CODEC_MASK = 0x07

NO_TIMESTAMP = -1


class BatchHeader(NamedTuple):
    """The 61 bytes at the head of a batch, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 0x07

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When (ms) compaction may drop the batch's tombstones or marker; None before it first saw them (KIP-534)."""
        return self.base_timestamp if self.attributes & _HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """Sequences wrap at 2**31 - 1, as Kafka's do."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises CorruptBatch when too few bytes are left."""
    if len(buffer) - position < HEADER_SIZE:
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a batch header")
    return BatchHeader(*_HEADER.unpack_from(buffer, position))


def is_transactional(buffer: Buffer) -> bool:
    """Whether the first batch belongs to a transaction; False for bytes that are no batch."""
    return (
        len(buffer) >= HEADER_SIZE
        and bool(buffer[_ATTRIBUTES_POSITION] & TRANSACTIONAL_BIT)
        and buffer[_MAGIC_POSITION] == 2
    )


def walk_batches(buffer: Buffer, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole batch.

    A fetch response may end in the middle of a batch (KIP-74), so a cut batch at the end is skipped. An impossible
    length raises CorruptBatch.
    """
    position, end = start, len(buffer)
    while end - position >= HEADER_SIZE:
        header = BatchHeader(*_HEADER.unpack_from(buffer, position))
        if header.length < HEADER_SIZE - LENGTH_END:
            raise _impossible(buffer, position, header.length)
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def _impossible(buffer: Buffer, position: int, length: int) -> CorruptBatch:
    """The error for a length that no batch has. Messages of the formats before Kafka 0.11 are often as short."""
    start, end = position + _MAGIC_POSITION, position + LENGTH_END + length
    crc = int.from_bytes(buffer[start - 4 : start], "big")
    if start < end and buffer[start] in (0, 1) and zlib.crc32(buffer[start:end]) == crc:
        return _other_format(buffer[start])
    return CorruptBatch(f"batch length {length} at byte {position}")


def _other_format(magic: int) -> CorruptBatch:
    return CorruptBatch(f"magic {magic} is not 2 (record batches older than 0.11)")


def find_last_batch(buffer: Buffer) -> tuple[int, int]:
    """(position of the last whole batch, number of whole batches); (0, 0) without one.

    Reads only the lengths, at a quarter of the cost of `walk_batches`, and less with the kernel. Raises CorruptBatch as
    that does.
    """
    if native.kernel is not None:
        count, wrong, last = native.kernel.scan(buffer, None)
        if wrong >= 0:
            raise _impossible(buffer, wrong, _LENGTH.unpack_from(buffer, wrong + 8)[0])
        return last, count
    position, last, count, end = 0, 0, 0, len(buffer)
    while end - position >= HEADER_SIZE:
        length = _LENGTH.unpack_from(buffer, position + 8)[0]
        if length < HEADER_SIZE - LENGTH_END:
            raise _impossible(buffer, position, length)
        after = position + LENGTH_END + length
        if after > end:
            break
        position, last, count = after, position, count + 1
    return last, count


def verify_batch(buffer: Buffer, position: int, header: BatchHeader, *, check_crc: bool = True) -> None:
    """Check magic, length, CRC and counts of the batch at `position`. Raises CorruptBatch."""
    verify_bytes(buffer, position, header, check_crc=check_crc)
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise CorruptBatch(f"record count {header.record_count}, last delta {header.last_offset_delta}")
    if header.codec > 4:
        raise CorruptBatch(f"compression codec {header.codec} is not known")


def verify_bytes(buffer: Buffer, position: int, header: BatchHeader, *, check_crc: bool = True) -> None:
    """Check only magic, length and CRC: whether the batch is as it was sent. Raises CorruptBatch."""
    if header.magic != 2:
        raise _other_format(header.magic)
    end = position + header.size
    if header.length < HEADER_SIZE - LENGTH_END or end > len(buffer):
        raise CorruptBatch(f"batch length {header.length} does not fit in {len(buffer) - position} bytes")
    if check_crc and crc32c(memoryview(buffer)[position + _CHECKED_POSITION : end]) != header.crc:
        raise CorruptBatch(f"CRC of the batch at offset {header.base_offset} does not match")


def patch_base_offset(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    struct.pack_into(">q", buffer, position, base_offset)
    struct.pack_into(">i", buffer, position + LENGTH_END, leader_epoch)


def patch_log_append_time(buffer: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int) -> None:
    """Set the broker's time (`message.timestamp.type=LogAppendTime`) and a new CRC."""
    _patch_time(buffer, position, header, header.attributes | TIMESTAMP_TYPE_BIT, now_ms)


def patch_max_timestamp(buffer: bytearray | memoryview, position: int, header: BatchHeader, newest_ms: int) -> None:
    """Set the newest record's time, the timestamp type CreateTime, and a new CRC."""
    _patch_time(buffer, position, header, header.attributes & ~TIMESTAMP_TYPE_BIT, newest_ms)


def _patch_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, attributes: int, max_timestamp: int
) -> None:
    struct.pack_into(">h", buffer, position + 21, attributes)
    struct.pack_into(">q", buffer, position + 35, max_timestamp)
    _patch_crc(buffer, position, header)


def patch_producer(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, producer_id: int, epoch: int, sequence: int
) -> None:
    """Set producer id, epoch and base sequence (KIP-98), and a new CRC."""
    struct.pack_into(">qhi", buffer, position + 43, producer_id, epoch, sequence)
    _patch_crc(buffer, position, header)


def _patch_crc(buffer: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    checked = memoryview(buffer)[position + _CHECKED_POSITION : position + header.size]
    struct.pack_into(">I", buffer, position + _CRC_POSITION, crc32c(checked))


def patch_for_transaction(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, producer_id: int, epoch: int, sequence: int
) -> None:
    """As `patch_producer`, and make it a batch of a transaction. A delete horizon becomes a plain base timestamp."""
    struct.pack_into(">h", buffer, position + 21, header.attributes & ~_HORIZON_BIT | TRANSACTIONAL_BIT)
    patch_producer(buffer, position, header, producer_id, epoch, sequence)


def build_batch(
    records: Buffer,
    record_count: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = 0,
    base_timestamp: int = -1,
    max_timestamp: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
) -> bytes:
    """A batch of a record section that is already compressed with `codec`."""
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    delta = record_count - 1 if last_offset_delta is None else last_offset_delta
    producer = producer_id, producer_epoch, base_sequence
    return _frame(
        base_offset, leader_epoch, (attributes, delta, base_timestamp, max_timestamp, *producer, record_count), records
    )


def rebuild_batch(
    header: BatchHeader,
    records: Buffer,
    record_count: int,
    *,
    max_timestamp: int,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """The batch of `header` with fewer records, compressed with its codec. Offsets, producer and sequences stay.

    `delete_horizon_ms` replaces the base timestamp, to which `records` are relative. Without records the codec is none,
    as in Kafka.
    """
    attributes, base = header.attributes, header.base_timestamp
    if not record_count:
        attributes, base = attributes & ~(CODEC_MASK | _HORIZON_BIT), NO_TIMESTAMP
    elif delete_horizon_ms is not None:
        attributes, base = attributes | _HORIZON_BIT, delete_horizon_ms
    fields = (
        attributes,
        header.last_offset_delta,
        base,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    return _frame(header.base_offset, header.leader_epoch, fields, records)


def recompressed_batch(header: BatchHeader, records: Buffer, codec: int) -> bytes:
    """The batch of `header` with all its records, now compressed with `codec`."""
    attributes = header.attributes & ~CODEC_MASK | codec
    return _frame(header.base_offset, header.leader_epoch, (attributes, *header[6:]), records)


def _frame(base_offset: int, leader_epoch: int, fields: tuple[int, ...], records: Buffer) -> bytes:
    """`fields` are those that the CRC covers, in wire order."""
    checked = _CHECKED.pack(*fields)
    crc = crc32c(records, crc32c(checked))
    length = HEADER_SIZE - LENGTH_END + len(records)
    return b"".join((_HEAD.pack(base_offset, length, leader_epoch, 2, crc), checked, records))
