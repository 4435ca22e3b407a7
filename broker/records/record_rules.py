"""What a topic asks of each record, and what breaks it: the two rules that `RecordCheck` looks at on its way."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.records.batch import NO_TIMESTAMP

__all__ = ["MOST_FAULTS", "Fault", "RecordRules"]

MOST_FAULTS: Final = 100
"""Faults of a batch that are kept; all are counted."""


class RecordRules(NamedTuple):
    """What a topic asks of each record. A timestamp of -1 is none; others must lie within the two bounds, ms."""

    needs_key: bool
    now_ms: int
    before_max_ms: int
    after_max_ms: int

    def forbid(self, timestamp: int) -> bool:
        """Whether a record's time is out of bounds. The difference wraps as Java's does."""
        age = (self.now_ms - timestamp + 2**63) % 2**64 - 2**63
        return timestamp != NO_TIMESTAMP and (age > self.before_max_ms or -age > self.after_max_ms)


class Fault(NamedTuple):
    """A record the topic's rules forbid, by its place in the batch; without a `timestamp` it lacks a key."""

    place: int
    timestamp: int | None
