"""The loads of a group into files, in one list: the commit log, the published directories and the staging area.

The commit log decides which loads count. Loads that were pruned from it are known from the manifests beside their data,
so they stay in the list as long as the data exists. Raises LoadError for a log that cannot be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from spark_connector.loads.commit_log import CommitLog
from spark_connector.loads.history import (
    MANIFEST,
    History,
    HistoryEntry,
    LoadState,
    gaps,
    is_of,
    staged_entries,
    undone_by,
)
from spark_connector.loads.record import LoadError, LoadId, LoadRecord, published_directory
from spark_connector.loads.rewind import REWOUND, aside_of, manifest_of
from spark_connector.storage import Storage

__all__ = ["Outputs", "read_history"]

_READERS = 8  # manifests at a time; each costs one or two round trips to HDFS
_PREFIX = published_directory("")


class Outputs:
    """The output directories of a group's loads. Each is opened and listed once."""

    def __init__(self, output: Storage, reopen: Callable[[str], Storage]) -> None:
        """`reopen` opens the output directory of an earlier load by its URL."""
        self._reopen = reopen
        self._opened = {output.url: output}
        self._visible: dict[str, set[str]] = {}

    def at(self, url: str) -> Storage:
        if url not in self._opened:
            self._opened[url] = self._reopen(url)
        return self._opened[url]

    def visible(self, url: str) -> set[str]:
        """Ids of the loads that readers see in the directory."""
        if url not in self._visible:
            names = self.at(url).names("")
            self._visible[url] = {name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)}
        return self._visible[url]


def read_history(group: str, output: Storage, log: CommitLog, outputs: Outputs) -> History:
    """Every load of the group that has left a trace, in order of number."""
    logged = log.records()
    newest = log.newest()
    known = {record.load_id for record in logged}
    logged += _forgotten_rewinds(group, known, output)
    undone = undone_by(logged)
    entries = [_logged_entry(record, outputs, undone) for record in logged]
    if newest.load_id is not None and not newest.published:
        entries = [_hidden(entry, log) if entry.record.load_id == newest.load_id else entry for entry in entries]
    oldest = min((record.id.sequence for record in logged if record.load_id in known), default=0)
    entries += [
        HistoryEntry(LoadRecord.unknown(load_id, output.url, log.kind), state, output.url_of(directory))
        for load_id, directory in _unlogged(group, known, outputs, output)
        if (state := _unlogged_state(load_id, oldest, log)) is not None
    ]
    with ThreadPoolExecutor(_READERS) as pool:
        entries = list(pool.map(lambda entry: _with_files(entry, outputs), entries))
    numbers = {entry.record.id.sequence for entry in entries}
    # The log is pruned from its oldest entry on. A number missing after that was an entry of a stream, pruned by it.
    first = min(log.sequences(), default=newest.sequence + 1)
    undone_numbers = (LoadId.parse(load_id) for load_id in undone)
    numbers |= {load_id.sequence for load_id in undone_numbers if load_id is not None}
    entries += staged_entries(output, f"_staging/{log.kind}", group, newest=newest.sequence, known=known)
    entries.sort(key=lambda entry: (entry.record.id.sequence, entry.record.load_id))
    return History(entries, gaps(first - 1, numbers))


def _forgotten_rewinds(group: str, known: set[str], output: Storage) -> list[LoadRecord]:
    """Rewinds that were pruned from the commit log, from the records in `_rewound/`."""
    found = []
    for rewind_id in output.names(REWOUND):
        if rewind_id not in known and is_of(group, rewind_id):
            path = manifest_of(rewind_id)
            with contextlib.suppress(FileNotFoundError):
                found.append(LoadRecord.from_bytes(output.read(path), output.url_of(path)))
    return found


def _logged_entry(record: LoadRecord, outputs: Outputs, undone: Mapping[str, LoadRecord]) -> HistoryEntry:
    if record.rewind is not None:
        return HistoryEntry(record, LoadState.REWIND)
    output = outputs.at(record.output)
    if record.load_id in undone:
        aside = aside_of(undone[record.load_id].load_id, record.load_id)
        is_there = output.exists(aside)
        return HistoryEntry(record, LoadState.REWOUND, output.url_of(aside) if is_there else None)
    if record.load_id in outputs.visible(record.output):
        return HistoryEntry(record, LoadState.PUBLISHED, output.url_of(published_directory(record.load_id)))
    return HistoryEntry(record, LoadState.ABSENT)


def _hidden(entry: HistoryEntry, log: CommitLog) -> HistoryEntry:
    """The newest entry, when its owner was killed between the commit and the rename."""
    if entry.state is not LoadState.ABSENT:
        return entry  # renamed, only the mark is missing; or a rewind that the next repair finishes
    staged = f"_staging/{log.kind}/{entry.record.load_id}/data"
    return replace(entry, state=LoadState.HIDDEN, directory=f"{entry.record.output}/{staged}")


def _unlogged(group: str, known: set[str], outputs: Outputs, output: Storage) -> list[tuple[str, str]]:
    """(load id, directory) of the group's loads that are not in the log: pruned, taken back, or never logged."""
    found = [(load_id, published_directory(load_id)) for load_id in sorted(outputs.visible(output.url))]
    for rewind_id in output.names(REWOUND):
        names = output.names(f"{REWOUND}/{rewind_id}")
        found += [(name.removeprefix(_PREFIX), f"{REWOUND}/{rewind_id}/{name}") for name in names if _PREFIX in name]
    return [(id, place) for id, place in found if id not in known and is_of(group, id)]


def _unlogged_state(load_id: str, oldest: int, log: CommitLog) -> LoadState | None:
    """None for a load that was committed after the log was read: it is too new for this list."""
    parsed = LoadId.parse(load_id)
    if parsed is None:
        return LoadState.UNKNOWN
    if parsed.sequence < oldest:
        return LoadState.PUBLISHED
    record = log.record(parsed.sequence)
    return None if record is not None and record.load_id == load_id else LoadState.UNKNOWN


def _with_files(entry: HistoryEntry, outputs: Outputs) -> HistoryEntry:
    """The entry with the manifest beside its data. Where the log has the load, its record wins over the manifest."""
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
