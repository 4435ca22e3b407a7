"""One record of a batch (KIP-98; Kafka's `DefaultRecord`), encoded and decoded in plain Python.

Used by the consumer, the console and all that read few records; whole fetches for Spark go through `columns.py`.
Layout of a record, every number a zigzag varint:

    length         of all that follows
    attributes     1 byte, unused
    timestamp      minus the batch's base timestamp, ms
    offset         minus the batch's base offset
    key length     -1 for a null key, then the key
    value length   -1 for a null value, then the value
    header count   then per header: key length, key (UTF-8), value length (-1 null), value
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.errors import CorruptBatch
from broker.records.batch import HEADER_SIZE, BatchHeader, Buffer, verify_batch, walk_batches
from broker.records.compression import decompress
from broker.records.control import AbortedTransactions
from broker.records.varint import SMALL_VARINTS, encode_varint, read_unsigned_varint, read_varint

Header = tuple[str, bytes | None]

_NULL = encode_varint(-1)

_LARGEST_PREFIX: Final = 21
"""The most bytes that length, attributes, timestamp and offset of a record take."""

NO_TIME: Final = -(2**63)
"""The append time of a batch whose records have their own times."""

PlainSection = tuple[bytes, int, int, int, int]
"""The decompressed records of a batch, and of its header base offset, last offset delta, base timestamp and the time of
all records, or NO_TIME."""

_BLOCK: Final = 10_000
"""Records that are in memory at once when a section is read block by block."""


class Record(NamedTuple):
    """A record as a consumer sees it: `timestamp` in ms, `timestamp_type` 0 create time or 1 log append time."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_type: int = 0


def size_bound(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """The most bytes of a batch of this one record before compression. Kafka's producer compares this with
    `max.request.size` (`AbstractRecords.estimateSizeInBytesUpperBound`)."""
    size = HEADER_SIZE + _LARGEST_PREFIX + _field_size(key) + _field_size(value) + len(encode_varint(len(headers)))
    return size + sum(_field_size(name.encode()) + _field_size(content) for name, content in headers)


def _field_size(field: bytes | None) -> int:
    return len(_NULL) if field is None else len(encode_varint(len(field))) + len(field)


def decode_records(
    buffer: Buffer, *, low: int = 0, check_crcs: bool = True, aborted: Iterable[tuple[int, int]] = ()
) -> Iterator[Record]:
    """The records of all whole batches in `buffer` with an offset of at least `low`.

    Skips control batches and the transactions in `aborted`, given as (producer id, first offset) like in a
    read_committed fetch. Raises CorruptBatch at the first malformed batch.
    """
    transactions = AbortedTransactions(aborted)
    for position, header in walk_batches(buffer):
        if header.last_offset < low and not header.is_control:
            continue
        verify_batch(buffer, position, header, check_crc=check_crcs)
        if transactions.drops(buffer, position, header) or header.is_control:
            continue
        records = decode_batch(buffer, position, header)
        if header.base_offset < low:
            records = [record for record in records if record.offset >= low]
        yield from records


def decode_batch(buffer: Buffer, position: int, header: BatchHeader) -> list[Record]:
    """The records of the batch at `position`, also of a control batch. Does not check the CRC. Raises CorruptBatch."""
    plain = bytes(decompress(header.codec, memoryview(buffer)[position + HEADER_SIZE : position + header.size]))
    append_time = header.max_timestamp if header.is_log_append_time else NO_TIME
    section = plain, header.base_offset, header.last_offset_delta, header.base_timestamp, append_time
    records, end, _ = _read_block(section, header.record_count)
    if end != len(plain):
        raise CorruptBatch(f"the last record of a batch ends at byte {end} of {len(plain)}")
    return records


def encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
) -> bytes:
    """One record with its length. Deltas are relative to the batch's base timestamp (ms) and base offset."""
    small = SMALL_VARINTS
    body = b"".join(
        (
            b"\0",
            small[timestamp_delta] if 0 <= timestamp_delta < 8192 else encode_varint(timestamp_delta),
            small[offset_delta] if offset_delta < 8192 else encode_varint(offset_delta),
            _NULL if key is None else small[len(key)] + key if len(key) < 8192 else encode_varint(len(key)) + key,
            _NULL if value is None else small[len(value)] if len(value) < 8192 else encode_varint(len(value)),
            value or b"",
            _encode_headers(headers) if headers else b"\0",
        )
    )
    return (small[len(body)] if len(body) < 8192 else encode_varint(len(body))) + body


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        parts += (encode_field(name.encode()), encode_field(value))
    return b"".join(parts)


def encode_field(field: bytes | None) -> bytes:
    """A key or value with its length."""
    return _NULL if field is None else encode_varint(len(field)) + field


def record_blocks(section: PlainSection, count: int, *, with_headers: bool) -> Iterator[list[Record]]:
    """The `count` records of a section, few at a time. Without headers these are neither decoded nor checked.

    Raises CorruptBatch, also for a timestamp that does not fit in 64 bits.
    """
    position, offset = 0, -1
    for begin in range(0, count, _BLOCK):
        records, position, offset = _read_block(section, min(_BLOCK, count - begin), position, offset, with_headers)
        times = [record.timestamp for record in records]
        if not -(2**63) <= min(times) <= max(times) < 2**63:
            raise CorruptBatch("a timestamp does not fit in 64 bits")
        yield records
    if position != len(section[0]):
        raise CorruptBatch(f"the last record of a batch ends at byte {position} of {len(section[0])}")


def _read_block(
    section: PlainSection, count: int, position: int = 0, offset: int = -1, with_headers: bool = True
) -> tuple[list[Record], int, int]:
    """`count` records from `position` on, where they end, and the last one's offset delta; `offset` is the one before.

    Reads the first byte of a varint inline, because most have no more and a call would double the time. `number` is
    the zigzag code: odd codes are negative numbers.
    """
    plain, base_offset, last_delta, base_timestamp, append_time = section
    timestamp_type = int(append_time != NO_TIME)
    records: list[Record] = []
    append, new, more = records.append, tuple.__new__, _read_more
    try:
        for _ in range(count):
            number, position = plain[position], position + 1
            if number > 0x7F:
                number, position = more(plain, position, number)
            length, end = number, position + (number >> 1)
            number, position = plain[position + 1], position + 2  # after the attributes
            if number > 0x7F:
                number, position = more(plain, position, number)
            timestamp = append_time if timestamp_type else base_timestamp + ((number >> 1) ^ -(number & 1))
            number, position = plain[position], position + 1
            if number > 0x7F:
                number, position = more(plain, position, number)
            previous, offset = offset, number >> 1
            if number & 1 or not previous < offset <= last_delta:
                raise CorruptBatch(f"the offsets of a batch do not rise from {previous} to at most {last_delta}")
            number, position = plain[position], position + 1
            if number > 0x7F:
                number, position = more(plain, position, number)
            if number & 1:
                key = _null(number)
            else:
                start, position = position, position + (number >> 1)
                key = plain[start:position]
            number, position = plain[position], position + 1
            if number > 0x7F:
                number, position = more(plain, position, number)
            if number & 1:
                value = _null(number)
            else:
                start, position = position, position + (number >> 1)
                value = plain[start:position]
            headers: tuple[Header, ...] = ()
            if not plain[position]:
                position += 1
            elif with_headers:
                headers, position = _read_headers(plain, position)
            else:
                position = max(position + 1, end)
            if position != end or length & 1:
                raise CorruptBatch(f"a record ends at byte {position} instead of {end}")
            append(new(Record, (base_offset + offset, timestamp, key, value, headers, timestamp_type)))
    except IndexError:
        raise CorruptBatch(f"a record of the batch at offset {base_offset} runs past its end") from None
    return records, position, offset


def _read_more(plain: bytes, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, the one before `position`, says that more follow."""
    byte = plain[position]
    if byte < 0x80:
        return first & 0x7F | byte << 7, position + 1
    return read_unsigned_varint(plain, position - 1)


def _null(number: int) -> bytes | None:
    if number == 1:
        return None
    raise CorruptBatch(f"a key or value of {-(number >> 1) - 1} bytes")


def _read_bytes(plain: bytes, position: int) -> tuple[bytes | None, int]:
    """A slice past the end is too short; the caller notices by the returned position."""
    length, position = read_varint(plain, position)
    if length >= 0:
        return plain[position : position + length], position + length
    if length == -1:
        return None, position
    raise CorruptBatch(f"a key or value of {length} bytes")


def _read_headers(plain: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    """A key with invalid UTF-8 gets replacement characters, as in Java."""
    count, position = read_varint(plain, position)
    if not 0 <= count <= len(plain):
        raise CorruptBatch(f"a record with {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _read_bytes(plain, position)
        if name is None:
            raise CorruptBatch("a header without a key")
        value, position = _read_bytes(plain, position)
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position
