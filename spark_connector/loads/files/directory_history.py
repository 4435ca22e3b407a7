"""The loads of a group into files, in one list: the commit log, the published directories and the staging area.

The commit log decides which loads count. Loads that were pruned from it are known from the manifests beside their data,
so they stay in the list as long as the data exists. Raises LoadError for a log that cannot be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from spark_connector.loads.commit import CommitLog
from spark_connector.loads.history import (
    MANIFEST,
    History,
    HistoryEntry,
    LoadState,
    gaps,
    is_of,
    read_record,
    staged_entries,
    undone_by,
)
from spark_connector.loads.record import LoadError, LoadId, LoadRecord, published_directory
from spark_connector.loads.rewind import REWOUND, aside_of, manifest_of
from spark_connector.storage import Storage

_READERS = 8  # manifests at a time; each costs one or two round trips to HDFS
_PREFIX = published_directory("")


class Outputs:
    """The output directories of a group's loads. Each is opened and listed once."""

    def __init__(self, output: Storage, reopen: Callable[[str], Storage]) -> None:
        """`reopen` opens the output directory of an earlier load by its URL."""
        self._reopen = reopen
        self._opened = {output.shown: output}  # as records name it
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
    oldest = min((record.id.sequence for record in logged), default=0)
    logged += _forgotten_rewinds(group, known, output)
    undone = undone_by(logged)
    hidden = None if newest.published else newest.load_id
    entries = [_logged_entry(record, outputs, undone, hidden, log.kind) for record in logged]
    entries += _unlogged_entries(group, known, oldest, outputs, output, log)
    with ThreadPoolExecutor(_READERS) as pool:
        entries = list(pool.map(lambda entry: _with_files(entry, outputs), entries))
    numbers = {entry.record.id.sequence for entry in entries} | {LoadId.of(load_id).sequence for load_id in undone}
    # The log is pruned from its oldest entry on. A number missing after that was an entry of a stream, pruned by it.
    first = min(log.sequences(), default=newest.sequence + 1)
    entries += staged_entries(output, f"_staging/{log.kind}", group, newest=newest.sequence, known=known)
    entries.sort(key=lambda entry: (entry.record.id.sequence, entry.record.load_id))
    return History(entries, gaps(first - 1, numbers))


def _forgotten_rewinds(group: str, known: set[str], output: Storage) -> list[LoadRecord]:
    """Rewinds that were pruned from the commit log, from the records in `_rewound/`."""
    found = []
    for rewind_id in output.names(REWOUND):
        if rewind_id not in known and is_of(group, rewind_id):
            with contextlib.suppress(FileNotFoundError):
                found.append(read_record(output, manifest_of(rewind_id)))
    return found


def _logged_entry(
    record: LoadRecord, outputs: Outputs, undone: Mapping[str, LoadRecord], hidden: str | None, kind: str
) -> HistoryEntry:
    """`hidden`: the newest load, when its owner was killed between the commit and the mark that it is published."""
    if record.rewind is not None:
        return HistoryEntry(record, LoadState.REWIND)
    output = outputs.at(record.output)
    if record.load_id in undone:
        aside = aside_of(undone[record.load_id].load_id, record.load_id)
        return HistoryEntry(record, LoadState.REWOUND, output.url_of(aside) if output.exists(aside) else None)
    if record.load_id in outputs.visible(record.output):
        return HistoryEntry(record, LoadState.PUBLISHED, output.url_of(published_directory(record.load_id)))
    if record.load_id == hidden:
        return HistoryEntry(record, LoadState.HIDDEN, output.url_of(f"_staging/{kind}/{hidden}/data"))
    return HistoryEntry(record, LoadState.ABSENT)


def _unlogged_entries(
    group: str, known: set[str], oldest: int, outputs: Outputs, output: Storage, log: CommitLog
) -> Iterator[HistoryEntry]:
    """The group's loads that were not in the log when it was read: pruned, taken back, or never logged."""
    found = [(load_id, published_directory(load_id)) for load_id in sorted(outputs.visible(output.url))]
    for rewind_id in output.names(REWOUND):
        names = output.names(f"{REWOUND}/{rewind_id}")
        found += [(name.removeprefix(_PREFIX), f"{REWOUND}/{rewind_id}/{name}") for name in names if _PREFIX in name]
    for load_id, directory in found:
        if load_id in known or not is_of(group, load_id):
            continue
        number = LoadId.of(load_id).sequence
        unknown = LoadRecord.unknown(load_id, output.url, log.kind)
        if number < oldest:
            yield HistoryEntry(unknown, LoadState.PUBLISHED, output.url_of(directory))
        elif not log.has(unknown):  # else it was committed after the log was read
            yield HistoryEntry(unknown, LoadState.UNKNOWN, output.url_of(directory))


def _with_files(entry: HistoryEntry, outputs: Outputs) -> HistoryEntry:
    """The entry with the manifest beside its data. Where the log has the load, its record wins over the manifest."""
    if entry.directory is None:
        return entry
    output = outputs.at(entry.record.output)
    path = f"{entry.directory.removeprefix(output.url + '/')}/{MANIFEST}"
    try:
        manifest = read_record(output, path)
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
