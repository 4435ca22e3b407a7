"""What a table holds of loads: its rows sorted out by the ranges of the loads, many loads in one pass over the table.

A row in a table names its topic, partition and offset, not its load: what lies in the range of a load is taken for its
own, unless other loads have rows there too (loads/covering.py). What lies in nobody's range is nobody's business. Used
by loads/delta_rows.py and loads/database_rows.py, which read the rows. Memory: 8 bytes for every row of as many loads
as are read at once, `BATCH` offsets or one load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.covering import Claim, Claims, rows_of
from spark_connector.loads.file_rows import Offsets
from spark_connector.loads.history import HistoryEntry
from spark_connector.loads.holdings import Held
from spark_connector.loads.record import LoadRecord

__all__ = ["BATCH", "OwnRows", "Parts", "Spans", "TableHoldings", "TableRows", "spans_of", "within"]

BATCH = 16 << 20  # offsets; 128 MiB

Parts = Iterator[Mapping[TopicPartition, Sequence[Offsets]]]
"""Rows as they are read, part by part, in no order."""

Spans = Mapping[TopicPartition, Sequence[tuple[int, int]]]
"""The offsets that are asked for: spans (start, end), ascending and apart."""

_NO_ROWS: Offsets = np.empty(0, np.int64)


@dataclass(frozen=True)
class OwnRows:
    """Rows that are known to be a load's by where they lie, sorted; `is_whole`: it has written no others."""

    offsets: Mapping[TopicPartition, Offsets] = field(default_factory=dict)
    is_whole: bool = False
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class TableRows(Protocol):
    """One table, as it can be read."""

    problems: Sequence[str]
    """What could not be read of rows that are not known to be one load's."""

    def own(self, record: LoadRecord) -> OwnRows: ...

    def scan(self, spans: Spans) -> Parts:
        """The rows at these offsets, and maybe more, that are not known to be one load's. May read the whole table."""
        ...


class TableHoldings:
    """`rows` of one table, on which there are `claims`."""

    place = "the table"

    def __init__(self, rows: TableRows, claims: Claims) -> None:
        self._rows = rows
        self._claims = claims

    def of(self, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, Held]]:
        for batch in _batches(entries):
            found = self._collect(spans_of(entry.record for entry in batch))
            for entry in batch:
                yield entry, self._held(entry.record, found)

    def strangers(self) -> list[str]:
        return list(self._rows.problems)  # whoever writes into a table besides may do so

    def _held(self, record: LoadRecord, found: Mapping[TopicPartition, Offsets]) -> Held:
        own = self._rows.own(record)
        held, notes = dict(own.offsets), list(own.notes)
        for range in record.ranges:
            others = self._claims.others(record.load_id, range)
            rows = within(found.get(range.tp, _NO_ROWS), range.start, range.end)
            mine = rows_of(rows, 0 if own.is_whole else 1, others)
            if len(mine):
                held[range.tp] = np.sort(np.concatenate([held.get(range.tp, _NO_ROWS), mine]))
            if others and not own.is_whole:
                notes.append(f"{range.tp}: {_names(others)} may have rows of the same offsets, which look the same")
        return Held(held, own.problems, tuple(notes))

    def _collect(self, spans: Spans) -> dict[TopicPartition, Offsets]:
        """The rows in the spans, sorted."""
        kept: dict[TopicPartition, list[Offsets]] = {}
        for part in self._rows.scan(spans) if spans else ():
            for tp, arrays in part.items():
                for start, end in spans.get(tp, ()):
                    inside = (array[(array >= start) & (array < end)] for array in arrays)
                    kept.setdefault(tp, []).extend(inside)
        return {tp: np.sort(np.concatenate(arrays)) for tp, arrays in kept.items()}


def within(rows: Offsets, start: int, end: int) -> Offsets:
    """Of sorted offsets those from `start` to before `end`."""
    return rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]


def _names(others: Iterable[Claim]) -> str:
    names = sorted({claim.name for claim in others})
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")


def _batches(entries: Sequence[HistoryEntry]) -> Iterator[list[HistoryEntry]]:
    batch: list[HistoryEntry] = []
    size = 0
    for entry in entries:
        more = sum(range.size for range in entry.record.ranges)
        if batch and size + more > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch


def spans_of(loads: Iterable[LoadRecord]) -> Spans:
    """All that the loads have loaded, loads that follow each other as one span."""
    spans: dict[TopicPartition, list[tuple[int, int]]] = {}
    ranges = (range for load in loads for range in load.ranges if range.size)
    for range in sorted(ranges, key=lambda range: (range.tp, range.start)):
        merged = spans.setdefault(range.tp, [])
        if merged and range.start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], range.end)
        else:
            merged.append((range.start, range.end))
    return spans
