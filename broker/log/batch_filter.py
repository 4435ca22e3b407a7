"""Which records compaction keeps, and the batches that are left.

Used by compaction.py. A batch that loses nothing is passed on unchanged; any other is rebuilt with its place, codec,
producer and sequence (`rebuild_batch`). Work per record is done in columns over many batches at once.
Idea: Kafka's `Cleaner.cleanInto` and `MemoryRecords.filterTo`, and their rules:

- for a key in the offset map, records before its last offset go; records after the map's end stay;
- a tombstone that is the last of its key goes once its batch's delete horizon has passed (KIP-534). A batch gets its
  horizon when compaction first finds a tombstone in it, or a marker whose transaction has no batches left;
- records without a key and records of aborted transactions go;
- a batch without records goes too, unless it is the last of its producer (its sequence must survive) or the last of
  its segment (recovery must know where the compacted segment ends).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from broker.log.compaction_process import LastOfProducer
from broker.records.aborted_entries import AbortedEntry
from broker.records.batch import HEADER_SIZE, BatchHeader, Buffer, rebuild_batch, verify_batch
from broker.records.columns import Columns, decode_columns
from broker.records.compression import compress, decompress
from broker.records.control import ControlType, read_control_type
from broker.records.record_sections import Bools, Int64s
from broker.records.varint import encode_varint, read_varint

Batches = list[tuple[int, BatchHeader]]
"""(position, header) of batches of one buffer."""

_MOST_PLAIN: Final = 32 << 20
"""Decompressed bytes processed at a time; at least one batch."""
_BYTES_PER_ENTRY: Final = 150


def read_columns(chunk: bytes, batches: Batches, fields: Collection[str]) -> Iterator[tuple[Batches, Columns]]:
    """The records of all `batches`, of as many at a time as memory allows. No batch may be empty. Raises CorruptBatch.

    pyarrow's `to_pylist` and `to_numpy` would import pandas, which takes 50 MB; so `keys_of` and its like read buffers.
    """
    if sum(header.size for _, header in batches) < len(chunk):  # others are there, such as aborted ones
        chunk = b"".join([chunk[position : position + header.size] for position, header in batches])
    low, first = 0, 0
    while first < len(batches):
        columns = decode_columns(chunk, fields=fields, low=low, check_crcs=False, max_bytes=_MOST_PLAIN)
        low, end = columns.next_offset, first
        while end < len(batches) and batches[end][1].last_offset < low:
            end += 1
        yield batches[first:end], columns
        first = end


def keys_of(column: pa.Array) -> list[bytes]:
    """The elements of a binary array; b"" where it is null."""
    _, edges, data = column.buffers()
    content = b"" if data is None else data.to_pybytes()
    bounds = itertools.pairwise(np.frombuffer(edges, np.int32)[: len(column) + 1].tolist())
    return [content[start:end] for start, end in bounds]


def numbers_of(column: pa.Array) -> Int64s:
    """The elements of an int64 array without nulls."""
    return np.frombuffer(column.buffers()[1], np.int64)[: len(column)]


def are_there(column: pa.Array) -> Bools:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=len(column), bitorder="little").astype(np.bool_)


class BatchFilter:
    """One pass over a log, segment after segment; counts records in `records_read` and `records_kept`."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, LastOfProducer],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self.records_read = 0
        self.records_kept = 0

    def filter(self, chunk: bytes, batches: Batches, *, keep_last: bool) -> list[Buffer]:
        """What is left of `batches` of `chunk`, in order; with `keep_last` the last batch always stays.

        Raises CorruptBatch.
        """
        last_position = batches[-1][0] if keep_last else -1
        left: list[Buffer | None] = []
        examined: Batches = []
        places: list[int] = []
        for position, header in batches:
            verify_batch(chunk, position, header)
            must_stay = position == last_position or self._is_last_of_producer(header)
            discards = self._transactions.discards(chunk, position, header)
            self.records_read += header.record_count
            if header.is_control:
                left.append(self._marker(chunk, position, header, discards=discards, must_stay=must_stay))
            elif discards or not header.record_count:
                left.append(_emptied(header) if must_stay else None)
            else:
                places.append(len(left))
                examined.append((position, header))
                left.append(_emptied(header) if must_stay else None)  # `_examine` replaces this if records stay
        for some, columns in read_columns(chunk, examined, ("key", "value", "offset", "timestamp")):
            self._examine(chunk, some, columns, left, places)
            del places[: len(some)]
        return [piece for piece in left if piece is not None]

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _marker(
        self, chunk: bytes, position: int, header: BatchHeader, *, discards: bool, must_stay: bool
    ) -> Buffer | None:
        """A marker that must stay keeps its record, because recovery reads it."""
        horizon = header.delete_horizon_ms
        is_over = not header.record_count or (discards and horizon is not None and horizon <= self._now_ms)
        if is_over and not must_stay:
            return None
        self.records_kept += header.record_count
        if not discards or horizon is not None or not header.record_count:
            return chunk[position : position + header.size]
        plain = bytes(decompress(header.codec, chunk[position + HEADER_SIZE : position + header.size]))
        rebased = _rebased(plain, 0, len(plain), header.base_timestamp - self._horizon_ms)
        return _rebuilt(header, [rebased], 1, header.max_timestamp, self._horizon_ms)

    def _examine(
        self, chunk: bytes, batches: Batches, columns: Columns, left: list[Buffer | None], places: list[int]
    ) -> None:
        """Put what is left of each batch at its place in `left`."""
        has_value, timestamp = are_there(columns.value), numbers_of(columns.timestamp)
        counts = [header.record_count for _, header in batches]
        keep = self._kept(batches, columns, has_value, counts)
        firsts = np.cumsum([0, *counts[:-1]])
        kept_counts = np.add.reduceat(keep, firsts).tolist()
        keeps_tombstones = np.logical_or.reduceat(keep & ~has_value, firsts).tolist()
        for number, (first, (position, header)) in enumerate(zip(firsts.tolist(), batches, strict=True)):
            if not kept_counts[number]:
                continue
            self.records_kept += kept_counts[number]
            whole = chunk[position : position + header.size]
            new_horizon = self._horizon_ms if keeps_tombstones[number] and header.delete_horizon_ms is None else None
            if kept_counts[number] == header.record_count and new_horizon is None:
                left[places[number]] = whole
                continue
            rows = np.flatnonzero(keep[first : first + header.record_count])
            newest = header.max_timestamp if header.is_log_append_time else int(timestamp[first + rows].max())
            left[places[number]] = _with_rows(header, whole, rows, newest, new_horizon)

    def _kept(self, batches: Batches, columns: Columns, has_value: Bools, counts: list[int]) -> Bools:
        offset = numbers_of(columns.offset)
        over = [
            header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._now_ms for _, header in batches
        ]
        stays = (offset >= self._offsets.last_offsets(keys_of(columns.key))) & are_there(columns.key)
        if any(over):
            stays &= has_value | ~np.repeat(np.array(over), counts)
        kept: Bools = stays | (offset >= self._offsets.end)
        return kept


def _with_rows(header: BatchHeader, batch: bytes, rows: Int64s, newest: int, new_horizon: int | None) -> bytes:
    """The batch with only the records in `rows`. A new horizon is the new base timestamp: it shifts their times."""
    plain = bytes(decompress(header.codec, batch[HEADER_SIZE:]))
    bounds = list(_record_bounds(plain))
    pieces = [plain[slice(*bounds[row])] for row in rows.tolist()]
    if new_horizon is not None:
        shift = header.base_timestamp - new_horizon
        pieces = [_rebased(piece, 0, len(piece), shift) for piece in pieces]
    return _rebuilt(header, pieces, len(pieces), newest, new_horizon)


def _record_bounds(plain: bytes) -> Iterator[tuple[int, int]]:
    """Where each record of a section begins and ends."""
    end = 0
    while end < len(plain):
        start, number = end, plain[end]
        if number < 0x80:  # most lengths have one byte
            end += 1 + (number >> 1)
        else:
            length, body = read_varint(plain, start)
            end = body + length
        yield start, end


def _rebuilt(
    header: BatchHeader, pieces: list[bytes], count: int, max_timestamp: int, new_horizon: int | None
) -> bytes:
    section = compress(header.codec, b"".join(pieces))
    return rebuild_batch(header, section, count, max_timestamp=max_timestamp, delete_horizon_ms=new_horizon)


def _emptied(header: BatchHeader) -> bytes:
    return rebuild_batch(header, b"", 0, max_timestamp=header.max_timestamp)


def _rebased(data: bytes, start: int, end: int, shift: int) -> bytes:
    """The record in [start, end) with `shift` added to its timestamp delta."""
    _, attributes = read_varint(data, start)
    delta, rest = read_varint(data, attributes + 1)
    body = data[attributes : attributes + 1] + encode_varint(delta + shift) + data[rest:end]
    return encode_varint(len(body)) + body


class CleanedTransactions:
    """Which batches compaction empties because of their transaction, and which markers mark nothing any more.

    Needs every batch in offset order. Records of aborted transactions go at once. A marker may go only when no batch
    of its transaction is left, not even an empty one: without its marker the transaction would count as open when
    producer state is rebuilt. So a marker stays in the compaction that removes the last batch, and gets its delete
    horizon in the next one. Idea: Kafka's `CleanedTransactionMetadata`.
    """

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        self._waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)  # reversed, to pop the next one
        self._aborted: dict[int, AbortedEntry] = {}
        self._seen: set[int] = set()

    def discards(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch holds aborted records, or a marker without a transaction. Raises CorruptBatch."""
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            begun = self._waiting.pop()
            self._aborted[begun.producer_id] = begun
        if header.is_control:
            return self._discards_marker(buffer, position, header)
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        aborted = self._aborted.get(header.producer_id)
        return aborted is not None and header.base_offset <= aborted.last_offset

    def _discards_marker(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        if not header.record_count:
            return True  # an Apache Kafka broker has emptied it
        if read_control_type(buffer, position, header) not in (ControlType.ABORT, ControlType.COMMIT):
            return False
        producer_id = header.producer_id
        self._aborted.pop(producer_id, None)
        had_batches = producer_id in self._seen
        self._seen.discard(producer_id)
        return not had_batches


class OffsetMap:
    """Key → last offset, for the keys of the dirty part of a log from `start` to `end`.

    Holds the keys, not hashes of them. Kafka's `SkimpyOffsetMap` needs 24 bytes for a key; a dict needs about 150 and
    the key. So fewer keys fit in the same memory, and a log with more keys is compacted in several runs.
    """

    def __init__(self, memory: int, start: int) -> None:
        """The map is full when it takes `memory` bytes."""
        self._memory = memory
        self._offsets: dict[bytes, int] = {}
        self._key_bytes = 0
        self.end = start

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) * _BYTES_PER_ENTRY + self._key_bytes >= self._memory

    def note(self, keys: Sequence[bytes], offsets: Iterable[int]) -> None:
        """Add keys with their offsets in log order; the last offset of a key wins."""
        before = len(self._offsets)
        self._offsets.update(zip(keys, offsets, strict=True))
        if keys:
            self._key_bytes += (len(self._offsets) - before) * sum(map(len, keys)) // len(keys)

    def last_offsets(self, keys: Sequence[bytes]) -> Int64s:
        """The last offset of each key; -1 for a key that the dirty part does not have."""
        return np.fromiter(map(self._offsets.get, keys, itertools.repeat(-1)), np.int64, len(keys))
