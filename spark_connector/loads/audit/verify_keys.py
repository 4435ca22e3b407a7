"""Compare a table that has one row per key with the last record of each key in Kafka's log.

The records of all loads that stand are read and decoded again, and reduced to the last change of each key as a load
does it. The table must have a row for each of them that is no delete, written by that very record, and no other row.
What the log has lost (retention, compaction) cannot be compared, and is said. Values are not compared: a row's record
says what it holds. Memory: a row per key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.audit.kafka_log import KafkaLog
from spark_connector.loads.changes import DELETED, OFFSET, PARTITION, TOPIC
from spark_connector.loads.destination import LoadedDestination
from spark_connector.loads.last_changes import last_writers, rows_of_keys, stored_columns
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.times import in_words
from spark_connector.loads.upsert import Upsert

_EXAMPLES = 3

Letters = Mapping[str, Mapping[TopicPartition, Any]]
"""Load id → the offsets of its dead letters."""
_NO_LETTERS: Letters = {}


@dataclass
class KeyCounts:
    """`right`: keys whose row the last record wrote. The others, with the first few keys as examples."""

    right: int = 0
    wrong: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    gone: int = 0
    """Rows whose record is no longer in the log, nor a later one of the key."""

    def add(self, what: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self.wrong[what] = self.wrong.get(what, 0) + rows.num_rows
            shown = self.examples.setdefault(what, [])
            for row in range(min(rows.num_rows, _EXAMPLES - len(shown))):
                shown.append(", ".join(f"{name}={in_words(rows.column(name)[row])}" for name in rows.column_names))

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(
            f"{count:,} keys {what}, such as {'; '.join(self.examples[what])}" for what, count in self.wrong.items()
        )

    @property
    def unread(self) -> tuple[str, ...]:
        if not self.gone:
            return ()
        return (f"{self.gone:,} rows were not compared: the log no longer has their records.",)

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{self.right:,} keys have the row that their last record in the log wrote.",)


def count_keys(
    destination: LoadedDestination, loads: Sequence[LoadRecord], log: KafkaLog, letters: Letters = _NO_LETTERS
) -> KeyCounts:
    """Compare the table with the records of these loads, which are all that stand, but for their dead letters.

    Raises ConfigError, LoadError and the client's errors.
    """
    upsert = loads[-1].upsert
    assert upsert is not None
    counts = KeyCounts()
    model = _model(loads, upsert, log, letters)
    seen = np.zeros(0 if model is None else model.num_rows, bool)
    for part in destination.stored_rows(stored_columns(upsert)):
        _compare(part, model, seen, upsert, counts, loads, log)
    if model is not None:
        live = pc.invert(model.column(DELETED)).to_numpy()
        counts.add("of the log have no row in the table", model.filter(pa.array(live & ~seen)).select(list(upsert.key)))
    return counts


def _model(loads: Sequence[LoadRecord], upsert: Upsert, log: KafkaLog, letters: Letters) -> pa.Table | None:
    """The last change of each key that is left in the log; None when nothing is."""
    try:
        return last_writers(upsert, _records(loads, log, letters))
    except LoadError as error:
        raise LoadError(f"the keys cannot be compared, because a load would be refused now: {error}") from error


def _records(loads: Sequence[LoadRecord], log: KafkaLog, letters: Letters) -> Iterator[pa.RecordBatch]:
    for load in loads:
        for range in load.ranges:
            bad = pa.array(letters.get(load.load_id, {}).get(range.tp, ()), pa.int64())
            for batch in log.records(range.tp, *log.extent(range.tp, load).overlap(range.start, range.end), load):
                yield batch.filter(pc.invert(pc.is_in(batch.column("offset"), value_set=bad))) if len(bad) else batch


def _compare(
    part: pa.Table,
    model: pa.Table | None,
    seen: np.ndarray[tuple[int], np.dtype[np.bool_]],
    upsert: Upsert,
    counts: KeyCounts,
    loads: Sequence[LoadRecord],
    log: KafkaLog,
) -> None:
    """Compare rows of the table with the changes; `seen` marks the changes that have a row."""
    known = np.zeros(part.num_rows, bool)
    if model is not None:
        rows, matches = rows_of_keys(model, part, upsert.key)
        numbers = matches.to_numpy(zero_copy_only=False)
        known[rows.to_numpy(zero_copy_only=False)] = True
        here, there = part.take(rows), model.take(matches)
        keys = here.select(list(upsert.key))
        twice = seen[numbers] | ~np.isin(np.arange(len(numbers)), np.unique(numbers, return_index=True)[1])
        seen[numbers] = True
        deleted = there.column(DELETED).to_numpy()
        same = pc.and_(
            pc.and_(*(pc.equal(here.column(name), there.column(name)) for name in (TOPIC, PARTITION))),
            pc.equal(here.column(OFFSET), there.column(OFFSET)),
        )
        is_same = pc.fill_null(same, False).to_numpy()
        counts.right += int((is_same & ~deleted & ~twice).sum())
        counts.add("have more than one row", keys.filter(pa.array(twice)))
        counts.add("have a row, but their last record deletes it", keys.filter(pa.array(deleted)))
        counts.add("have a row of another record than their last one", keys.filter(pa.array(~is_same & ~deleted)))
    others = part.filter(pa.array(~known))
    is_left = _is_left(others, loads, log)
    counts.gone += int((~is_left).sum())
    counts.add("have a row, but no record in the log", others.filter(pa.array(is_left)).select(list(upsert.key)))


def _is_left(rows: pa.Table, loads: Sequence[LoadRecord], log: KafkaLog) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether the log should still have the record of each row, by its place. True for rows that no load wrote."""
    left = np.ones(rows.num_rows, bool)
    offsets = rows.column(OFFSET).fill_null(-1).to_numpy()
    for tp in {range.tp for load in loads for range in load.ranges}:
        here = pc.and_(pc.equal(rows.column(TOPIC), tp.topic), pc.equal(rows.column(PARTITION), tp.partition))
        mask = pc.fill_null(here, False).to_numpy()
        earliest = _earliest(tp, loads, log)
        left[mask & (offsets < earliest)] = False
        if log.is_compacted(tp.topic):
            left[mask] = False
    return left


def _earliest(tp: TopicPartition, loads: Sequence[LoadRecord], log: KafkaLog) -> int:
    newest = next(load for load in reversed(loads) if any(range.tp == tp for range in load.ranges))
    extent = log.extent(tp, newest)
    return extent.earliest if extent.latest else 1 << 62
