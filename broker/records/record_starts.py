"""Where every record of many batches starts: the one part of decoding that cannot be vectorised along a batch.

Each record's place follows from the length of the one before. But the batches of a fetch do not
depend on each other, so their records are walked in lock-step: the first of all batches, the second
of all batches … with one look-up in a table that turns the two bytes of a length into the way to the
next record. Where too few batches are left for numpy to pay, a plain loop ends the walk.

Used by columns_decode.py, which checks afterwards that each batch's last record ends with the batch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from broker.errors import CorruptBatch
from broker.records.plain_bytes import Int64s, PlainBytes
from broker.records.varint import read_unsigned_varint

__all__ = ["record_starts"]

_FEWEST_IN_STEP: Final = 40
"""Batches below which the plain loop is faster (measured: 150 ns a record against ~6 us a step)."""


def _advance_table() -> Int64s:
    """Bytes from a record to the next, by its first two bytes; 0 where the length is longer or negative."""
    pair = np.arange(1 << 16, dtype=np.int64)
    first, second = pair & 0xFF, pair >> 8
    one_byte = first < 0x80
    number = np.where(one_byte, first, (first & 0x7F) | second << 7)
    known = (one_byte | (second < 0x80)) & (number & 1 == 0)
    return np.where(known, (number >> 1) + np.where(one_byte, 1, 2), 0)


_ADVANCE = _advance_table()


def record_starts(plain: PlainBytes, section_starts: Int64s, counts: Int64s) -> Int64s:
    """The position of each record's length, batch after batch.

    Positions rise within a batch, yet may leave it when lengths lie. Raises CorruptBatch for a
    negative length, IndexError for one that leaves the data.
    """
    first_rows = np.cumsum(counts) - counts
    out = np.empty(int(counts.sum()), np.int64)
    order = np.argsort(-counts, kind="stable")  # batches with most records first: those alive are a prefix
    counts, position, row = counts[order], section_starts[order], first_rows[order]
    steps = int(counts[_FEWEST_IN_STEP - 1]) if len(counts) >= _FEWEST_IN_STEP else 0
    if steps:
        _walk_in_step(plain, position, row, np.searchsorted(-counts, -np.arange(steps), "left"), out)
    for index in np.flatnonzero(counts > steps).tolist():
        begin = int(row[index]) + steps
        left = int(counts[index]) - steps
        out[begin : begin + left] = _walk_alone(plain, int(position[index]), left)
    return out


def _walk_in_step(plain: PlainBytes, position: Int64s, row: Int64s, alive_at: Int64s, out: Int64s) -> None:
    """Walk `len(alive_at)` records of each batch, or all it has; `position` is left behind them."""
    pairs, advance = plain.pairs, _ADVANCE
    current = position.copy()
    for step, alive in enumerate(alive_at.tolist()):
        if alive < len(current):
            position[: len(current)] = current
            current, row = current[:alive], row[:alive]
        out[row + step] = current
        way = advance[pairs[current]]
        if not way.all():
            unknown = np.flatnonzero(way == 0)
            length, body = plain.varints(current[unknown])
            if length.min() <= 0 or length.max() > plain.size:
                raise CorruptBatch("a record's length is negative or beyond its batch")
            way[unknown] = body - current[unknown] + length
        current = current + way
    position[: len(current)] = current


def _walk_alone(plain: PlainBytes, position: int, count: int) -> list[int]:
    """The same for `count` records of one batch, in plain Python."""
    data = plain.data
    starts: list[int] = []
    append = starts.append
    for _ in range(count):
        append(position)
        number = data[position]
        if number < 0x80:
            position += 1
        elif data[position + 1] < 0x80:
            number = number & 0x7F | data[position + 1] << 7
            position += 2
        else:
            number, position = read_unsigned_varint(data, position)
        if number & 1:
            raise CorruptBatch(f"a record's length is negative, before byte {position} of its batch")
        position += number >> 1
    return starts
