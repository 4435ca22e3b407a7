"""What has been loaded, and what is under way: the commit log, the published directories and the staging area as one.

Called by the console's `pykafka loads`, by loads/verify.py and by loads/upkeep.py; changes nothing. The commit log
decides which loads count. What it has forgotten by pruning is known from the manifests that lie with the data, so the
list does not get shorter as long as the data is there. Raises LoadError for a log that cannot be read.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from spark_connector.loads.commit import MANIFEST
from spark_connector.loads.owner import Owner, owner_of
from spark_connector.loads.planner import LoadSite
from spark_connector.loads.record import LoadError, LoadFile, LoadId, LoadRecord, published_directory
from spark_connector.loads.request import Target
from spark_connector.loads.rewind import REWOUND, aside_of, manifest_of
from spark_connector.storage import Storage, open_storage

__all__ = ["FILE_FORMATS", "HistoryEntry", "LoadState", "Outputs", "read_history"]

FILE_FORMATS = ("parquet", "json", "orc", "avro")
"""Those of which every load has a directory."""

_READERS = 8  # manifests at once; each is a round trip or two on HDFS
_PREFIX = published_directory("")


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
            "rerun_of": record.rerun_of,
            "rewind": asdict(record.rewind) if record.rewind else None,
            "owner": asdict(self.owner) if self.owner else None,
        }


class Outputs:
    """The directories that loads of one group went to, each opened once and its loads listed once."""

    def __init__(self, target: Target, output: Storage) -> None:
        self._options = target.storage_options
        self._opened = {output.url: output}
        self._visible: dict[str, set[str]] = {}

    def at(self, url: str) -> Storage:
        if url not in self._opened:
            self._opened[url] = open_storage(url, self._options)
        return self._opened[url]

    def visible(self, url: str) -> set[str]:
        """Load ids of the directories that readers see there."""
        if url not in self._visible:
            names = self.at(url).names("")
            self._visible[url] = {name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)}
        return self._visible[url]


def read_history(target: Target, site: LoadSite) -> list[HistoryEntry]:
    """Every load of the group that has left a trace, in order of number."""
    outputs = Outputs(target, site.output)
    logged = [record for record in map(site.log.record, site.log.sequences()) if record is not None]
    newest = site.log.newest()
    known = {record.load_id for record in logged}
    logged += _forgotten_rewinds(target.group, known, site.output)
    undone = _undone(logged)
    entries = [_logged_entry(record, outputs, undone) for record in logged]
    if newest.load_id is not None and not newest.published:
        entries = [_hidden(entry, site) if entry.record.load_id == newest.load_id else entry for entry in entries]
    oldest = min((record.id.sequence for record in logged if record.load_id in known), default=0)
    entries += [
        HistoryEntry(_placeholder(load_id, site), _unlogged_state(load_id, oldest), site.output.url_of(directory))
        for load_id, directory in _unlogged(target.group, known, outputs, site.output)
    ]
    with ThreadPoolExecutor(_READERS) as pool:
        entries = list(pool.map(lambda entry: _with_files(entry, outputs), entries))
    entries += _staged(target.group, site, known)
    return sorted(entries, key=lambda entry: (entry.record.id.sequence, entry.record.load_id))


def _forgotten_rewinds(group: str, known: set[str], output: Storage) -> list[LoadRecord]:
    """Those that the commit log does not hold any more, by the records that they have left."""
    found = []
    for rewind_id in output.names(REWOUND):
        if rewind_id not in known and _is_of(group, rewind_id):
            path = manifest_of(rewind_id)
            with contextlib.suppress(FileNotFoundError):
                found.append(LoadRecord.from_bytes(output.read(path), output.url_of(path)))
    return found


def _undone(records: Iterable[LoadRecord]) -> dict[str, LoadRecord]:
    """Id of each load that was taken back → the rewind."""
    return {gone.load_id: record for record in records if record.rewind for gone in record.rewind.undone}


def _logged_entry(record: LoadRecord, outputs: Outputs, undone: Mapping[str, LoadRecord]) -> HistoryEntry:
    if record.rewind is not None:
        return HistoryEntry(record, LoadState.REWIND)
    if record.format not in FILE_FORMATS:
        return HistoryEntry(record, LoadState.PUBLISHED)  # a table: what is committed is visible
    output = outputs.at(record.output)
    if record.load_id in undone:
        aside = aside_of(undone[record.load_id].load_id, record.load_id)
        is_there = output.exists(aside)
        return HistoryEntry(record, LoadState.REWOUND, output.url_of(aside) if is_there else None)
    if record.load_id in outputs.visible(record.output):
        return HistoryEntry(record, LoadState.PUBLISHED, output.url_of(published_directory(record.load_id)))
    return HistoryEntry(record, LoadState.ABSENT)


def _hidden(entry: HistoryEntry, site: LoadSite) -> HistoryEntry:
    """The newest entry, whose owner was killed between the commit and the last step."""
    if entry.state is not LoadState.ABSENT:
        return entry  # renamed already, only the mark is missing; or a rewind that a repair goes on with
    staged = f"_staging/{site.log.kind}/{entry.record.load_id}/data"
    return replace(entry, state=LoadState.HIDDEN, directory=f"{entry.record.output}/{staged}")


def _unlogged(group: str, known: set[str], outputs: Outputs, output: Storage) -> list[tuple[str, str]]:
    """(load id, directory) of the group's loads that the log does not hold: pruned, taken back, or never logged."""
    found = [(load_id, published_directory(load_id)) for load_id in sorted(outputs.visible(output.url))]
    for rewind_id in output.names(REWOUND):
        names = output.names(f"{REWOUND}/{rewind_id}")
        found += [(name.removeprefix(_PREFIX), f"{REWOUND}/{rewind_id}/{name}") for name in names if _PREFIX in name]
    return [(id, place) for id, place in found if id not in known and _is_of(group, id)]


def _is_of(group: str, text: str) -> bool:
    load_id = LoadId.parse(text)
    return load_id is not None and load_id.group == group


def _unlogged_state(load_id: str, oldest: int) -> LoadState:
    parsed = LoadId.parse(load_id)
    pruned = parsed is not None and parsed.sequence < oldest
    return LoadState.PUBLISHED if pruned else LoadState.UNKNOWN


def _placeholder(load_id: str, site: LoadSite) -> LoadRecord:
    """A record that says no more than the name of a directory does, until its manifest is read."""
    return LoadRecord(load_id, site.output.url, "", site.log.kind, -1, ())


def _with_files(entry: HistoryEntry, outputs: Outputs) -> HistoryEntry:
    """With what the manifest beside the data says; the log, where it knows the load, is believed before it."""
    if entry.directory is None:
        return entry
    output = outputs.at(entry.record.output)
    path = f"{entry.directory.removeprefix(output.url + '/')}/{MANIFEST}"
    try:
        manifest = LoadRecord.from_bytes(output.read(path), output.url_of(path))
    except (FileNotFoundError, LoadError):
        return entry
    if manifest.load_id != entry.record.load_id:
        return entry
    moved = f"{REWOUND}/" in entry.directory and entry.state is LoadState.PUBLISHED
    return replace(
        entry,
        record=manifest if entry.record.created_ms < 0 else entry.record,
        state=LoadState.REWOUND if moved else entry.state,
        manifest=manifest,
    )


def _staged(group: str, site: LoadSite, known: set[str]) -> list[HistoryEntry]:
    """Attempts that are not committed."""
    area = f"_staging/{site.log.kind}"
    newest = site.log.newest().sequence
    entries = []
    for name in site.output.names(area):
        if name in known or not _is_of(group, name):
            continue
        try:
            intent = site.output.read(f"{area}/{name}/intent.json")
            record = LoadRecord.from_bytes(intent, site.output.url_of(f"{area}/{name}/intent.json"))
        except (FileNotFoundError, LoadError):
            continue  # ended in this moment
        owner = owner_of(intent)
        sealed = site.output.exists(f"{area}/{name}/data/{MANIFEST}")
        state = _staged_state(record.id.sequence <= newest, sealed, owner)
        entries.append(HistoryEntry(record, state, site.output.url_of(f"{area}/{name}"), owner=owner))
    return entries


def _staged_state(overtaken: bool, sealed: bool, owner: Owner | None) -> LoadState:
    if overtaken:
        return LoadState.VOID
    if sealed:
        return LoadState.SEALED
    alive = owner.is_alive() if owner is not None else None
    return {True: LoadState.RUNNING, False: LoadState.DEAD, None: LoadState.UNFINISHED}[alive]
