"""Arrow columns to record batches without a Python object per record.

Called by columns.py only. An upper bound of every record's size decides where each batch begins. Then the C kernel
writes the batches, or numpy writes the varints between the fields and one `binary_join_element_wise` joins prefix, key,
prefix, value and headers of all rows; a batch is a slice of the joined bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.records import native
from broker.records.batch import HEADER_SIZE, TRANSACTIONAL_BIT, build_batch
from broker.records.compression import Codec, compress
from broker.records.native import Kernel, column_buffers
from broker.records.plain_bytes import Bools, Int64s, UInt64s
from broker.records.varint import MAX_VARINT_BYTES

_MOST_BYTES: Final = 64 << 20
"""Larger input is encoded in two halves, because of memory and Arrow's 32-bit offsets."""

_LARGEST_RECORD: Final = 1 << 30


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


@dataclass(frozen=True, slots=True)
class _HeaderParts:
    """The encoded headers of each record: arrays (or one scalar) to join, and their size."""

    parts: list[pa.Array | pa.Scalar]
    size: Int64s | int


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
    return _encode(key, value, times, _header_parts(pairs), options)


def _encode_natively(
    kernel: Kernel,
    key: pa.Array | None,
    value: pa.Array,
    timestamp: Int64s,
    headers: _HeaderPairs | None,
    options: EncodeOptions,
) -> list[bytes]:
    """The kernel cuts rows into batches by the rule of `_batch_starts`, and adds the headers of uncompressed ones."""
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


def _encode(
    key: pa.Array | None, value: pa.Array, timestamp: Int64s, headers: _HeaderParts, options: EncodeOptions
) -> list[bytes]:
    key_size = np.full(len(value), -1, np.int64) if key is None else _sizes(key)
    value_size = _sizes(value)
    key_number, value_number = zigzag(key_size), zigzag(value_size)
    # The size of what does not depend on the batch: attributes, key, value, headers.
    fixed = 1 + varint_size(key_number) + np.maximum(key_size, 0)
    fixed += varint_size(value_number) + np.maximum(value_size, 0) + headers.size
    starts = _batch_starts(fixed, timestamp, options.max_bytes - HEADER_SIZE)
    counts = np.diff(starts)
    first_row = np.repeat(starts[:-1], counts)
    time_number = zigzag(timestamp - timestamp[first_row])
    offset_number = zigzag(np.arange(len(value)) - first_row)

    prefix = PrefixBuilder()
    prefix.varints(zigzag(fixed + varint_size(time_number) + varint_size(offset_number)))
    prefix.zeros(len(value))
    prefix.varints(time_number)
    prefix.varints(offset_number)
    prefix.varints(key_number)
    if key is None:
        prefix.varints(value_number)
        parts = [prefix.build(), value]
    else:
        value_prefix = PrefixBuilder()
        value_prefix.varints(value_number)
        parts = [prefix.build(), key, value_prefix.build(), value]
    joined = _join([*parts, *headers.parts])
    records, edges = memoryview(joined.buffers()[2]), _offsets(joined)[starts].tolist()
    sections = [records[begin:end] for begin, end in itertools.pairwise(edges)]
    return _frame(sections, starts, timestamp, options)


def _batch_starts(fixed: Int64s, timestamp: Int64s, room: int) -> Int64s:
    """The first row of each batch, then the number of rows. A record larger than `room` gets a batch of its own.

    The length of a record's deltas depends on where its batch begins, so the longest possible ones are assumed.
    """
    largest = fixed + _delta_bytes(timestamp)
    largest += varint_size(zigzag(largest))
    if largest.max() > _LARGEST_RECORD:
        raise BrokerError(ErrorCode.message_too_large, f"a record of {largest.max()} bytes")
    edges = np.concatenate(([0], np.cumsum(largest)))
    starts = [0]
    while starts[-1] < len(fixed):
        fits = int(np.searchsorted(edges, edges[starts[-1]] + room, "right")) - 1
        starts.append(max(fits, starts[-1] + 1))
    return np.array(starts, np.int64)


def _delta_bytes(timestamp: Int64s) -> int:
    """The most bytes that a record's timestamp and offset deltas can take."""
    span = int(timestamp.max()) - int(timestamp.min())
    if span >= 1 << 62:
        raise ConfigError(f"timestamps {timestamp.min()} and {timestamp.max()} are too far apart for one batch")
    return int(varint_size(zigzag(np.array([span, len(timestamp)], np.int64))).sum())


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
    count = pc.list_value_length(headers).fill_null(0).to_numpy().astype(np.int64)
    return _HeaderPairs(count, key.cast(pa.binary()), value)


def _header_parts(headers: _HeaderPairs | None) -> _HeaderParts:
    """The header count, then key and value of each header.

    The headers of a row are neighbours, so they are joined header by header; the rows' edges over the result then make
    one element of each row.
    """
    if headers is None:
        return _HeaderParts([pa.scalar(b"\0", pa.binary())], 1)
    key, value, count = headers.key, headers.value, headers.count
    key_prefix, value_prefix, count_prefix = PrefixBuilder(), PrefixBuilder(), PrefixBuilder()
    key_prefix.varints(zigzag(_sizes(key)))
    value_prefix.varints(zigzag(_sizes(value)))
    joined = _join([key_prefix.build(), key, value_prefix.build(), value])
    count_number = zigzag(count)
    count_prefix.varints(count_number)
    edges = _offsets(joined)[np.concatenate(([0], np.cumsum(count)))]
    size = varint_size(count_number) + np.diff(edges)
    return _HeaderParts([count_prefix.build(), binary_array(edges, joined.buffers()[2])], size)


def _join(parts: list[pa.Array | pa.Scalar]) -> pa.Array:
    """The parts of each row, joined; null counts as empty."""
    return pc.binary_join_element_wise(
        *parts, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )


def _offsets(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where each element of a binary array begins in its data, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)


def _sizes(column: pa.Array) -> Int64s:
    """Bytes of each element of a binary array, -1 for null."""
    sizes = np.diff(_offsets(column)).astype(np.int64)
    if column.null_count:
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return sizes


Buffer = bytes | bytearray | memoryview


def zigzag(value: Int64s) -> UInt64s:
    """0, -1, 1, -2 … as 0, 1, 2, 3 …"""
    return ((value << 1) ^ (value >> 63)).view(np.uint64)


def varint_size(number: UInt64s) -> Int64s:
    """Bytes that each zigzagged number takes."""
    size = np.ones(len(number), np.int64)
    largest = int(number.max(initial=0))
    for shift in range(7, 7 * MAX_VARINT_BYTES, 7):
        if largest >> shift == 0:
            break
        size += number >= np.uint64(1 << shift)
    return size


class PrefixBuilder:
    """Builds a run of varints and single bytes for each row, column by column, as one binary array."""

    def __init__(self) -> None:
        self._columns: list[npt.NDArray[np.uint8]] = []
        self._present: list[Bools | None] = []

    def zeros(self, count: int) -> None:
        """Add a zero byte to each of `count` rows."""
        self._columns.append(np.zeros(count, np.uint8))
        self._present.append(None)

    def varints(self, number: UInt64s) -> None:
        """Add a zigzagged number to each row."""
        largest = int(number.max(initial=0))
        present: Bools | None = None
        while True:
            byte = (number & np.uint64(0x7F)).astype(np.uint8)
            self._present.append(present)
            self._columns.append(byte)
            if largest <= 0x7F:
                return
            more = number > np.uint64(0x7F)
            byte |= more.astype(np.uint8) << 7
            present = more
            number = number >> np.uint64(7)
            largest >>= 7

    def build(self) -> pa.Array:
        """The rows' bytes as a binary array."""
        rows, width = len(self._columns[0]), len(self._columns)
        matrix = np.empty((rows, width), np.uint8)
        for index, column in enumerate(self._columns):
            matrix[:, index] = column
        sometimes = {index: present for index, present in enumerate(self._present) if present is not None}
        if not sometimes:
            return binary_array(np.arange(rows + 1, dtype=np.int32) * np.int32(width), matrix)
        keep = np.ones((rows, width), np.bool_)
        sizes = np.full(rows, width - len(sometimes), np.int32)
        for index, present in sometimes.items():
            keep[:, index] = present
            sizes += present
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return binary_array(offsets, matrix[keep])


def binary_array(offsets: npt.NDArray[np.int32], data: Buffer | npt.NDArray[np.uint8]) -> pa.Array:
    """A binary array without nulls over `data`, without a copy."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
