"""Arrow columns to record batches.

Called by columns.py only. An upper bound of every record's size decides where each batch begins. The C kernel writes
the records without a Python object for each; without it a plain loop does, with the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.records import native
from broker.records.batch import HEADER_SIZE, TRANSACTIONAL_BIT, build_batch
from broker.records.compression import Codec, compress
from broker.records.native import Kernel, column_buffers
from broker.records.record import encode_field
from broker.records.record_sections import Int64s
from broker.records.varint import encode_varint

_MOST_BYTES: Final = 64 << 20
"""Larger input is encoded in two halves, because of memory and Arrow's 32-bit offsets."""

_LARGEST_RECORD: Final = 1 << 30

_ROWS_AT_ONCE: Final = 1000
"""Elements of a column that are Python objects at a time, without the kernel."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """The arguments of `columns.encode_columns`."""

    codec: int
    max_bytes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool

    def sequence_of(self, row: int) -> int:
        """Sequences wrap at 2**31 - 1, as in Kafka; -1 means none and stays."""
        return self.base_sequence if self.base_sequence < 0 else (self.base_sequence + row) & 0x7FFFFFFF

    def after(self, rows: int) -> EncodeOptions:
        """The options for the records after the first `rows`."""
        return replace(self, base_sequence=self.sequence_of(rows))


@dataclass(frozen=True, slots=True)
class _HeaderPairs:
    """The number of headers of each row, and all headers in the order of the rows."""

    count: Int64s
    key: pa.Array
    value: pa.Array


def encode(
    key: pa.Array | None, value: pa.Array, timestamp: pa.Array, headers: pa.Array | None, options: EncodeOptions
) -> list[bytes]:
    """See `columns.encode_columns`, which has checked the columns."""
    rows = len(value)

    def part(begin: int, size: int) -> list[bytes]:
        keys, pairs = (None if c is None else c.slice(begin, size) for c in (key, headers))
        values, times = value.slice(begin, size), timestamp.slice(begin, size)
        return encode(keys, values, times, pairs, options.after(begin))

    if rows > 1 and sum(column.nbytes for column in (key, value, headers) if column is not None) > _MOST_BYTES:
        half = rows // 2
        return part(0, half) + part(half, rows - half)
    if not rows:
        return []
    times, pairs = timestamp.to_numpy(), _header_pairs(headers)
    if native.kernel is not None:
        return _encode_natively(native.kernel, key, value, times, pairs, options)
    return _encode_plainly(key, value, times, pairs, options)


def _encode_natively(
    kernel: Kernel,
    key: pa.Array | None,
    value: pa.Array,
    timestamp: Int64s,
    headers: _HeaderPairs | None,
    options: EncodeOptions,
) -> list[bytes]:
    """The kernel cuts rows into batches by the rule of `_encode_plainly`, and adds the headers of uncompressed ones."""
    framed = None
    if options.codec == Codec.NONE and native.crc_in_kernel():
        attributes = TRANSACTIONAL_BIT if options.transactional else 0
        framed = (attributes, options.producer_id, options.producer_epoch, options.base_sequence)
    pairs = None
    if headers is not None:
        edges = np.concatenate(([0], np.cumsum(headers.count)))
        pairs = edges, column_buffers(headers.key), column_buffers(headers.value)
    try:
        batches, starts = kernel.encode(
            len(value),
            None if key is None else column_buffers(key),
            column_buffers(value),
            timestamp,
            pairs,
            _delta_bytes(timestamp),
            options.max_bytes - HEADER_SIZE,
            _LARGEST_RECORD,
            framed,
        )
    except OverflowError as error:
        raise BrokerError(ErrorCode.message_too_large, f"a record of {error} bytes") from None
    return batches if framed else _frame(batches, np.frombuffer(starts, np.int64), timestamp, options)


def _encode_plainly(
    key: pa.Array | None, value: pa.Array, timestamp: Int64s, headers: _HeaderPairs | None, options: EncodeOptions
) -> list[bytes]:
    """Without the kernel. A record larger than the room of a batch gets a batch of its own.

    The length of a record's deltas depends on where its batch begins, so the longest possible ones are assumed.
    """
    deltas, room = _delta_bytes(timestamp), options.max_bytes - HEADER_SIZE
    starts, sections, times = [0], [], timestamp.tolist()
    records: list[bytes] = []
    bound = 0
    for row, fields in enumerate(_encoded_fields(key, value, headers)):
        largest = 1 + deltas + len(fields)
        largest += len(encode_varint(largest))
        if largest > _LARGEST_RECORD:
            raise BrokerError(ErrorCode.message_too_large, f"a record of {largest} bytes")
        if records and bound + largest > room:
            sections.append(b"".join(records))
            starts.append(row)
            records, bound = [], 0
        bound += largest
        start = starts[-1]
        body = b"".join((b"\0", encode_varint(times[row] - times[start]), encode_varint(row - start), fields))
        records += (encode_varint(len(body)), body)
    sections.append(b"".join(records))
    return _frame(sections, np.array([*starts, len(value)], np.int64), timestamp, options)


def _encoded_fields(key: pa.Array | None, value: pa.Array, headers: _HeaderPairs | None) -> Iterator[bytes]:
    """Key, value and headers of each record as it has them."""
    keys = itertools.repeat(None) if key is None else _elements(key)
    if headers is None:
        for one_key, one_value in zip(keys, _elements(value), strict=False):
            yield b"".join((encode_field(one_key), encode_field(one_value), b"\0"))
        return
    of_headers = itertools.chain.from_iterable(zip(_elements(headers.key), _elements(headers.value), strict=True))
    for one_key, one_value, count in zip(keys, _elements(value), headers.count.tolist(), strict=False):
        pairs = map(encode_field, itertools.islice(of_headers, 2 * count))
        yield b"".join((encode_field(one_key), encode_field(one_value), encode_varint(count), *pairs))


def _elements(column: pa.Array) -> Iterator[bytes | None]:
    for begin in range(0, len(column), _ROWS_AT_ONCE):
        yield from column.slice(begin, _ROWS_AT_ONCE).to_pylist()


def _delta_bytes(timestamp: Int64s) -> int:
    """The most bytes that a record's timestamp and offset deltas can take."""
    span = int(timestamp.max()) - int(timestamp.min())
    if span >= 1 << 62:
        raise ConfigError(f"timestamps {timestamp.min()} and {timestamp.max()} are too far apart for one batch")
    return len(encode_varint(span)) + len(encode_varint(len(timestamp)))


def _frame(
    sections: Sequence[bytes | memoryview], starts: Int64s, timestamp: Int64s, options: EncodeOptions
) -> list[bytes]:
    """Compress the records of each batch and add its header."""
    base_timestamps = timestamp[starts[:-1]].tolist()
    max_timestamps = np.maximum.reduceat(timestamp, starts[:-1]).tolist()
    rows = starts.tolist()
    batches: list[bytes] = []
    for index, count in enumerate(np.diff(starts).tolist()):
        batches.append(
            build_batch(
                compress(options.codec, sections[index]),
                count,
                codec=options.codec,
                base_timestamp=base_timestamps[index],
                max_timestamp=max_timestamps[index],
                producer_id=options.producer_id,
                producer_epoch=options.producer_epoch,
                base_sequence=options.sequence_of(rows[index]),
                transactional=options.transactional,
            )
        )
    return batches


def _header_pairs(headers: pa.Array | None) -> _HeaderPairs | None:
    pairs = None if headers is None else headers.flatten()
    if headers is None or pairs is None or len(pairs) == 0:
        return None
    key, value = pairs.flatten()
    if key.null_count:
        raise ConfigError("column headers has a header without a key")
    import pyarrow.compute as pc

    count = pc.list_value_length(headers).fill_null(0).to_numpy().astype(np.int64)
    return _HeaderPairs(count, key.cast(pa.binary()), value)
