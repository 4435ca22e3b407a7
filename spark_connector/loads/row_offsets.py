"""Sorts the rows that a verification reads: by load, and the offsets by partition. Shared by all destinations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.destination import HeldRows, Offsets
from spark_connector.loads.history import History, HistoryEntry, LoadState
from spark_connector.loads.layout import LOAD_COLUMN
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord

ROW_SCHEMA = pa.schema(
    [(LOAD_COLUMN, pa.string()), ("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64())]
)
"""The columns of a table that identify a row, and the load that wrote it."""

_MOST_OFFSETS = 16 << 20  # 128 MiB
_MOST_LOADS = 200  # names in one statement


class RowOffsets:
    """Offsets per partition, collected part by part. Memory: 8 bytes a row."""

    def __init__(self) -> None:
        self._parts: dict[TopicPartition, list[Offsets]] = {}

    def add(self, part: pa.Table) -> None:
        """Add rows with the columns topic, partition and offset. Raises ValueError for a null."""
        if part.num_rows == 0:
            return
        topics = pa.compute.dictionary_encode(part.column("topic").combine_chunks())
        topics = topics.combine_chunks() if isinstance(topics, pa.ChunkedArray) else topics
        if topics.null_count or part.column("partition").null_count or part.column("offset").null_count:
            raise ValueError("a row has no topic, partition or offset")
        partitions = part.column("partition").to_numpy().astype(np.int64)
        offsets = part.column("offset").to_numpy().astype(np.int64)
        keys = topics.indices.to_numpy().astype(np.int64) << 32 | partitions
        for key in np.unique(keys):
            tp = TopicPartition(topics.dictionary[int(key) >> 32].as_py(), int(key) & 0xFFFFFFFF)
            self.append(tp, offsets[keys == key])

    def append(self, tp: TopicPartition, offsets: Offsets) -> None:
        self._parts.setdefault(tp, []).append(offsets)

    def extend(self, other: RowOffsets) -> None:
        for tp, parts in other._parts.items():
            self._parts.setdefault(tp, []).extend(parts)

    def sorted(self) -> dict[TopicPartition, Offsets]:
        """The offsets of every partition, duplicates included."""
        return {tp: np.sort(np.concatenate(parts)) for tp, parts in self._parts.items()}


def held_rows(
    read: Callable[[Sequence[str]], Iterable[pa.Table]],
    entries: Sequence[HistoryEntry],
    errors: type[Exception] | tuple[type[Exception], ...],
) -> Iterator[tuple[HistoryEntry, HeldRows]]:
    """What a table holds of the loads. `read` gives the rows of the loads with these ids, in parts of ROW_SCHEMA;
    it may raise `errors`."""
    for batch in _batches(entries):
        try:
            found = _by_load(read([entry.record.load_id for entry in batch]))
        except errors as error:
            if len(batch) > 1:  # find out which loads cannot be read
                for entry in batch:
                    yield from held_rows(read, [entry], errors)
            else:
                yield batch[0], HeldRows(None, (f"its rows cannot be read: {first_line(error)}",))
        else:
            for entry in batch:
                yield entry, HeldRows(found.get(entry.record.load_id, RowOffsets()).sorted())


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _by_load(parts: Iterable[pa.Table]) -> dict[str, RowOffsets]:
    found: dict[str, RowOffsets] = {}
    for part in parts:
        loads = part.column(LOAD_COLUMN)
        for load_id in loads.unique().to_pylist():
            found.setdefault(load_id, RowOffsets()).add(part.filter(pa.compute.equal(loads, load_id)))
    return found


def _batches(entries: Sequence[HistoryEntry]) -> Iterator[list[HistoryEntry]]:
    """The loads in groups that one query reads together: of at most 16 million offsets, or one load."""
    batch: list[HistoryEntry] = []
    size = 0
    for entry in entries:
        more = sum(range.size for range in entry.record.ranges)
        if batch and (size + more > _MOST_OFFSETS or len(batch) == _MOST_LOADS):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch


def rows_of_unknown_loads(group: str, history: History, rows: Mapping[str | None, int]) -> list[str]:
    """What is wrong with the loads of the group in a table, where `rows` are the rows per load.

    Rows of other groups, and rows without a load, belong to other writers. Rows of loads that the commit log has
    forgotten, or that were committed after `history` was read, are not judged. (An attempt that ran then may be one.)
    """
    known = {entry.record.load_id: entry.state for entry in history.entries}
    newest = max((entry.record.id.sequence for entry in history.entries if not entry.state.is_staged), default=0)
    problems = []
    for text, count in sorted((text, count) for text, count in rows.items() if isinstance(text, str)):
        load_id = LoadId.parse(text)
        if load_id is None or load_id.group != group or load_id.sequence > newest:
            continue
        if any(first <= load_id.sequence <= last for first, last in history.forgotten):
            continue
        state = known.get(text)
        if state is None or not state.is_committed:
            why = "was taken back by a rewind" if state is LoadState.REWOUND else "is not in the commit log"
            problems.append(f"the table has {count:,} rows of load {text}, which {why}")
    return problems


def refuse_unnamed_rows(
    undone: Iterable[LoadRecord], rows: Mapping[str | None, int], unnamed: Callable[[LoadRange], int]
) -> None:
    """Raise ConfigError when rows of a load to be taken back may no longer name it: they would be loaded twice.

    The table may have had no column `load` when they were loaded, or another program has written them anew without it.
    `rows`: the table's rows per load. `unnamed` counts the rows of a range whose `load` is NULL.
    """
    for load in undone if rows.get(None) else ():
        if rows.get(load.load_id, 0) < load.rows and (count := sum(map(unnamed, load.ranges))):
            raise ConfigError(
                f"load {load.load_id} has written {load.rows:,} rows, of which the table has "
                f"{rows.get(load.load_id, 0):,}, and {count:,} rows of its offsets have no {LOAD_COLUMN}: a rewind "
                f"would leave them, and the next load would load them again. Set their {LOAD_COLUMN} to "
                f"'{load.load_id}' if they are its rows, or delete them"
            )
