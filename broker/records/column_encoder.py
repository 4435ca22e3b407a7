"""Arrow columns to record batches.

Called by columns.py only. An upper bound of every record's size decides where each batch begins. The C kernel writes
the records without a Python object for each; without it a plain loop does, with the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.records import native
from broker.records.batch import HEADER_SIZE, TRANSACTIONAL_BIT, build_batch
from broker.records.compression import Codec, compress
from broker.records.native import Kernel, column_buffers
from broker.records.record import encode_field
from broker.records.record_sections import Int64s
from broker.records.varint import encode_varint

_LARGEST_RECORD: Final = 1 << 30

_ROWS_AT_ONCE: Final = 1000
"""Elements of a column that are Python objects at a time, without the kernel."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """The arguments of `columns.encode_partitions`."""

    codec: int
    max_bytes: int
    producer_id: int
    producer_epoch: int
    base_sequences: Sequence[int]
    transactional: bool


class _HeaderPairs(NamedTuple):
    """The number of headers of each row, and all headers in the order of the rows."""

    counts: Int64s
    key: pa.Array
    value: pa.Array


class _Chunk(NamedTuple):
    key: pa.Array | None
    value: pa.Array
    times: Int64s
    headers: _HeaderPairs | None


class _Section(NamedTuple):
    """A batch of a slot: how many records it has, and their bytes, or its own."""

    slot: int
    records: int
    base_timestamp: int
    max_timestamp: int
    content: bytes


def encode(
    columns: Iterable[tuple[pa.Array | None, pa.Array, pa.Array, pa.Array | None]],
    slots: npt.NDArray[np.int32] | None,
    options: EncodeOptions,
) -> list[list[bytes]]:
    """See `columns.encode_partitions`, which has checked the columns; `slots` are its partitions."""
    chunks = [
        _Chunk(key, value, timestamp.to_numpy(), _header_pairs(headers))
        for key, value, timestamp, headers in columns
        if len(value)
    ]
    batches: list[list[bytes]] = [[] for _ in options.base_sequences]
    if chunks:
        deltas = _delta_bytes(chunks)
        if native.kernel is None:
            sections, framed = _encode_plainly(chunks, slots, deltas, options), False
        else:
            sections, framed = _encode_natively(native.kernel, chunks, slots, deltas, options)
        if framed:
            for section in sections:
                batches[section.slot].append(section.content)
        else:
            _frame(sections, batches, options)
    return batches


def _encode_natively(
    kernel: Kernel, chunks: Sequence[_Chunk], slots: npt.NDArray[np.int32] | None, deltas: int, options: EncodeOptions
) -> tuple[list[_Section], bool]:
    """The kernel cuts rows into batches by the rule of `_encode_plainly`, and adds the headers of uncompressed ones;
    True if it did."""
    framed = None
    if options.codec == Codec.NONE and native.crc_in_kernel():
        attributes = TRANSACTIONAL_BIT if options.transactional else 0
        sequences = np.array(options.base_sequences, np.int64)
        framed = (attributes, options.producer_id, options.producer_epoch, sequences)
    try:
        made = kernel.encode(
            [_buffers(chunk) for chunk in chunks],
            slots,
            len(options.base_sequences),
            deltas,
            options.max_bytes - HEADER_SIZE,
            _LARGEST_RECORD,
            framed,
        )
    except OverflowError as error:
        raise BrokerError(ErrorCode.message_too_large, f"a record of {error} bytes") from None
    return [_Section(*section) for section in made], framed is not None


def _buffers(chunk: _Chunk) -> native.Chunk:
    headers = chunk.headers
    pairs = None
    if headers is not None:
        edges = np.concatenate(([0], np.cumsum(headers.counts)))
        pairs = edges, column_buffers(headers.key), column_buffers(headers.value)
    key = None if chunk.key is None else column_buffers(chunk.key)
    return len(chunk.value), key, column_buffers(chunk.value), chunk.times, pairs


@dataclass(slots=True)
class _Filling:
    """A batch that rows are added to, without the kernel."""

    slot: int
    first_time: int
    newest: int
    bound: int = 0
    count: int = 0
    records: list[bytes] = field(default_factory=list)


def _encode_plainly(
    chunks: Sequence[_Chunk], slots: npt.NDArray[np.int32] | None, deltas: int, options: EncodeOptions
) -> list[_Section]:
    """Without the kernel. A record larger than the room of a batch gets a batch of its own.

    The length of a record's deltas depends on where its batch begins, so the longest possible ones are assumed.
    """
    room = options.max_bytes - HEADER_SIZE
    made: list[_Filling] = []
    filling: dict[int, _Filling] = {}
    rows = itertools.chain.from_iterable(
        zip(chunk.times.tolist(), _encoded_fields(chunk.key, chunk.value, chunk.headers), strict=True)
        for chunk in chunks
    )
    for (time, fields), slot in zip(rows, itertools.repeat(0) if slots is None else slots.tolist(), strict=False):
        largest = 1 + deltas + len(fields)
        largest += len(encode_varint(largest))
        if largest > _LARGEST_RECORD:
            raise BrokerError(ErrorCode.message_too_large, f"a record of {largest} bytes")
        batch = filling.get(slot)
        if batch is None or batch.bound + largest > room:
            batch = filling[slot] = _Filling(slot, time, time)
            made.append(batch)
        body = b"".join((b"\0", encode_varint(time - batch.first_time), encode_varint(batch.count), fields))
        batch.records += (encode_varint(len(body)), body)
        batch.bound += largest
        batch.count += 1
        batch.newest = max(batch.newest, time)
    return [_Section(one.slot, one.count, one.first_time, one.newest, b"".join(one.records)) for one in made]


def _encoded_fields(key: pa.Array | None, value: pa.Array, headers: _HeaderPairs | None) -> Iterator[bytes]:
    """Key, value and headers of each record as it has them."""
    keys = itertools.repeat(None) if key is None else _elements(key)
    if headers is None:
        for one_key, one_value in zip(keys, _elements(value), strict=False):
            yield b"".join((encode_field(one_key), encode_field(one_value), b"\0"))
        return
    of_headers = itertools.chain.from_iterable(zip(_elements(headers.key), _elements(headers.value), strict=True))
    for one_key, one_value, count in zip(keys, _elements(value), headers.counts.tolist(), strict=False):
        pairs = map(encode_field, itertools.islice(of_headers, 2 * count))
        yield b"".join((encode_field(one_key), encode_field(one_value), encode_varint(count), *pairs))


def _elements(column: pa.Array) -> Iterator[bytes | None]:
    for begin in range(0, len(column), _ROWS_AT_ONCE):
        yield from column.slice(begin, _ROWS_AT_ONCE).to_pylist()


def _delta_bytes(chunks: Sequence[_Chunk]) -> int:
    """The most bytes that a record's timestamp and offset deltas can take."""
    oldest = min(int(chunk.times.min()) for chunk in chunks)
    newest = max(int(chunk.times.max()) for chunk in chunks)
    if newest - oldest >= 1 << 62:
        raise ConfigError(f"timestamps {oldest} and {newest} are too far apart for one batch")
    return len(encode_varint(newest - oldest)) + len(encode_varint(sum(len(chunk.times) for chunk in chunks)))


def _frame(sections: Sequence[_Section], batches: list[list[bytes]], options: EncodeOptions) -> None:
    """Compress the records of each batch and add its header. Sequences wrap at 2**31 - 1, as in Kafka; -1 means none
    and stays."""
    sequences = list(options.base_sequences)
    for section in sections:
        sequence = sequences[section.slot]
        if sequence >= 0:
            sequences[section.slot] = (sequence + section.records) & 0x7FFFFFFF
        batches[section.slot].append(
            build_batch(
                compress(options.codec, section.content),
                section.records,
                codec=options.codec,
                base_timestamp=section.base_timestamp,
                max_timestamp=section.max_timestamp,
                producer_id=options.producer_id,
                producer_epoch=options.producer_epoch,
                base_sequence=sequence,
                transactional=options.transactional,
            )
        )


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
