"""What a place of loads holds: the list of a group's loads, with the state of each, what it read, and where its data
is; and what others left there, beside which readers would not see a load, or would lose what they see now. Changes
nothing.

Callers use `LoadedDestination.history`. files/directory_history.py lists loads into files, table.py those into tables.
Of `refuse_unseen`, which is called before a load writes anything, Spark's readers are the judge;
tests/spark_connector/loads/test_visibility.py asks them.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import os
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from broker.storage.storage import Storage, TooLarge
from spark_connector.loads.record import LoadError, LoadFile, LoadId, LoadRecord, published_directory
from spark_connector.stored_json import mapping, parsed, text, whole

MANIFEST = "_manifest.json"
"""The record of a load beside its data; readers do not see the name."""

_MOST_PIDS = (1 << 31) - 1


class LoadState(enum.StrEnum):
    """How far a load has come."""

    PUBLISHED = "published"
    HIDDEN = "committed, hidden"  # the rename is missing: the process was killed before it
    ABSENT = "committed, gone"  # its directory was moved or deleted by hand
    REWOUND = "rewound"
    ELSEWHERE = "committed, elsewhere"  # to another directory, which nobody has looked into
    REWIND = "rewind"  # not a load: an entry that takes loads back
    UNKNOWN = "not in the log"  # visible to readers, but the commit log does not have it
    SEALED = "complete"  # not committed; the next load or repair commits it
    RUNNING = "running"
    DEAD = "killed"
    UNFINISHED = "unfinished"  # on another host: nobody knows whether it still runs
    VOID = "void"  # its number was taken by another; the next repair removes it

    @property
    def is_committed(self) -> bool:
        return self in (LoadState.PUBLISHED, LoadState.HIDDEN, LoadState.ABSENT, LoadState.ELSEWHERE)

    @property
    def is_staged(self) -> bool:
        """Whether it is an attempt in the staging area."""
        return self in (LoadState.SEALED, LoadState.RUNNING, LoadState.DEAD, LoadState.UNFINISHED, LoadState.VOID)


WHAT_TO_DO: Mapping[LoadState, str] = {
    LoadState.HIDDEN: "is committed, but readers do not see it: the next load, or `pykafka load --recover`, shows it",
    LoadState.SEALED: "is complete, but not committed: the next load, or `pykafka load --recover`, commits it",
    LoadState.ABSENT: "is committed, but its directory is gone",
    LoadState.UNKNOWN: "is visible to readers, but the commit log does not know it",
}
"""What to tell a person about a load in this state."""


@dataclass(frozen=True)
class Owner:
    """The process that runs a staged load. Only shown to people: no rule of the commit protocol depends on it.

    `started`: its start in clock ticks after boot, where the kernel tells, to recognize a pid that was used again.
    """

    host: str
    pid: int
    started: int | None = None

    @classmethod
    def this_process(cls) -> Owner:
        return cls(socket.gethostname(), os.getpid(), _started(os.getpid()))

    def is_alive(self) -> bool | None:
        """None for a process of another host."""
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's process
        return self.started is None or _started(self.pid) == self.started


@dataclass(frozen=True)
class HistoryEntry:
    """One load. `directory` is the URL of its data, None when there is none. `manifest` is the record beside the data:
    it lists the files, which the commit log does not."""

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
            "bad_rows": record.bad_rows,
            "dead_letters": list(record.dead_letters),
            "files": None if self.files is None else len(self.files),
            "bytes": self.bytes,
            "origin": asdict(record.origin) if record.origin else None,
            "reading": record.reading,
            "columns": record.columns,
            "partition_by": record.partition_by,
            "rerun_of": record.rerun_of,
            "rewind": asdict(record.rewind) if record.rewind else None,
            "owner": asdict(self.owner) if self.owner else None,
        }


@dataclass(frozen=True)
class History:
    """All that is known about a group's loads.

    `entries`: every load that has left a trace, in order of number. `forgotten`: spans (first, last) of numbers of
    which neither the commit log nor the data knows anything any more.
    """

    entries: list[HistoryEntry]
    forgotten: tuple[tuple[int, int], ...] = ()

    @property
    def committed(self) -> list[HistoryEntry]:
        return [entry for entry in self.entries if entry.state.is_committed]

    def describe_forgotten(self) -> str | None:
        """A sentence about the forgotten numbers; None when there are none."""
        if not self.forgotten:
            return None
        if len(self.forgotten) == 1 and self.forgotten[0][0] == self.forgotten[0][1]:
            return f"The commit log has forgotten what load number {self.forgotten[0][0]} was."
        spans = [str(first) if first == last else f"{first} to {last}" for first, last in self.forgotten]
        return f"The commit log has forgotten what loads number {', '.join(spans)} were."


@dataclass(frozen=True)
class LoadedTable:
    """What a group has loaded into a table of a catalog, by the table's properties.

    `number`, `load_id` and `created_ms` are of its newest load or rewind, `rows` and `files` of the whole table (None
    where its newest snapshot does not count them), `offsets` are the next ones, by topic and partition. `error`: why
    the table cannot be read; then only its name is known.
    """

    table: str
    group: str = ""
    number: int = 0
    load_id: str = ""
    created_ms: int = -1
    rows: int | None = None
    files: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def gaps(last: int, numbers: Collection[int]) -> tuple[tuple[int, int], ...]:
    """The spans (first, last) of 1 to `last` that contain none of `numbers`."""
    known = sorted({0, last + 1, *(number for number in numbers if 0 < number <= last)})
    return tuple((before + 1, after - 1) for before, after in itertools.pairwise(known) if after - before > 1)


def is_of(group: str, text: str) -> bool:
    """Whether the text is the id of a load of the group."""
    load_id = LoadId.parse(text)
    return load_id is not None and load_id.group == group


def is_at(output: Storage, url: str) -> bool:
    """Whether a record that names `url` means this directory, by the names alone: what a record names is not opened."""
    if url in (output.shown, output.url):
        return True
    path = output.url.removeprefix("file://")
    return path != output.url and url == f"file://{os.path.realpath(path)}"


def topics_by_group(loads: Iterable[LoadRecord]) -> dict[str, set[str]]:
    """Group → the topics it has loaded. Where brokers give topic ids, the newest record alone names all of them."""
    found: dict[str, set[str]] = {}
    for load in loads:
        found.setdefault(load.id.group, set()).update(load.topic_ids, (range.topic for range in load.ranges))
    return found


def read_record(storage: Storage, path: str, load_id: str) -> LoadRecord:
    """The record of this load in a file. Raises FileNotFoundError, and LoadError for a file that is none."""
    return _record_of(load_id, storage.read(path), storage.url_of(path))


def _record_of(load_id: str, data: bytes, where: str) -> LoadRecord:
    record = LoadRecord.from_bytes(data, where)
    if record.load_id != load_id:
        raise LoadError(f"{where} is the record of {record.load_id}, not of {load_id}")
    return record


def staged_entries(
    storage: Storage, area: str, group: str, *, newest: int, known: Collection[str]
) -> list[HistoryEntry]:
    """The attempts in the staging area that are not committed, from their intents."""
    entries = []
    for name in storage.names(area):
        if name in known or not is_of(group, name):
            continue
        try:
            path = f"{area}/{name}/intent.json"
            intent = storage.read(path)
            record = _record_of(name, intent, storage.url_of(path))
        except (FileNotFoundError, LoadError, TooLarge):
            continue  # it ended a moment ago
        owner = owner_of(intent)
        sealed = storage.exists(f"{area}/{name}/data/{MANIFEST}")
        state = staged_state(record.id.sequence <= newest, sealed, owner)
        entries.append(HistoryEntry(record, state, storage.url_of(f"{area}/{name}"), owner=owner))
    return entries


def staged_state(overtaken: bool, sealed: bool, owner: Owner | None) -> LoadState:
    """State of an attempt: `overtaken` when another load has its number, `sealed` when its rows are complete."""
    if overtaken:
        return LoadState.VOID
    if sealed:
        return LoadState.SEALED
    alive = owner.is_alive() if owner is not None else None
    return {True: LoadState.RUNNING, False: LoadState.DEAD, None: LoadState.UNFINISHED}[alive]


def intent_of(record: LoadRecord) -> bytes:
    """The intent of a load: its record, with this process as the owner."""
    return json.dumps({**record.to_json(), "owner": asdict(Owner.this_process())}, indent=1).encode()


def owner_of(intent: bytes) -> Owner | None:
    """The owner that an intent names; None when it names none."""
    try:
        owner = mapping(mapping(parsed(intent), "the intent")["owner"], "owner")
        started = owner["started"]
        return Owner(
            text(owner["host"], "host"),
            whole(owner["pid"], "pid", 1, _MOST_PIDS),
            None if started is None else whole(started, "started"),
        )
    except (ValueError, KeyError):
        return None


def _started(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat. Field 2, the name in parentheses, may contain spaces and parentheses."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(status.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


_ELSEWHERE = "load into another directory"
_OF_A_STREAM = "_spark_metadata"
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""What only tables of this kind have. Their readers go by their own log of files."""
_OF_LOADS = "_staging"


def refuse_unseen(output: Storage) -> None:
    """Raise unless readers of the directory would see a load in it, and all that they see now."""
    if output.exists(_OF_A_STREAM):
        raise ConfigError(
            f"{output.shown} is the output of a Spark stream: its readers see only the files that {_OF_A_STREAM} "
            f"lists, and would not see this load. {_ELSEWHERE.capitalize()} (readers of both can union them)"
        )
    if (kind := _table(output)) is not None:
        raise ConfigError(f"{output.shown} is a {kind} table, whose readers would not see this load: {_ELSEWHERE}")
    has_loads = False
    for name, size in output.sizes("").items():
        if name.startswith(published_directory("")):
            has_loads = True
        elif not _is_hidden(name) and (found := _first_file(output, name, size)):
            raise ConfigError(
                f"{output.shown} holds {found}, which no load wrote. Beside load=…, Spark's readers would no longer "
                f"see it, or could read neither: move it away, or {_ELSEWHERE}"
            )
    if not has_loads:
        refuse_within_table(output)


def refuse_within_table(output: Storage) -> None:
    """Raise if the directory lies within a table, whose VACUUM would delete its files, or among the loads of others."""
    for above, way in output.parents():
        if any(map(_is_hidden, way.split("/"))):
            return  # nobody who reads or cleans what is above looks there
        is_iceberg = any(name.endswith(".metadata.json") for name in _names(above, "metadata"))
        kind = _table(above) or ("Iceberg" if is_iceberg else None)
        if kind is not None:
            raise ConfigError(
                f"{output.shown} lies within the {kind} table {above.shown}, which deletes files that are not its own "
                f"when it is cleaned: {_ELSEWHERE}"
            )
        if _has_loads(above):
            raise ConfigError(
                f"{output.shown} lies within {above.shown}, the output of other loads: Spark could no longer read that "
                f"directory. {_ELSEWHERE.capitalize()}"
            )


def _table(directory: Storage) -> str | None:
    return next((kind for name, kind in _TABLES.items() if directory.exists(name)), None)


def _has_loads(directory: Storage) -> bool:
    """Whether loads were written into it, or are being written. Other programs have a directory `_staging`, too."""
    if not directory.exists(_OF_LOADS):
        return False
    staged = [name for kind in _names(directory, _OF_LOADS) for name in _names(directory, f"{_OF_LOADS}/{kind}")]
    published = [name.removeprefix(published_directory("")) for name in _names(directory, "")]
    return any(LoadId.parse(name) is not None for name in (*published, *staged))


def _names(directory: Storage, path: str) -> list[str]:
    """Without an error for what this user may not list."""
    with contextlib.suppress(PermissionError):
        return directory.names(path)
    return []


def _first_file(output: Storage, name: str, size: int | None) -> str | None:
    """The file `name`, or the first below the directory of this name, that readers find and that is not empty."""
    if size is not None:
        return name if size else None
    with contextlib.suppress(PermissionError):
        return next((f"{name}/{file}" for file, found in output.data_files(name).items() if found), None)
    return None


def _is_hidden(name: str) -> bool:
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
