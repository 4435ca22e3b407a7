"""How the columns of a series have changed, by what the records of its loads say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_connector.loads.history import HistoryEntry


@dataclass(frozen=True)
class SchemaChange:
    """What `entry` was the first to load with: columns (or decoded fields) that are `new`, with their types, `gone`,
    or of `other` types: (name, type before, type now). `is_first`: nothing is known of the load before."""

    entry: HistoryEntry
    new: tuple[tuple[str, str], ...]
    gone: tuple[str, ...] = ()
    other: tuple[tuple[str, str, str], ...] = ()
    is_first: bool = False


def schema_history(entries: Iterable[HistoryEntry]) -> list[SchemaChange]:
    """The changes, the oldest first, of loads that stand and whose records say what they loaded; [] if none does."""
    before: Mapping[str, str] | None = None
    found = []
    for entry in entries:
        now = _columns_of(entry) if entry.state.is_committed else None
        if now is None or now == before:
            continue
        was = before or {}
        found.append(
            SchemaChange(
                entry,
                tuple((name, kind) for name, kind in now.items() if name not in was),
                tuple(name for name in was if name not in now),
                tuple((name, was[name], kind) for name, kind in now.items() if was.get(name, kind) != kind),
                is_first=before is None,
            )
        )
        before = now
    return found


def _columns_of(entry: HistoryEntry) -> dict[str, str] | None:
    """Name → type, or what it is made of, of a load that decodes or chooses columns."""
    record = entry.record
    if record.fields is None and not record.columns:
        return None
    return {**dict.fromkeys(record.columns, ""), **(record.fields or {})}
