"""Compares what came out with what went in, record by record: by (topic, partition, offset), never by count.

Pure, and tested with hand-made damage (tests/faults/test_record_audit.py). The input is a topic of topic_data.py, whose
keys and values follow from partition and offset; a copy of it in another topic is recognised by them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

_SHOWN = 5  # examples of each kind of damage

Content = Callable[[int, int], tuple[bytes, bytes]]
"""Key and value of the record at (partition, offset)."""


class Row(NamedTuple):
    """One record that was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Copy(NamedTuple):
    """One record of a topic that was written, at its own partition and offset there."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def audit_rows(
    rows: Iterable[Row], topic: str, ends: Sequence[int], content: Content, *, complete: bool = True
) -> list[str]:
    """What is wrong with `rows`, against partitions that hold offsets 0 … end-1; empty when nothing is.

    `complete=False` lets rows be missing: for a look while the work is not done.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    damaged = []
    for row in rows:
        place = (row.topic, row.partition, row.offset)
        found[place] += 1
        if (row.key, row.value) != content(row.partition, row.offset):
            damaged.append(f"{place} holds {row.key!r}, {row.value!r}")
    return _compare(found, topic, ends, complete) + _some("of wrong bytes", damaged)


def audit_copies(
    copies: Iterable[Copy],
    topic: str,
    ends: Sequence[int],
    content: Content,
    *,
    complete: bool = True,
    ordered: bool = True,
) -> list[str]:
    """The same for the copies of the records of `topic`, which are known by their value alone.

    Order is judged within a partition of the copy: the records of one source partition must come by rising offset.
    `copies` of one partition must be given by rising offset there.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    damaged, disorder = [], []
    last: dict[tuple[int, int], int] = {}
    for copy in copies:
        source = _source_of(copy.value)
        if source is None or (copy.key, copy.value) != content(*source):
            damaged.append(f"{copy}")
            continue
        partition, offset = source
        found[topic, partition, offset] += 1
        before = last.get((copy.partition, partition), -1)
        if offset < before:  # one that is equal is a duplicate, and said to be one
            disorder.append(f"{copy} stands behind offset {before} of its source")
        last[copy.partition, partition] = max(before, offset)
    return (
        _compare(found, topic, ends, complete)
        + _some("of wrong bytes", damaged)
        + _some("out of order", disorder if ordered else [])
    )


def _source_of(value: bytes | None) -> tuple[int, int] | None:
    match = re.fullmatch(rb"value-(\d+)-(\d+)", value or b"")
    return (int(match[1]), int(match[2])) if match else None


def _compare(found: Counter[tuple[str, int, int]], topic: str, ends: Sequence[int], complete: bool) -> list[str]:
    produced = {(topic, partition, offset) for partition, end in enumerate(ends) for offset in range(end)}
    doubled = [f"{place} × {count}" for place, count in found.items() if count > 1]
    return (
        _some("doubled", doubled)
        + _some("never produced", [str(place) for place in found.keys() - produced])
        + _some("missing", [str(place) for place in produced - found.keys()] if complete else [])
    )


def _some(kind: str, places: list[str]) -> list[str]:
    if not places:
        return []
    return [f"{len(places)} records {kind}: {'; '.join(sorted(places)[:_SHOWN])}"]
