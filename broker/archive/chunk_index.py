"""Check the bytes of a chunk, and index them: where its batches are, and how new they are.

A chunk is a run of whole batches of one archived segment. Called by chunk_cache.py in the thread that has downloaded
it. Every byte is checked before anything is served: the CRC of a batch covers all but the first 21 bytes. Of these
the length, the magic and the CRC itself cannot change without a failing CRC; base offsets must rise, and meet both
ends of the chunk; leader epochs must be those of the manifest. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from broker.errors import CorruptBatch
from broker.records.batch import LENGTH_END
from broker.records.record_sections import Bools, Head, Int64s, scan_batches, verify_batches

INDEX_INTERVAL: Final = 1 << 16
"""Bytes between two entries of an index: a look-up reads at most that many bytes of headers."""


class Chunk(NamedTuple):
    """Whole batches of an archived segment: `length` bytes of an object from `position` on."""

    path: str
    """of the object, below the archive's root"""
    position: int
    length: int
    first_offset: int
    end_offset: int
    """The first offset that is not in it. Records from there on that follow in the object do not count."""
    epochs: Sequence[tuple[int, int]]
    """(leader epoch, its first offset) of the segment, in order."""

    @property
    def key(self) -> tuple[str, int, int]:
        """Not that of the chunk before a truncation has cut off its end."""
        return self.path, self.position, self.end_offset


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """One entry for every `INDEX_INTERVAL` bytes, each of the first batch there; positions are those in the chunk."""

    offsets: array[int]
    """Base offsets."""
    positions: array[int]
    newest: array[int]
    """The newest timestamp (ms) of all batches before the entry's, and at the end that of all; -1 for none."""
    end: int
    """The position after the last batch that counts."""

    def position_of(self, offset: int) -> int:
        """The start of a batch at or before `offset`, not far from it."""
        return self.positions[max(bisect_right(self.offsets, offset) - 1, 0)]

    def offset_after(self, position: int) -> int | None:
        """The base offset of a batch at or after `position`; None when the index has none."""
        following = bisect_left(self.positions, position)
        return self.offsets[following] if following < len(self.offsets) else None

    def batch_before(self, position: int) -> int:
        return self.positions[max(bisect_right(self.positions, position) - 1, 0)]

    def position_for_timestamp(self, ms: int) -> int | None:
        """The start of a batch before which every batch is older than `ms`; None when all are."""
        found = bisect_left(self.newest, ms)
        return None if found == len(self.newest) else self.positions[max(found - 1, 0)]


def index_chunk(chunk: Chunk, data: bytes) -> ChunkIndex:
    """The index of `data`, which is what the store gave for `chunk`. Raises CorruptBatch unless it is that chunk."""
    if len(data) != chunk.length:
        raise CorruptBatch(f"it ends at byte {chunk.position + len(data)}, not at {chunk.position + chunk.length}")
    view = memoryview(data)
    table, wrong = scan_batches(view)
    counted = int(np.searchsorted(table[:, Head.BASE_OFFSET] >= chunk.end_offset, True))
    _check_end(chunk, table, counted, wrong)
    table = table[:counted]
    _check_order(chunk, table)
    verify_batches(view, table, check_crcs=True)
    _check_epochs(chunk, view, table)
    slots = table[:, Head.POSITION] // INDEX_INTERVAL
    first: Bools = np.concatenate((np.array([True]), slots[1:] != slots[:-1]))
    newest = np.maximum.accumulate(np.concatenate((np.array([-1]), table[:, Head.MAX_TIME])))
    return ChunkIndex(
        _packed(table[first, Head.BASE_OFFSET]),
        _packed(table[first, Head.POSITION]),
        _packed(np.append(newest[:-1][first], newest[-1])),
        int(table[-1, Head.POSITION] + table[-1, Head.SIZE]),
    )


def _packed(column: Int64s) -> array[int]:
    return array("q", column.astype(np.int64).tobytes())


def _check_end(chunk: Chunk, table: Int64s, counted: int, wrong: int | None) -> None:
    """The first `counted` batches must be all, unless a truncation of the archive has cut off the others there."""
    ends = table[:, Head.POSITION] + table[:, Head.SIZE]
    if not counted or (counted == len(table) and (wrong is not None or ends[-1] != chunk.length)):
        at = chunk.position + (int(ends[-1]) if len(table) else 0)
        raise CorruptBatch(f"there is no whole batch at byte {at}")
    bounds = table[counted - 1 : counted + 1, Head.BASE_OFFSET]
    last = int(bounds[0] + table[counted - 1, Head.LAST_DELTA])
    if last >= chunk.end_offset or (len(bounds) > 1 and not last + 1 == bounds[1] == chunk.end_offset):
        raise CorruptBatch(f"the batches do not end at offset {chunk.end_offset}")


def _check_order(chunk: Chunk, table: Int64s) -> None:
    base = table[:, Head.BASE_OFFSET]
    last = base + table[:, Head.LAST_DELTA]
    follows = np.concatenate((np.array([chunk.first_offset]), last[:-1] + 1))
    bad = np.flatnonzero((base < follows) | (last < base))
    if len(bad):
        at = int(bad[0])
        text = (
            f"the batch at byte {chunk.position + int(table[at, Head.POSITION])} has offsets {base[at]} to {last[at]}"
        )
        raise CorruptBatch(f"{text}, where {follows[at]} should follow")


def _check_epochs(chunk: Chunk, view: memoryview, table: Int64s) -> None:
    """The CRCs do not cover the leader epoch, which consumers use to detect a truncation."""
    known = np.array(chunk.epochs, np.int64).reshape(-1, 2)
    at = table[:, Head.POSITION][:, None] + np.arange(LENGTH_END, LENGTH_END + 4)
    found = np.frombuffer(view, np.uint8)[at].view(">i4")[:, 0]
    number = np.searchsorted(known[:, 1], table[:, Head.BASE_OFFSET], "right") - 1
    bad = np.flatnonzero((number < 0) | (known[number.clip(0), 0] != found)) if len(known) else np.arange(1)
    if len(bad):
        position = chunk.position + int(table[bad[0], Head.POSITION])
        raise CorruptBatch(f"the batch at byte {position} has leader epoch {found[bad[0]]}, unlike the manifest")
