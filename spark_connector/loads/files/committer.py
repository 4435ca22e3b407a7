"""Makes a load's files and offsets visible together: stage, seal, commit, publish, and repair after a crash.

    <output>/_staging/<kind>/<load id>/intent.json           1. what will be loaded
    <output>/_staging/<kind>/<load id>/data/part-…           2. Spark writes
    <output>/_staging/<kind>/<load id>/data/_manifest.json   3. sealed: all rows are written and counted
    the commit log (commit_log.py, zookeeper_commit_log.py)   4. committed: offsets and load, in one atomic step
    <output>/load=<load id>/                                 5. published: the data directory renamed

Readers never see uncommitted rows: until step 5 all names begin with `_`. Committed rows are never lost: a crash
between 4 and 5 leaves a sealed directory, and the next repair renames it. Renaming one directory is atomic, renaming
many files is not; and `key=value` is the only kind of directory that Spark reads without being told to.

A rewind is committed in the same way; to publish it means to move the directories of the undone loads aside. Two
processes may run any of this for one group at the same time: the commit log lets one of them win.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from spark_connector.loads.commit_log import CommitLog
from spark_connector.loads.files.repair_state import Act, Staged, Step, repair_steps
from spark_connector.loads.history import MANIFEST, intent_of
from spark_connector.loads.record import LoadError, LoadId, LoadRecord, LoadTooLarge, Rewind, published_directory
from spark_connector.loads.rewind import aside_of, manifest_of, standing
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.storage import Storage

__all__ = ["FilesCommitter"]

_STAGING = "_staging"
_MAX_ROUNDS = 100  # of a repair; each round finishes at least one load


class FilesCommitter:
    """Carries out the protocol for one group into one output directory."""

    def __init__(self, output: Storage, log: CommitLog, group: str, open_output: Callable[[str], Storage]) -> None:
        """`open_output` opens the output directory of an earlier load by its URL: the group may have changed it."""
        self._output = output
        self._log = log
        self._group = group
        self._open_output = open_output
        self._staging = f"{_STAGING}/{log.kind}"

    def repair(self) -> list[str]:
        """Publish what is committed, commit what is complete, remove what can no longer be committed.

        Gives the ids of the loads that were published. Does not disturb a load that is running.
        """
        finished: dict[str, None] = {}
        for _ in range(_MAX_ROUNDS):
            steps = repair_steps(self._log.newest(), self._staged())
            if not steps:
                return list(finished)
            for step in steps:
                if self._take(step):
                    finished[step.load_id] = None
        raise LoadError(f"group '{self._group}': other loads commit faster than this repair can follow; try again")

    def stage(self, record: LoadRecord) -> str:
        """Write the intent; gives the directory, relative to the output, for the data.

        Raises LoadTooLarge, before anything is written, when the load could not be committed.
        """
        self._log.check(record)
        self._output.create(f"{self._staging}/{record.load_id}/intent.json", intent_of(record))
        return self._data(record.load_id)

    def seal(self, record: LoadRecord) -> None:
        """Write the manifest: the data is complete. From now on the load will be committed, here or by a repair.

        On an error nothing is left behind, unless the manifest exists: then a repair may be committing the load.
        """
        manifest = f"{self._data(record.load_id)}/{MANIFEST}"
        try:
            self._output.create(manifest, record.to_bytes())
        except OSError:
            if not self._output.exists(manifest):
                self.discard(record.load_id)
            raise

    def commit(self, record: LoadRecord) -> None:
        """Commit a sealed load and publish it.

        Raises OffsetConflict when another load was first, or LoadTooLarge; then nothing is left behind.
        """
        try:
            self._log.append(record)
        except (OffsetConflict, LoadTooLarge):
            self.discard(record.load_id)
            raise
        self.repair()

    def discard(self, load_id: str) -> None:
        """Remove an attempt that is not committed."""
        self._output.remove(f"{self._staging}/{load_id}")

    def is_overtaken(self, record: LoadRecord) -> bool:
        """Whether another load has taken this one's number, so that it can no longer be committed."""
        newest = self._log.newest()
        return newest.sequence >= record.id.sequence and newest.load_id != record.load_id

    def _staged(self) -> list[Staged]:
        attempts = ((name, LoadId.parse(name)) for name in self._output.names(self._staging))
        return [
            Staged(name, load_id.sequence, self._is_complete(name))
            for name, load_id in attempts
            if load_id is not None and load_id.group == self._group
        ]

    def _is_complete(self, load_id: str) -> bool:
        """Whether it is sealed and every file has its size."""
        sizes = self._output.tree_sizes(self._data(load_id))
        if MANIFEST not in sizes:
            return False
        try:
            record = self._sealed(load_id)
        except FileNotFoundError:
            return False  # another process has just published or discarded it
        return all(sizes.get(file.name) == file.size for file in record.files)

    def _take(self, step: Step) -> bool:
        """Carry out one step; True when it published a load."""
        if step.act is Act.PUBLISH or self._is_unpublished(step):
            self._publish(step.load_id)
            return True
        if step.act is Act.COMMIT:
            try:
                self._log.append(self._sealed(step.load_id))
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
        return any(record.load_id == step.load_id for record in standing(self._log.records()))

    def _publish(self, load_id: str) -> None:
        record = self._log.record(_sequence(load_id))
        if record is None:
            raise LoadError(f"load {load_id} is no longer in the commit log of group '{self._group}'")
        if record.rewind is not None:
            self._undo_outputs(record, record.rewind)
            self._log.mark_published(record)
            return
        output = self._reach(record.output)
        target = published_directory(load_id)
        try:
            output.rename(self._data(load_id), target)
        except (FileNotFoundError, FileExistsError) as error:
            if not output.exists(f"{target}/{MANIFEST}"):  # otherwise another repair has renamed it
                raise LoadError(
                    f"load {load_id} is committed, but its data is neither in {output.url_of(self._data(load_id))} nor "
                    f"in {output.url_of(target)}: run this where that directory can be reached, or restore it"
                ) from error
        self._log.mark_published(record)
        output.remove(f"{self._staging}/{load_id}")

    def _undo_outputs(self, record: LoadRecord, rewind: Rewind) -> None:
        """Move the directories of the undone loads aside, or delete them. Directories that are gone are skipped.

        Leaves the rewind's record beside them, for the time when the commit log has forgotten it. May be called again,
        and by two processes at once.
        """
        with contextlib.suppress(FileExistsError):
            self._reach(record.output).create(manifest_of(record.load_id), record.to_bytes())
        for undone in reversed(rewind.undone):
            output, source = self._reach(undone.output), published_directory(undone.load_id)
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
                self._reach(undone.output).remove(aside_of(record.load_id, undone.load_id))

    def _reach(self, url: str) -> Storage:
        return self._output if url == self._output.url else self._open_output(url)

    def _sealed(self, load_id: str) -> LoadRecord:
        path = f"{self._data(load_id)}/{MANIFEST}"
        return LoadRecord.from_bytes(self._output.read(path), self._output.url_of(path))

    def _data(self, load_id: str) -> str:
        return f"{self._staging}/{load_id}/data"


def _sequence(load_id: str) -> int:
    parsed = LoadId.parse(load_id)
    if parsed is None:
        raise LoadError(f"'{load_id}' is no load id")
    return parsed.sequence
