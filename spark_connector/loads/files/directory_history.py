"""The loads of a group into files, in one list: the commit log, the published directories and the staging area.

The commit log decides which loads count. Loads that were pruned from it are known from the manifests beside their data,
so they stay in the list as long as the data exists. Raises LoadError for a log that cannot be read.

Nothing is looked at but this directory. A commit log in ZooKeeper may name loads into others: their records say where,
and a record is no reason to open anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from broker.storage.storage import Storage, TooLarge
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.history import (
    MANIFEST,
    History,
    HistoryEntry,
    LoadState,
    gaps,
    is_at,
    is_of,
    read_record,
    staged_entries,
)
from spark_connector.loads.record import LoadError, LoadId, LoadRecord, published_directory
from spark_connector.loads.rewind import REWOUND, aside_of, manifest_of, undone_by

_READERS = 8  # manifests at a time; each costs one or two round trips to HDFS
_PREFIX = published_directory("")


class DirectoryHistory:
    """Reads the history of one group in the directory `output`."""

    def __init__(self, group: str, output: Storage, log: CommitLog) -> None:
        self._group = group
        self._output = output
        self._log = log

    def read(self) -> History:
        """Every load of the group that has left a trace, in order of number."""
        logged, newest = self._log.records(), self._log.newest()
        known = {record.load_id for record in logged}
        oldest = min((record.id.sequence for record in logged), default=0)
        logged += self._forgotten_rewinds(known)
        undone = undone_by(logged)
        hidden = None if newest.published else newest.load_id
        visible = {name.removeprefix(_PREFIX) for name in self._output.names("") if name.startswith(_PREFIX)}
        entries = [self._logged_entry(record, undone, hidden, visible) for record in logged]
        entries += self._unlogged_entries(known, oldest, visible)
        with ThreadPoolExecutor(_READERS) as pool:
            entries = list(pool.map(self._with_files, entries))
        numbers = {entry.record.id.sequence for entry in entries} | {LoadId.of(load_id).sequence for load_id in undone}
        # The log is pruned from its oldest entry on. A number missing after that was a stream's entry, pruned by it.
        first = min(self._log.sequences(), default=newest.sequence + 1)
        staging = f"_staging/{self._log.kind}"
        entries += staged_entries(self._output, staging, self._group, newest=newest.sequence, known=known)
        entries.sort(key=lambda entry: (entry.record.id.sequence, entry.record.load_id))
        return History(entries, gaps(first - 1, numbers))

    def _forgotten_rewinds(self, known: set[str]) -> list[LoadRecord]:
        """Rewinds that were pruned from the commit log, from the records in `_rewound/`."""
        found = []
        for rewind_id in self._output.names(REWOUND):
            if rewind_id not in known and is_of(self._group, rewind_id):
                with contextlib.suppress(FileNotFoundError):
                    found.append(read_record(self._output, manifest_of(rewind_id), rewind_id))
        return found

    def _logged_entry(
        self, record: LoadRecord, undone: Mapping[str, LoadRecord], hidden: str | None, visible: set[str]
    ) -> HistoryEntry:
        """`hidden`: the newest load, when its owner was killed between the commit and the mark that it is published."""
        if record.rewind is not None:
            return HistoryEntry(record, LoadState.REWIND)
        output, load_id = self._output, record.load_id
        if load_id in undone:
            aside = aside_of(undone[load_id].load_id, load_id)
            return HistoryEntry(record, LoadState.REWOUND, output.url_of(aside) if output.exists(aside) else None)
        here = is_at(output, record.output)
        if load_id in visible:  # in a directory that was moved, too
            shown = record if here else replace(record, output=output.shown)
            return HistoryEntry(shown, LoadState.PUBLISHED, output.url_of(published_directory(load_id)))
        if not here:
            return HistoryEntry(record, LoadState.ELSEWHERE)
        if load_id == hidden:
            staged = output.url_of(f"_staging/{self._log.kind}/{hidden}/data")
            return HistoryEntry(record, LoadState.HIDDEN, staged)
        return HistoryEntry(record, LoadState.ABSENT)

    def _unlogged_entries(self, known: set[str], oldest: int, visible: set[str]) -> Iterator[HistoryEntry]:
        """The group's loads that were not in the log when it was read: pruned, taken back, or never logged."""
        output = self._output
        found = [(load_id, published_directory(load_id)) for load_id in sorted(visible)]
        for rewind_id in output.names(REWOUND):
            aside = f"{REWOUND}/{rewind_id}"
            names = (name for name in output.names(aside) if _PREFIX in name)
            found += [(name.removeprefix(_PREFIX), f"{aside}/{name}") for name in names]
        for load_id, directory in found:
            if load_id in known or not is_of(self._group, load_id):
                continue
            unknown = LoadRecord.unknown(load_id, output.url, self._log.kind)
            if unknown.id.sequence < oldest:
                yield HistoryEntry(unknown, LoadState.PUBLISHED, output.url_of(directory))
            elif not self._log.has(unknown):  # else it was committed after the log was read
                yield HistoryEntry(unknown, LoadState.UNKNOWN, output.url_of(directory))

    def _with_files(self, entry: HistoryEntry) -> HistoryEntry:
        """The entry with the manifest beside its data. The record of the log, where there is one, wins over it."""
        if entry.directory is None:
            return entry
        path = f"{entry.directory.removeprefix(self._output.url + '/')}/{MANIFEST}"
        try:
            manifest = read_record(self._output, path, entry.record.load_id)
        except (FileNotFoundError, LoadError, TooLarge):
            return entry
        moved = f"{REWOUND}/" in entry.directory and entry.state is LoadState.PUBLISHED
        return replace(
            entry,
            record=manifest if entry.record.created_ms < 0 else entry.record,
            state=LoadState.REWOUND if moved else entry.state,
            manifest=manifest,
        )
