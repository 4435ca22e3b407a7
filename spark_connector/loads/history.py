"""What a list of loads says of each: its state, what was read, and where its data lies.

The values, and what all kinds of destinations share in finding them out. Files are listed by loads/file_history.py,
tables by loads/table_history.py; `Destination.history` is the door to both. Changes nothing.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark_connector.loads.commit import MANIFEST
from spark_connector.loads.owner import Owner, owner_of
from spark_connector.loads.record import LoadError, LoadFile, LoadId, LoadRecord
from spark_connector.storage import Storage

__all__ = [
    "WHAT_TO_DO",
    "History",
    "HistoryEntry",
    "LoadState",
    "gaps",
    "is_of",
    "staged_entries",
    "staged_state",
    "undone_by",
]


class LoadState(enum.StrEnum):
    """Where a load stands."""

    PUBLISHED = "published"
    HIDDEN = "committed, hidden"  # the rename is missing: whoever looked after it was killed
    ABSENT = "committed, gone"  # its directory was moved or deleted by hand
    REWOUND = "rewound"
    REWIND = "rewind"  # no load, but an entry that takes loads back
    UNKNOWN = "not in the log"  # visible, yet the commit log has never heard of it
    SEALED = "complete"  # not committed; the next load or repair commits it
    RUNNING = "running"
    DEAD = "killed"
    UNFINISHED = "unfinished"  # runs, or ran, on another host
    VOID = "void"  # its number was taken by another; the next repair removes it

    @property
    def is_committed(self) -> bool:
        return self in (LoadState.PUBLISHED, LoadState.HIDDEN, LoadState.ABSENT)


WHAT_TO_DO: Mapping[LoadState, str] = {
    LoadState.HIDDEN: "is committed, but readers do not see it: the next load, or `pykafka load --recover`, shows it",
    LoadState.SEALED: "is complete, but not committed: the next load, or `pykafka load --recover`, commits it",
    LoadState.ABSENT: "is committed, but its directory is gone",
    LoadState.UNKNOWN: "is visible to readers, but the commit log does not know it",
}
"""What a person should be told of a load in this state."""


@dataclass(frozen=True)
class HistoryEntry:
    """One load. `directory` is the URL of its data, None when there is none; `manifest`: what lies with the data; its
    files are the load's, for the commit log does not list them."""

    record: LoadRecord
    state: LoadState
    directory: str | None = None
    manifest: LoadRecord | None = None
    owner: Owner | None = None

    @property
    def files(self) -> tuple[LoadFile, ...] | None:
        return None if self.manifest is None else self.manifest.files

    @property
    def bytes(self) -> int | None:
        return None if self.files is None else sum(file.size for file in self.files)

    @property
    def topics(self) -> list[str]:
        return sorted({range.topic for range in self.record.ranges})

    def to_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "load_id": record.load_id,
            "sequence": record.id.sequence,
            "state": self.state.value,
            "created_ms": record.created_ms,
            "format": record.format,
            "directory": self.directory,
            "topics": self.topics,
            "ranges": [asdict(range) for range in record.ranges],
            "rows": record.rows,
            "files": None if self.files is None else len(self.files),
            "bytes": self.bytes,
            "origin": asdict(record.origin) if record.origin else None,
            "reading": record.reading,
            "rerun_of": record.rerun_of,
            "rewind": asdict(record.rewind) if record.rewind else None,
            "owner": asdict(self.owner) if self.owner else None,
        }


@dataclass(frozen=True)
class History:
    """What is known of a group's loads. `entries`: every load that has left a trace, in order of number; `forgotten`:
    the numbers (first, last) that neither the commit log nor what lies with the data tells of any more."""

    entries: list[HistoryEntry]
    forgotten: tuple[tuple[int, int], ...] = ()

    @property
    def committed(self) -> list[HistoryEntry]:
        return [entry for entry in self.entries if entry.state.is_committed]

    def describe_forgotten(self) -> str | None:
        """A sentence about the numbers of which nothing is known; None when all are."""
        if not self.forgotten:
            return None
        if len(self.forgotten) == 1 and self.forgotten[0][0] == self.forgotten[0][1]:
            return f"The commit log has forgotten what load number {self.forgotten[0][0]} was."
        spans = [str(first) if first == last else f"{first} to {last}" for first, last in self.forgotten]
        return f"The commit log has forgotten what loads number {', '.join(spans)} were."


def gaps(last: int, numbers: Collection[int]) -> tuple[tuple[int, int], ...]:
    """The spans of 1 to `last` in which there is none of `numbers`."""
    known = sorted({0, last + 1, *(number for number in numbers if 0 < number <= last)})
    return tuple((before + 1, after - 1) for before, after in itertools.pairwise(known) if after - before > 1)


def is_of(group: str, text: str) -> bool:
    """Whether the text is the id of a load of the group."""
    load_id = LoadId.parse(text)
    return load_id is not None and load_id.group == group


def undone_by(records: Iterable[LoadRecord]) -> dict[str, LoadRecord]:
    """Id of each load that was taken back → the rewind."""
    return {gone.load_id: record for record in records if record.rewind for gone in record.rewind.undone}


def staged_entries(
    storage: Storage, area: str, group: str, *, newest: int, known: Collection[str]
) -> list[HistoryEntry]:
    """Attempts that are not committed, by the intents in the staging area."""
    entries = []
    for name in storage.names(area):
        if name in known or not is_of(group, name):
            continue
        try:
            intent = storage.read(f"{area}/{name}/intent.json")
            record = LoadRecord.from_bytes(intent, storage.url_of(f"{area}/{name}/intent.json"))
        except (FileNotFoundError, LoadError):
            continue  # ended in this moment
        owner = owner_of(intent)
        sealed = storage.exists(f"{area}/{name}/data/{MANIFEST}")
        state = staged_state(record.id.sequence <= newest, sealed, owner)
        entries.append(HistoryEntry(record, state, storage.url_of(f"{area}/{name}"), owner=owner))
    return entries


def staged_state(overtaken: bool, sealed: bool, owner: Owner | None) -> LoadState:
    """Of an attempt: `overtaken` when another has its number, `sealed` when all its rows are there."""
    if overtaken:
        return LoadState.VOID
    if sealed:
        return LoadState.SEALED
    alive = owner.is_alive() if owner is not None else None
    return {True: LoadState.RUNNING, False: LoadState.DEAD, None: LoadState.UNFINISHED}[alive]
