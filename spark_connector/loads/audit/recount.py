"""Compares the offsets of a load's rows in one range with the offsets in Kafka's log, whole arrays at a time.

The log may have lost the beginning of the range (retention), its end (the topic was created again) or, when it is
compacted, any record. So a row is missing only if the log still has its record, and a row is too many only if the log
is not compacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.audit.kafka_log import KafkaLog
from spark_connector.loads.destination import Offsets
from spark_connector.loads.record import LoadRange, LoadRecord

__all__ = ["PartitionCount", "recount"]

_EXAMPLES = 3


@dataclass(frozen=True)
class PartitionCount:
    """The counts of one range.

    `rows`: rows by the commit log. `file_rows`: rows in the files or the table. `log_rows`: rows in Kafka's log, None
    when nothing of the range is left there. `missing`: rows of the log that the files lack. `extra`: rows that the log
    lacks. `doubled`: rows beyond the first of an offset. `outside`: rows beyond the range. `gone`: offsets that the log
    has lost. `compacted`: like `extra`, in a compacted topic. `low`, `high`: the lowest and highest offset.
    """

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    file_rows: int
    log_rows: int | None
    low: int | None
    high: int | None
    missing: int
    extra: int
    doubled: int
    outside: int
    gone: int
    compacted: int
    examples: tuple[int, ...] = ()

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def problems(self, place: str) -> list[str]:
        """What does not add up. `place` is where the rows are, in words."""
        found = []
        if self.rows != self.file_rows:
            found.append(f"{self.tp}: {self.rows:,} rows were committed, {self.file_rows:,} are in {place}")
        if self.doubled:
            found.append(f"{self.tp}: {self.doubled:,} rows are there more than once{self._such_as()}")
        if self.outside:
            found.append(f"{self.tp}: {self.outside:,} rows lie outside the range {self.start} to {self.end - 1}")
        if self.missing:
            found.append(f"{self.tp}: {self.missing:,} records of the log are not in {place}{self._such_as()}")
        if self.extra:
            found.append(f"{self.tp}: {self.extra:,} rows are not in the log{self._such_as()}")
        return found

    def notes(self) -> list[str]:
        found = []
        if self.gone:
            found.append(f"{self.tp}: {self.gone:,} of {self.end - self.start:,} offsets are no longer in the log")
        if self.compacted:
            found.append(f"{self.tp}: {self.compacted:,} rows were compacted away in the log, or never were in it")
        return found

    def _such_as(self) -> str:
        return f", such as offset {', '.join(map(str, self.examples))}" if self.examples else ""


def recount(range: LoadRange, held: Offsets, log: KafkaLog, load: LoadRecord) -> PartitionCount:
    """Compare the sorted offsets `held` of a load's range with the log, read with the load's options.

    Raises the errors of reading the log.
    """
    tp = range.tp
    is_first = np.ones(len(held), bool)
    is_first[1:] = held[1:] != held[:-1]
    once = held[is_first]
    inside = once[(once >= range.start) & (once < range.end)]
    low, high = log.extent(tp, load).overlap(range.start, range.end)
    log_rows, missing, extra = 0, 0, 0
    examples = held[~is_first][:_EXAMPLES].tolist()
    for lacking, surplus, count in _differences(inside, log.offsets(tp, low, high, load), low, high):
        log_rows += count
        missing += len(lacking)
        extra += len(surplus)
        examples += [*lacking[:_EXAMPLES].tolist(), *surplus[:_EXAMPLES].tolist()]
    compacted = extra if extra and log.is_compacted(tp.topic) else 0
    return PartitionCount(
        topic=range.topic,
        partition=range.partition,
        start=range.start,
        end=range.end,
        rows=range.rows or 0,
        file_rows=len(held),
        log_rows=log_rows if low < high else None,
        low=int(held[0]) if len(held) else None,
        high=int(held[-1]) if len(held) else None,
        missing=missing,
        extra=extra - compacted,
        doubled=len(held) - len(once),
        outside=len(once) - len(inside),
        gone=range.size - (high - low),
        compacted=compacted,
        examples=tuple(examples[:_EXAMPLES]),
    )


def _differences(
    held: Offsets, logged: Iterable[Offsets], low: int, high: int
) -> Iterator[tuple[Offsets, Offsets, int]]:
    """(offsets only in the log, offsets only held, rows of the log) for each part of the log in turn."""
    position = low
    for offsets in logged:
        after = int(offsets[-1]) + 1
        here = held[np.searchsorted(held, position) : np.searchsorted(held, after)]
        lacking = np.setdiff1d(offsets, here, assume_unique=True)
        yield lacking, np.setdiff1d(here, offsets, assume_unique=True), len(offsets)
        position = after
    rest = held[np.searchsorted(held, position) : np.searchsorted(held, high)]
    yield np.empty(0, np.int64), rest, 0
