"""The two rules that a topic has for each record, and their violations. `RecordCheck` applies them."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.records.batch import NO_TIMESTAMP

MOST_FAULTS: Final = 100
"""How many faults of a batch are listed; all are counted."""


class RecordRules(NamedTuple):
    """Whether records need a key, and how far (ms) a timestamp may be from now; -1 means no timestamp."""

    needs_key: bool
    now_ms: int
    before_max_ms: int
    after_max_ms: int

    def forbid(self, timestamp: int) -> bool:
        """Whether a record's timestamp is out of bounds. The difference wraps as in Java."""
        age = (self.now_ms - timestamp + 2**63) % 2**64 - 2**63
        return timestamp != NO_TIMESTAMP and (age > self.before_max_ms or -age > self.after_max_ms)


class Fault(NamedTuple):
    """A record that violates a rule: its place in the batch, and its wrong `timestamp`, or None if it lacks a key."""

    place: int
    timestamp: int | None
