"""Turns the record batches of a fetch into batches for a Produce request in a transaction of the mirror.

A batch is copied as it is: only its header gets the mirror's producer id, epoch and sequence number, and a new
checksum. Its records stay compressed and are not looked at. Batches are encoded anew, by columns, in these cases:

- a producer must send consecutive offsets, but compaction or DeleteRecords has removed records of the batch;
- the batch is larger than the target accepts;
- the batch has log append time, which a producer must not send: its records get that time as their create time;
- small batches follow each other. A request has one batch of a partition, so small batches would make slow requests.

Keys, values, headers, timestamps, their order and the codec stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from broker.client.produce_request import Stamp
from broker.records.batch import (
    BatchHeader,
    parse_header,
    patch_base_offset,
    patch_for_transaction,
    verify_batch,
    walk_batches,
)
from broker.records.columns import Columns, decode_columns, encode_columns
from broker.records.control import AbortedTransactions

_SMALL: Final = 32 << 10
_SMALL_COMPRESSED: Final = 4 << 10
"""To compress records again costs more than a request does, unless the batch is tiny."""
_MERGED: Final = 512 << 10
"""Most bytes of batches that are encoded anew together."""
_MOST_PLAIN: Final = 900 << 10
"""Most bytes of a batch that is encoded anew, before compression: below Kafka's default `max.message.bytes`."""


class BatchCopy(NamedTuple):
    """A batch to produce, and where its records were on the source: runs of (first offset, count)."""

    batch: bytes
    runs: list[tuple[int, int]]


def copy_batches(
    records: memoryview,
    *,
    low: int,
    aborted: Iterable[tuple[int, int]],
    stamp: Callable[[], Stamp],
    max_bytes: int,
    check_crcs: bool = True,
) -> Iterator[BatchCopy]:
    """The committed records of a read_committed fetch from offset `low` on.

    `records` is overwritten. A batch has at most `max_bytes`, or one record. `stamp()` is called for each batch, after
    the batch before it was sent. Raises CorruptBatch.
    """
    transactions = AbortedTransactions(aborted)
    pending: _Pending | None = None
    for position, header in walk_batches(records):
        if header.last_offset < low and not header.is_control:
            continue
        verify_batch(records, position, header, check_crc=check_crcs)
        if transactions.drops(records, position, header) or header.is_control or not header.record_count:
            if pending is not None:
                yield from pending.copy(stamp)
                pending = None
            continue
        found = _Pending(records, position, header, low, max_bytes)
        if pending is not None and pending.joins(found):
            pending.extend(found)
        else:
            if pending is not None:
                yield from pending.copy(stamp)
            pending = found
    if pending is not None:
        yield from pending.copy(stamp)


class _Pending:
    """Batches that follow each other in the fetch and are copied together; usually one."""

    def __init__(self, records: memoryview, position: int, header: BatchHeader, low: int, max_bytes: int) -> None:
        self._records = records
        self._start = position
        self._header = header
        self._low = low
        self._max_bytes = max_bytes
        self.end = position + header.size
        self.next_offset = header.next_offset
        consecutive = header.last_offset_delta + 1 == header.record_count
        fits = header.size <= max_bytes or header.record_count == 1
        self.whole = consecutive and fits and header.base_offset >= low and not header.is_log_append_time
        """Whether it is one batch that can be copied as it is."""

    @property
    def _mergeable(self) -> bool:
        small = _SMALL_COMPRESSED if self._header.codec else _SMALL
        return not self.whole or self._header.size < small

    def joins(self, following: _Pending) -> bool:
        """Whether the batch that follows is to be encoded together with these."""
        return (
            self._mergeable
            and following._mergeable
            and self._header.codec == following._header.codec
            and following.end - self._start <= _MERGED
        )

    def extend(self, following: _Pending) -> None:
        self.end, self.next_offset = following.end, following.next_offset
        self.whole = False

    def copy(self, stamp: Callable[[], Stamp]) -> Iterator[BatchCopy]:
        records = self._records[self._start : self.end]
        if self.whole:
            patch_base_offset(records, 0, 0, -1)
            patch_for_transaction(records, 0, self._header, *stamp())
            yield BatchCopy(bytes(records), [(self._header.base_offset, self._header.record_count)])
            return
        low = self._low
        while low < self.next_offset:
            columns = decode_columns(records, headers=True, low=low, check_crcs=False)
            yield from self._encode(columns, stamp)
            low = columns.next_offset

    def _encode(self, columns: Columns, stamp: Callable[[], Stamp]) -> Iterator[BatchCopy]:
        if not columns.num_rows:
            return
        producer_id, epoch, sequence = stamp()
        batches = encode_columns(
            columns.key,
            columns.value,
            columns.timestamp,
            columns.headers,
            codec=self._header.codec,
            max_bytes=min(self._max_bytes, _MOST_PLAIN),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        offsets, begin = columns.offset.to_numpy(), 0
        for batch in batches:
            end = begin + parse_header(batch).record_count
            yield BatchCopy(batch, _runs(offsets[begin:end]))
            begin = end


def _runs(offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Increasing offsets as runs of consecutive ones: (first, count)."""
    starts = np.concatenate(([0], np.flatnonzero(np.diff(offsets) != 1) + 1))
    counts = np.diff(np.concatenate((starts, [len(offsets)])))
    return list(zip(offsets[starts].tolist(), counts.tolist(), strict=True))
