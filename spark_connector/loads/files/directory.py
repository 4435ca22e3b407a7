"""A directory as the destination of loads: every load is a directory `load=<load id>` of data files.

A load's files and offsets become visible together: stage, seal, commit, publish, and repair after a crash.

    <output>/_staging/<kind>/<load id>/intent.json           1. what will be loaded
    <output>/_staging/<kind>/<load id>/data/part-…           2. tasks write
    <output>/_staging/<kind>/<load id>/data/_manifest.json   3. sealed: all rows are written and counted
    the commit log (FilesCommitLog, zookeeper_log.py)        4. committed: offsets and load, in one atomic step
    <output>/load=<load id>/                                 5. published: the data directory renamed

Readers never see uncommitted rows (L3): until step 5 all names begin with `_`. Committed rows are never lost: a crash
between 4 and 5 leaves a sealed directory, and the next repair renames it. Renaming one directory is atomic, renaming
many files is not; and `key=value` is the only kind of directory that Spark reads without being told to.

A rewind is committed in the same way; to publish it means to move the directories of the undone loads aside. Two
processes may run any of this for one group at the same time: the commit log lets one of them win (L2).

`FilesCommitLog` is the commit log in files: one JSON file per load in `<output>/_offsets/<group>`. The entries are
those of the files offset store, so that other readers can start from them, too. A mark beside an entry
(`<number>.published`) says that the load's directory is in place.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage, TooLarge
from broker.stored_names import number_named
from spark_connector.loads.commit import CommitLog, Newest
from spark_connector.loads.destination import HeldRows, LoadedDestination, NewSession
from spark_connector.loads.file_check import FileNotAsWritten, check_sizes
from spark_connector.loads.files.directory_history import DirectoryHistory
from spark_connector.loads.files.directory_snapshot import snapshot_of
from spark_connector.loads.files.file_rows import count_rows, read_offsets
from spark_connector.loads.files.time_types import with_times_of
from spark_connector.loads.grammar import identify_rows
from spark_connector.loads.history import (
    MANIFEST,
    History,
    HistoryEntry,
    LoadState,
    intent_of,
    is_at,
    read_record,
    refuse_unseen,
    topics_by_group,
)
from spark_connector.loads.path_values import check_topics
from spark_connector.loads.record import (
    LoadError,
    LoadId,
    LoadRange,
    LoadRecord,
    LoadTooLarge,
    Rewind,
    published_directory,
)
from spark_connector.loads.rewind import aside_of, manifest_of, standing
from spark_connector.loads.rules import Act, StagedLoad, Step, repair_steps
from spark_connector.loads.table_snapshot import TableSnapshot
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_output import StorageOutput, TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.offset_store.base import OffsetConflict, check_expected
from spark_connector.offset_store.files import FilesEntry, FilesOffsetStore

_STAGING = "_staging"
_MAX_ROUNDS = 100  # of a repair; each round finishes at least one load


def _attempts(place: str) -> str:
    """Where tasks write: beside the data directory, because some of their attempts do not count."""
    return f"{posixpath.dirname(place)}/attempts"


class FilesDestination(LoadedDestination):
    """The output directory of one group's loads. The group's earlier loads may have gone to other directories: these
    are not touched, for nobody but the record says which they are."""

    rows_are_in = "the files"
    output: Storage

    def __init__(self, output: Storage, log: CommitLog, group: str) -> None:
        self.url = output.shown
        self.output = output
        self.log = log
        self._group = group
        self._staging = f"{_STAGING}/{log.kind}"

    def repair(self) -> list[str]:
        """Publish what is committed, commit what is complete, remove what can no longer be committed.

        Gives the ids of the loads that were published. Does not disturb a load that is running.
        """
        finished: dict[str, None] = {}
        for _ in range(_MAX_ROUNDS):
            steps = repair_steps(self.log.newest(), self._staged())
            if not steps:
                return list(finished)
            for step in steps:
                if self._take(step):
                    finished[step.load_id] = None
        raise LoadError(f"group '{self._group}': other loads commit faster than this repair can follow; try again")

    def stage(self, record: LoadRecord) -> str:
        """Write the intent; gives the directory, relative to the output, for the data.

        Raises LoadTooLarge, before anything is written, when the load could not be committed, and ConfigError where
        readers would not see it.
        """
        refuse_unseen(self.output)
        self._refuse_other_layout(record)
        self.log.check(record)
        self.output.create(f"{self._staging}/{record.load_id}/intent.json", intent_of(record))
        return self._data(record.load_id)

    def _refuse_other_layout(self, record: LoadRecord) -> None:
        """Check that this load has the format and layout of the loads before, so that all can be read as one."""
        self._check_loads_before(record)

    def file_layout(self, record: LoadRecord, layout: FileLayout) -> FileLayout:
        before = self._check_loads_before(record)
        return layout if before is None else with_times_of(before, self.output, layout)

    def _check_loads_before(self, record: LoadRecord) -> LoadRecord | None:
        """Gives the newest load that has rows."""
        check_topics(record.partition_by, {range.topic for range in record.ranges})
        newest: LoadRecord | None = None
        for before in self._manifests(lambda manifest: manifest.rows > 0):
            if not before.rows:
                continue
            newest = newest or before
            if before.format != record.format:
                raise ConfigError(
                    f"{self.url} holds loads in {before.format} so far, not in {record.format}, and they could not be "
                    "read as one: keep the format, or use another directory"
                )
            if before.partition_by != record.partition_by:
                raise ConfigError(
                    f"{self.url} is partitioned by {', '.join(before.partition_by) or 'nothing'} so far, not by "
                    f"{', '.join(record.partition_by) or 'nothing'}: keep partition_by, or use another directory"
                )
        return newest

    def task_output(self, place: str) -> TaskOutput:
        return StorageOutput(self.output.url, self.output.options, _attempts(place))

    def gather(self, place: str, files: WrittenFiles) -> None:
        """Move the files into the data directory: readers will see all that is there."""
        self.output.make_directory(place)
        for file in files:
            self.output.rename(f"{_attempts(place)}/{file.name}", f"{place}/{file.name}")

    def seal(self, record: LoadRecord) -> None:
        """Write the manifest: the data is complete. From now on the load will be committed, here or by a repair.

        The data is synced first (L6): after a power failure, files that the commit log counts must not be empty. On an
        error nothing is left behind, unless the manifest exists: then a repair may be committing the load.
        """
        manifest = f"{self._data(record.load_id)}/{MANIFEST}"
        try:
            self.output.sync(self._data(record.load_id))
            self.output.create(manifest, record.to_bytes())
        except OSError:
            if not self.output.exists(manifest):
                self.discard(record.load_id)
            raise

    def commit(self, record: LoadRecord, files: WrittenFiles = (), layout: FileLayout | None = None) -> None:
        """Commit a sealed load and publish it.

        Raises OffsetConflict when another load was first, or LoadTooLarge; then nothing is left behind.
        """
        try:
            if record.rewind is None:
                self._check_data(record)
            self.log.append(record)
        except (OffsetConflict, LoadTooLarge, FileNotAsWritten):
            self.discard(record.load_id)
            raise
        self.repair()

    def _check_data(self, record: LoadRecord) -> None:
        """Look at the files of a sealed load once more, unless another process has committed or discarded it."""
        data = self._data(record.load_id)
        try:
            sizes = self.output.tree_sizes(data)
            check_sizes(
                f"load {record.load_id}", lambda name: self.output.url_of(f"{data}/{name}"), sizes, record.files
            )
        except FileNotAsWritten:
            if not (self.log.has(record) or self.log.is_overtaken(record)):
                raise

    def discard(self, load_id: str) -> None:
        self.output.remove(f"{self._staging}/{load_id}")

    def published(self, group: str) -> list[str]:
        return [str(load_id) for load_id in self._newest_first() if load_id.group == group]

    def groups(self) -> Mapping[str, str]:
        """From the newest manifest of each group, and from the staging areas for those that have published nothing."""
        kinds: dict[str, str] = {}
        for load_id in self._newest_first():
            if load_id.group not in kinds:
                manifest = self._manifest(load_id)
                kinds[load_id.group] = self.log.kind if manifest is None else manifest.offsets
        for kind in self.output.names(_STAGING):
            for attempt in map(LoadId.parse, self.output.names(f"{_STAGING}/{kind}")):
                if attempt is not None:
                    kinds.setdefault(attempt.group, kind)
        return kinds

    def rows_elsewhere(self, loads: Iterator[LoadRecord]) -> str | None:
        """Offsets in ZooKeeper are those of all directories. One that was moved has its loads, a new one has none."""
        newest = next(loads, None) if self.log.kind == "zookeeper" and not self.published(self._group) else None
        return f"to {newest.output}" if newest and not is_at(self.output, newest.output) else None

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Of each group from the newest manifest, and older ones until one has topic ids."""
        return topics_by_group(self._manifests(lambda record: bool(record.topic_ids)))

    def path_of(self, load_id: str) -> str:
        return self.output.url_of(published_directory(load_id))

    def history(self) -> History:
        return DirectoryHistory(self._group, self.output, self.log).read()

    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        for entry in entries:
            yield entry, self._held(entry, session)

    def unknown_loads(self, history: History) -> tuple[list[str], list[str]]:
        """Visible entries that are no load, or no load of the commit log. Other groups may share the directory."""
        problems = []
        states = ((entry.state, f"load={entry.record.load_id}") for entry in history.entries)
        unknown = {name for state, name in states if state is LoadState.UNKNOWN}
        for name in self.output.names(""):
            if name.startswith(("_", ".")):
                continue
            is_load = name.startswith("load=") and LoadId.parse(name.removeprefix("load=")) is not None
            if not is_load or name in unknown:
                problems.append(f"{self.output.url_of(name)} is visible to readers, but no load of this group")
        return problems, []

    def snapshot(self, partitions: Collection[TopicPartition], version: str | None = None) -> TableSnapshot:
        return snapshot_of(self.log, self.output, self.history, version)

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        for undone in rewind.rewind.undone:
            if not is_at(self.output, undone.output):
                raise ConfigError(
                    f"load {undone.load_id} went to {undone.output}, and a rewind moves directories of {self.url} only:"
                    " take the loads of each directory back by itself, the newest first"
                )

    def _staged(self) -> list[StagedLoad]:
        attempts = ((name, LoadId.parse(name)) for name in self.output.names(self._staging))
        return [
            StagedLoad(name, load_id.sequence, self._is_complete(name))
            for name, load_id in attempts
            if load_id is not None and load_id.group == self._group
        ]

    def _is_complete(self, load_id: str) -> bool:
        """Whether it is sealed and every file has its size."""
        sizes = self.output.tree_sizes(self._data(load_id))
        if MANIFEST not in sizes:
            return False
        try:
            record = self._sealed(load_id)
        except FileNotFoundError:
            return False  # another process has just published or discarded it
        if record.rewind is not None or not is_at(self.output, record.output):
            return False  # not written by a load into this directory
        return all(sizes.get(file.name) == file.size for file in record.files)

    def _take(self, step: Step) -> bool:
        """Carry out one step; True when it published a load."""
        if step.act is Act.PUBLISH or self._is_unpublished(step):
            self._publish(step.load_id)
            return True
        if step.act is Act.COMMIT:
            try:
                self.log.append(self._sealed(step.load_id))
            except FileNotFoundError:
                return False  # its owner was faster
            except (OffsetConflict, LoadTooLarge):
                self.discard(step.load_id)  # another load took the offsets, or the record is too large
            return False
        self.discard(step.load_id)
        return False

    def _is_unpublished(self, step: Step) -> bool:
        """Whether this attempt is committed under an older number: its owner was killed before the rename, and a stream
        of the same group has committed since."""
        if step.act is not Act.DISCARD or not self._is_complete(step.load_id):
            return False
        return any(record.load_id == step.load_id for record in standing(self.log.records()))

    def _publish(self, load_id: str) -> None:
        record = self.log.record(LoadId.of(load_id).sequence)
        if record is None:
            raise LoadError(f"load {load_id} is no longer in the commit log of group '{self._group}'")
        self._refuse_elsewhere(record)
        if record.rewind is not None:
            self._undo_outputs(record, record.rewind)
            self.log.mark_published(record)
            return
        output, target = self.output, published_directory(load_id)
        try:
            output.rename(self._data(load_id), target)
        except (FileNotFoundError, FileExistsError) as error:
            if not output.exists(f"{target}/{MANIFEST}"):  # otherwise another repair has renamed it
                raise LoadError(
                    f"load {load_id} is committed, but its data is neither in {output.url_of(self._data(load_id))} nor "
                    f"in {output.url_of(target)}: run this where that directory can be reached, or restore it"
                ) from error
        self.log.mark_published(record)
        output.remove(f"{self._staging}/{load_id}")

    def _refuse_elsewhere(self, record: LoadRecord) -> None:
        """Raise LoadError unless all that a repair of this record changes lies in this directory."""
        places = [record.output, *(one.output for one in (record.rewind.undone if record.rewind else ()))]
        for place in places:
            if not is_at(self.output, place):
                raise LoadError(
                    f"{record.load_id} is committed, but not finished: its data belongs to {place}, and a repair of "
                    f"{self.url} changes nothing else. If loads of group '{self._group}' go there, run `pykafka loads "
                    "recover` with --to for that place first"
                )

    def _undo_outputs(self, record: LoadRecord, rewind: Rewind) -> None:
        """Move the directories of the undone loads aside, or delete them. Directories that are gone are skipped.

        Leaves the rewind's record beside them, for the time when the commit log has forgotten it. May be called again,
        and by two processes at once.
        """
        with contextlib.suppress(FileExistsError):
            self.output.create(manifest_of(record.load_id), record.to_bytes())
        for undone in reversed(rewind.undone):
            output, source = self.output, published_directory(undone.load_id)
            aside = aside_of(record.load_id, undone.load_id)
            try:
                output.rename(source, aside)
            except FileNotFoundError:
                continue  # an earlier try has moved it, or a person
            except FileExistsError as error:
                if output.exists(source):
                    raise LoadError(
                        f"rewind {record.load_id}: {output.url_of(source)} and {output.url_of(aside)} both exist: "
                        "remove the wrong one"
                    ) from error
        if rewind.delete:
            for undone in rewind.undone:
                self.output.remove(aside_of(record.load_id, undone.load_id))

    def _sealed(self, load_id: str) -> LoadRecord:
        return read_record(self.output, f"{self._data(load_id)}/{MANIFEST}", load_id)

    def _data(self, load_id: str) -> str:
        return f"{self._staging}/{load_id}/data"

    def _held(self, entry: HistoryEntry, session: NewSession) -> HeldRows:
        record = entry.record
        if not record.format:
            return HeldRows(None, ("its manifest is missing, and the commit log has forgotten it",))
        if entry.state is LoadState.ELSEWHERE:
            return HeldRows(None, notes=(f"it went to {record.output}: verify the group with --to for that place",))
        if entry.directory is None:
            return HeldRows(None, (f"its directory, {record.output}/load={record.load_id}, is gone",))
        output = self.output
        directory = entry.directory.removeprefix(output.url + "/")
        hidden = "it is committed, but not visible yet; the next load or a recovery makes it visible"
        files = output.data_files(directory)
        problems = _check_manifest(record, output.url_of(f"{directory}/{MANIFEST}"), entry, files)
        notes = (hidden,) if entry.state is LoadState.HIDDEN else ()
        if not identify_rows(record.columns):
            rows, faults = count_rows(output, directory, sorted(files), record.format, session)
            return HeldRows(None, (*problems, *faults.problems), notes, None if faults.unread else rows, faults.unread)
        held, faults = read_offsets(output, directory, sorted(files), record.format, session)
        return HeldRows(None if faults.unread else held, (*problems, *faults.problems), notes, unread=faults.unread)

    def _manifests(self, is_enough: Callable[[LoadRecord], bool]) -> Iterator[LoadRecord]:
        """The manifests of every group that has loads in this directory, the newest first, until one is enough."""
        complete: set[str] = set()
        for load_id in self._newest_first():
            if load_id.group not in complete and (manifest := self._manifest(load_id)) is not None:
                if is_enough(manifest):
                    complete.add(load_id.group)
                yield manifest

    def _manifest(self, load_id: LoadId) -> LoadRecord | None:
        """The manifest of a published load; None if it cannot be read."""
        with contextlib.suppress(FileNotFoundError, LoadError, TooLarge):
            return read_record(self.output, f"{published_directory(str(load_id))}/{MANIFEST}", str(load_id))
        return None

    def _newest_first(self) -> list[LoadId]:
        """The loads that readers see, of all groups."""
        prefix = published_directory("")
        names = (name.removeprefix(prefix) for name in self.output.names("") if name.startswith(prefix))
        loads = [load_id for load_id in map(LoadId.parse, names) if load_id is not None]
        return sorted(loads, key=lambda load_id: load_id.sequence, reverse=True)


def _check_manifest(record: LoadRecord, where: str, entry: HistoryEntry, files: Mapping[str, int]) -> list[str]:
    """Compare the manifest with the commit log, and the directory with the manifest."""
    if entry.manifest is None:
        return [f"{where} is missing, or is not the manifest of this load"]
    problems = []
    if _counted(entry.manifest.ranges) != _counted(record.ranges):
        problems.append(f"{where} disagrees with the commit log about what was loaded")
    listed = {file.name: file.size for file in entry.manifest.files}
    problems += [f"{name} is missing" for name in sorted(listed.keys() - files.keys())]
    problems += [f"{name} is not a file of this load" for name in sorted(files.keys() - listed.keys())]
    problems += [
        f"{name} has {files[name]:,} bytes, the load has written {size:,}"
        for name, size in sorted(listed.items())
        if files.get(name, size) != size
    ]
    return problems


def _counted(ranges: Sequence[LoadRange]) -> list[tuple[TopicPartition, int, int, int | None]]:
    return [(range.tp, range.start, range.end, range.rows) for range in ranges]


_DIRECTORY = "_offsets"  # below the output directory; Spark and pyarrow do not read names with _
_PRUNED = ".pruned"  # <number>.pruned: the entries up to this number are removed, and stay taken (L8)


class FilesCommitLog(CommitLog):
    """The log below the output directory. Creating the entry's file exclusively is the commit."""

    kind = "files"

    def __init__(self, output: Storage, group: str) -> None:
        self._storage = output.below(_DIRECTORY)
        self._store = FilesOffsetStore(self._storage)
        self._group = group

    def newest(self) -> Newest:
        entry = self._store.newest(self._group)
        if entry is None:
            return Newest()
        record = self._load_of(entry)
        if record is None:
            return Newest(entry.sequence)
        return Newest(entry.sequence, record.load_id, self._storage.exists(self._published_mark(entry.sequence)))

    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        return self._store.read(self._group)

    def record(self, sequence: int) -> LoadRecord | None:
        entry = self._store.recall(self._group, sequence)
        return None if entry is None else self._load_of(entry)

    def sequences(self) -> list[int]:
        pruned = self._pruned_up_to()
        return [number for number in self._store.sequences(self._group, noted=True) if number > pruned]

    def append(self, record: LoadRecord) -> None:
        """The first process to create the file of this number has committed."""
        number = record.id.sequence
        before = self._store.find(self._group, number - 1) if number > 1 else FilesEntry(self._group, 0, {})
        if before is None:
            raise self._pruned(number)
        check_expected(self._group, before.offsets, record.expected, record.committed)
        details = {"load": record.without_files().to_json()}
        try:
            offsets = {**before.offsets, **record.committed}
            self._store.append(FilesEntry(self._group, number, offsets, details, record.topic_ids))
        except OffsetConflict:
            if not self.has(record):
                raise
            return
        if self._pruned_up_to() >= number:
            self._store.forget(self._group, number)
            raise self._pruned(number)

    def prune(self, keep: int) -> list[int]:
        """Writes a mark first: a process that reserved one of these numbers long ago must not find it free."""
        pruned = self.sequences()[: -max(keep, 1)]
        if not pruned:
            return []
        older = self._pruned_marks()
        self._create_mark(f"{self._group}/{pruned[-1]:020d}{_PRUNED}")
        for number in pruned:
            self._store.forget(self._group, number)
            self._storage.remove(self._published_mark(number))
        for number in older:
            self._storage.remove(f"{self._group}/{number:020d}{_PRUNED}")
        return pruned

    def mark_published(self, record: LoadRecord) -> None:
        self._create_mark(self._published_mark(record.id.sequence))

    def _load_of(self, entry: FilesEntry) -> LoadRecord | None:
        where = f"entry {entry.sequence} of group '{entry.group}' in {self._storage.shown}"
        if "load" not in entry.details:
            return None  # the commit of a stream or a consumer of the same group
        if not isinstance(entry.details["load"], dict):
            raise LoadError(f"{where} is not the record of a load")
        record = LoadRecord.from_json(entry.details["load"], where)
        record.refuse_unless(entry.group, entry.sequence, where)
        return record

    def _create_mark(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._storage.create(path, b"")

    def _pruned_marks(self) -> list[int]:
        names = self._storage.names(self._group)
        marks = (number_named(name.removesuffix(_PRUNED)) for name in names if name.endswith(_PRUNED))
        return [mark for mark in marks if mark is not None]

    def _pruned_up_to(self) -> int:
        return max(self._pruned_marks(), default=0)

    def _pruned(self, number: int) -> OffsetConflict:
        return OffsetConflict(f"group '{self._group}': commit {number} was made long ago and has been pruned")

    def _published_mark(self, sequence: int) -> str:
        return f"{self._group}/{sequence:020d}.published"
