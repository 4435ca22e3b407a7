"""The loads of a group into a table: what its log still says, and the attempts that are left.

Called by loads/delta.py and loads/database.py. What is committed is visible there, and there is nothing beside the data
that would tell of a load which the log has forgotten: such numbers are named, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from spark_connector.loads.history import History, HistoryEntry, LoadState, gaps, undone_by
from spark_connector.loads.record import LoadFile, LoadRecord

__all__ = ["Trace", "table_history"]

Trace = tuple[str | None, tuple[LoadFile, ...]]
"""The URL of a load's files, None when there are none, and those of them that the table has."""


def table_history(
    records: Sequence[LoadRecord],
    newest: int,
    staged: Iterable[HistoryEntry],
    trace_of: Callable[[LoadRecord], Trace] = lambda record: (None, ()),
) -> History:
    """`records` are those of the log, `newest` is the number that it has reached."""
    undone = undone_by(records)
    entries = [_entry(record, record.load_id in undone, trace_of) for record in records]
    numbers = {entry.record.id.sequence for entry in entries}
    entries += staged
    entries.sort(key=lambda entry: (entry.record.id.sequence, entry.record.load_id))
    return History(entries, gaps(newest, numbers))


def _entry(record: LoadRecord, undone: bool, trace_of: Callable[[LoadRecord], Trace]) -> HistoryEntry:
    if record.rewind is not None:
        return HistoryEntry(record, LoadState.REWIND)
    directory, files = trace_of(record)
    manifest = replace(record, files=files) if files else None
    return HistoryEntry(record, LoadState.REWOUND if undone else LoadState.PUBLISHED, directory, manifest)
