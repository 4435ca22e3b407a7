"""Which loads have rows of which offsets in one table, so that a row is not held against a load that did not write it.

A table may take the loads of several groups, and of one topic that was created anew: then one offset has several rows,
and nothing tells whose each of them is. Used by loads/table_holdings.py and by rewinds in a database. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.file_rows import Offsets
from spark_connector.loads.history import undone_by
from spark_connector.loads.record import LoadRange, LoadRecord

__all__ = ["Claim", "Claims", "rows_of", "standing_loads"]

Stored = Mapping[str, Mapping[TopicPartition, int]]
"""Group → partition → its next offset."""


@dataclass(frozen=True)
class Claim:
    """A load, or loads that the log has forgotten, may have a row of every offset from `start` to before `end`;
    `certain` when there is exactly one of each."""

    load_id: str | None
    group: str
    start: int
    end: int
    certain: bool

    @property
    def name(self) -> str:
        return self.load_id or f"forgotten loads of group '{self.group}'"


def standing_loads(records: Iterable[LoadRecord]) -> list[LoadRecord]:
    """The loads, of any groups, that no rewind has taken back."""
    given = list(records)
    undone = undone_by(given)
    return [record for record in given if record.rewind is None and record.load_id not in undone]


class Claims:
    """By partition. Offsets without a record (transactions, compaction, filters) have no row: a load with such gaps is
    not certain of any."""

    def __init__(self, claims: Mapping[TopicPartition, list[Claim]]) -> None:
        self._claims = claims

    @classmethod
    def of(cls, loads: Iterable[LoadRecord], known: Iterable[LoadRecord], stored: Stored) -> Claims:
        """Of `loads`; and of those that the log has forgotten, which can be no more than what lies between the
        beginning and the first range of its group that is `known`, or `stored` when there is none."""
        claims: dict[TopicPartition, list[Claim]] = {}
        for load in loads:
            for range in load.ranges:
                claim = Claim(load.load_id, load.id.group, range.start, range.end, range.rows == range.size)
                claims.setdefault(range.tp, []).append(claim)
        for tp, claim in _forgotten(list(known), stored):
            claims.setdefault(tp, []).append(claim)
        return cls(claims)

    def others(self, load_id: str, range: LoadRange) -> list[Claim]:
        """Those of other loads on some of the range's offsets."""
        claims = self._claims.get(range.tp, ())
        return [c for c in claims if c.load_id != load_id and c.start < range.end and range.start < c.end]

    def outsiders(self, loads: Collection[LoadRecord]) -> list[tuple[TopicPartition, Claim]]:
        """Claims on what `loads` have loaded, of any load that is not among them."""
        ids = {load.load_id for load in loads}
        found = ((range.tp, self.others(load.load_id, range)) for load in loads for range in load.ranges)
        return [(tp, claim) for tp, claims in found for claim in claims if claim.load_id not in ids]


def rows_of(rows: Offsets, own: int, others: Collection[Claim]) -> Offsets:
    """Of all the table's `rows` in a range (sorted), those that are a load's, when it should have `own` (0 or 1) of
    each: one that is missing goes to the others first, one that is too many is the load's."""
    if not others:
        return rows
    found, counts = np.unique(rows, return_counts=True)
    left = counts - _covered(found, [claim for claim in others if claim.certain])
    surplus = left - own - _covered(found, [claim for claim in others if not claim.certain])
    return np.repeat(found, np.where(surplus > 0, own + surplus, np.clip(left, 0, own)))


def _covered(offsets: Offsets, claims: Collection[Claim]) -> Offsets:
    """How many of the claims are on each offset."""
    starts = np.sort(np.array([claim.start for claim in claims], np.int64))
    ends = np.sort(np.array([claim.end for claim in claims], np.int64))
    return np.searchsorted(starts, offsets, "right") - np.searchsorted(ends, offsets, "right")


def _forgotten(known: Collection[LoadRecord], stored: Stored) -> list[tuple[TopicPartition, Claim]]:
    reach: dict[tuple[str, TopicPartition], int] = {}
    for load in sorted(known, key=lambda load: load.id.sequence):
        for range in () if load.rewind else load.ranges:
            key = load.id.group, range.tp
            end = reach.setdefault(key, range.start)
            if range.stored is not None and range.start < range.stored:  # of a topic that was created anew
                reach[key] = max(end, range.stored)
    whole = {load.id.group for load in known if load.id.sequence == 1}
    return [
        (tp, Claim(None, group, 0, reach.get((group, tp), offset), False))
        for group, offsets in stored.items()
        if group not in whole
        for tp, offset in offsets.items()
    ]
