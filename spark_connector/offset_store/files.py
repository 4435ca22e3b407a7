"""The offset store in a directory: one numbered JSON file per commit; the highest number holds the current offsets.

    <path>/<group>/00000000000000000042.json
    {"version": 1, "group": "flights", "sequence": 42, "offsets": {"flights": {"0": 1200, "1": 977}},
     "ids": {"flights": "uuid"}}

An entry holds ALL offsets of the group, and topic ids where they are known, so only the newest is read. The others are
history; `commit` keeps 100 entries. A commit creates the next number without overwriting, so exactly one of two
concurrent commits wins. It works on every file system of `broker.storage.storage`: local, `hdfs://`, object stores with
conditional put. `load` also writes its commits as such entries (with `details`), so a reader can start where a load
ended.

    <path>/<group>/00000000000000000007.noted     an archived entry with details

The numbers in `.json` files have no gaps: a process that paused after it read number 41 would take a free number in a
gap. So entries are removed in order, and entries of loads are archived, where `recall` finds them until `forget`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage, open_storage
from broker.stored_names import number_named
from spark_connector.offset_store.base import (
    NO_IDS,
    OffsetConflict,
    Offsets,
    OffsetStoreError,
    TopicIds,
    check_expected,
    check_group,
    offsets_from_json,
    offsets_to_json,
    required_option,
)
from spark_connector.stored_json import mapping, parsed, text, topic, whole

logger = logging.getLogger("pykafka.spark")

_VERSION = 1
_ENTRY, _NOTED = ".json", ".noted"

_KEPT = 100
"""Entries that `commit` keeps, including its own."""

_MOST_PRUNED = 100
"""Entries that one commit removes at most, so that a stream does not stall where an older version kept them all."""

_MAX_RETRIES = 100  # lost races in a row before a commit without `expected` gives up


def open_from_options(options: Mapping[str, str]) -> FilesOffsetStore:
    """`offsetStore.path` is the directory, any URL; HDFS takes its settings from HADOOP_CONF_DIR, an object store from
    the environment (AWS_…)."""
    path = required_option(options, "offsetStore.path", "the directory of the 'files' offset store")
    return FilesOffsetStore(open_storage(path))


@dataclass(frozen=True)
class FilesEntry:
    """One commit: all offsets of the group after it, the committer's `details`, and ids of topics."""

    group: str
    sequence: int
    offsets: Offsets
    details: Mapping[str, Any] = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        offsets = offsets_to_json(self.offsets)
        document = {"version": _VERSION, "group": self.group, "sequence": self.sequence, "offsets": offsets}
        ids = {"ids": dict(sorted(self.topic_ids.items()))} if self.topic_ids else {}
        return json.dumps({**document, **ids, **self.details}, indent=1).encode()

    def followed_by(self, offsets: Offsets, topic_ids: TopicIds) -> FilesEntry:
        """The next entry. Offsets of a topic that has another id now are gone."""
        here = {tp.topic for tp in offsets}
        now = {name: one for name, one in topic_ids.items() if name in here}
        gone = {name for name, one in now.items() if self.topic_ids.get(name, one) != one}
        kept = {tp: offset for tp, offset in self.offsets.items() if tp.topic not in gone}
        ids = {**{name: one for name, one in self.topic_ids.items() if name not in here}, **now}
        return FilesEntry(self.group, self.sequence + 1, {**kept, **offsets}, topic_ids=ids)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> FilesEntry:
        """Raises OffsetStoreError, with the name of the file, for data that `to_bytes` cannot have written."""
        try:
            document = mapping(parsed(data), "the entry")
            version = whole(document.pop("version"), "version", 1)
            if version > _VERSION:
                raise OffsetStoreError(
                    f"{where} was written by a newer pykafka (entry version {version}, this one reads up to "
                    f"{_VERSION}): upgrade"
                )
            offsets = offsets_from_json(document.pop("offsets"))
            group, sequence = text(document.pop("group"), "group"), whole(document.pop("sequence"), "sequence", 1)
            ids = {topic(name): text(one, "ids") for name, one in mapping(document.pop("ids", {}), "ids").items()}
            return cls(group, sequence, offsets, document, ids)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OffsetStoreError(f"{where} is not an offset entry: {error!r}") from error


@dataclass
class _Trail:
    """The state of the directory after our last commit, so that the next commit need not list it again."""

    newest: FilesEntry
    older: deque[int]
    """Numbers of the entries before `newest`, oldest first."""


class FilesOffsetStore:
    """Offsets in numbered files under one directory (see the module for the format)."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._trails: dict[str, _Trail] = {}

    def read(self, group: str) -> dict[TopicPartition, int]:
        newest = self.newest(group)
        return dict(newest.offsets) if newest else {}

    def topic_ids(self, group: str) -> dict[str, str]:
        newest = self.newest(group)
        return dict(newest.topic_ids) if newest else {}

    def commit(
        self, group: str, offsets: Offsets, *, expected: Offsets | None = None, topic_ids: TopicIds = NO_IDS
    ) -> None:
        trail = None if expected is not None else self._trails.pop(group, None)
        for _ in range(_MAX_RETRIES):
            remembered, trail = trail is not None, trail or self._look(group)
            before = trail.newest
            after = before.followed_by(offsets, topic_ids)
            is_same = (after.offsets, after.topic_ids) == (before.offsets, before.topic_ids)
            if expected is not None:
                check_expected(group, before.offsets, expected, offsets)
            if is_same and not remembered:
                return
            if not is_same and self._follow(trail, after):
                self._trails[group] = trail
                return
            trail = None  # another commit took the number, or may have: list the directory again
        raise OffsetConflict(f"group '{group}': lost {_MAX_RETRIES} races for the next entry in {self._storage.shown}")

    def close(self) -> None:
        """Nothing is held open."""

    def sequences(self, group: str, *, noted: bool = False) -> list[int]:
        """Numbers of all entries of the group, ascending; with `noted` also of archived ones."""
        suffixes = (_ENTRY, _NOTED) if noted else (_ENTRY,)
        names = (name.rpartition(".") for name in self._storage.names(check_group(group)))
        found = {number_named(stem) for stem, dot, end in names if dot + end in suffixes}
        return sorted(number for number in found if number is not None)

    def entry(self, group: str, sequence: int) -> FilesEntry:
        """One entry of the history. Raises OffsetStoreError if it is missing or cannot be parsed."""
        found = self.find(group, sequence)
        if found is None:
            raise OffsetStoreError(f"{self._storage.url_of(_path(group, sequence))} does not exist")
        return found

    def find(self, group: str, sequence: int) -> FilesEntry | None:
        """One entry of the history; None if it is missing."""
        return self._read(group, sequence)

    def recall(self, group: str, sequence: int) -> FilesEntry | None:
        """One entry of the history, also an archived one; None if it is missing."""
        return self.find(group, sequence) or self._read(group, sequence, _NOTED)

    def forget(self, group: str, sequence: int) -> None:
        """Remove an entry, archived or not; no error if it is missing. Not for the newest, which holds the offsets."""
        self._storage.remove(_path(group, sequence))
        self._storage.remove(_path(group, sequence, _NOTED))

    def newest(self, group: str) -> FilesEntry | None:
        """The entry with the current offsets; None for a group without commits."""
        sequences = self.sequences(group)
        return self.entry(group, sequences[-1]) if sequences else None

    def append(self, entry: FilesEntry) -> None:
        """Create exactly this entry. Raises OffsetConflict if its number is taken.

        On an object store also when the store's answer was lost and the number is taken by this very entry.
        """
        path = _path(entry.group, entry.sequence)
        self._storage.probe()
        try:
            self._storage.create(path, entry.to_bytes())
        except FileExistsError as error:
            raise OffsetConflict(
                f"group '{entry.group}': commit {entry.sequence} in {self._storage.shown} was made by another"
            ) from error

    def _look(self, group: str) -> _Trail:
        older = deque(self.sequences(group))
        return _Trail(self.entry(group, older.pop()) if older else FilesEntry(group, 0, {}), older)

    def _follow(self, trail: _Trail, entry: FilesEntry) -> bool:
        """Commit `entry` after the trail's newest entry; False if that is no longer the newest."""
        before = trail.newest.sequence
        try:
            self.append(entry)
        except OffsetConflict:
            return False
        if before and not self._storage.exists(_path(entry.group, before)):
            self.forget(entry.group, entry.sequence)  # others are so far ahead that they have removed it
            return False
        if before:
            trail.older.append(before)
        trail.newest = entry
        self._prune(trail)
        return True

    def _prune(self, trail: _Trail) -> None:
        """Remove or archive the oldest entries beyond the number to keep."""
        group = trail.newest.group
        try:
            for _ in range(min(len(trail.older) + 1 - _KEPT, _MOST_PRUNED)):
                self._take_out(group, trail.older[0])
                trail.older.popleft()
        except (OffsetStoreError, OSError) as error:
            logger.warning(
                "Old offsets of group '%s' in %s could not be removed: %s", group, self._storage.shown, error
            )

    def _take_out(self, group: str, sequence: int) -> None:
        entry = self.find(group, sequence)
        if entry is not None and entry.details:
            with contextlib.suppress(FileExistsError):  # another process archives it
                self._storage.create(_path(group, sequence, _NOTED), entry.to_bytes())
        self._storage.remove(_path(group, sequence))

    def _read(self, group: str, sequence: int, suffix: str = _ENTRY) -> FilesEntry | None:
        """Raises OffsetStoreError for an entry that is not the one its name says."""
        path = _path(group, sequence, suffix)
        where = self._storage.url_of(path)
        try:
            entry = FilesEntry.from_bytes(self._storage.read(path), where)
        except FileNotFoundError:
            return None
        if (entry.group, entry.sequence) != (group, sequence):
            raise OffsetStoreError(f"{where} says that it is entry {entry.sequence} of group '{entry.group}'")
        return entry


def _path(group: str, sequence: int, suffix: str = _ENTRY) -> str:
    return f"{check_group(group)}/{sequence:020d}{suffix}"
