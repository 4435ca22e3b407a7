"""How a load's data and offsets become visible together: stage, seal, commit, publish, and repair after a crash.

    <output>/_staging/<kind>/<load id>/intent.json           1. what will be loaded
    <output>/_staging/<kind>/<load id>/data/part-…           2. Spark writes
    <output>/_staging/<kind>/<load id>/data/_manifest.json   3. sealed: all rows are there, counted
    the commit log (loads/log.py)                             4. committed: offsets and load, in one atomic act
    <output>/load=<load id>/                                 5. published: the data directory renamed

Readers never see what is not committed: until step 5 everything lies under names that begin with `_`. What is committed
is never lost: a crash between 4 and 5 leaves a sealed directory, and whoever repairs next renames it. A directory name
of the form `key=value` is the only kind that Spark reads without being told to; the rename of a directory is atomic,
that of many files is not.

Called by load.py with storage and log handed in; knows neither Spark nor the broker. Two processes may run any of
this at once for one group: the commit log lets one of them win.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_connector.loads.log import LoadLog
from spark_connector.loads.owner import intent_of
from spark_connector.loads.record import LoadError, LoadId, LoadRecord, LoadTooLarge, published_directory
from spark_connector.loads.rewind import standing, undo_outputs
from spark_connector.loads.state import Act, Staged, Step, repair_steps
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.storage import Storage

__all__ = ["MANIFEST", "LoadCommitter", "published_directory"]

MANIFEST = "_manifest.json"
_STAGING = "_staging"
_MAX_ROUNDS = 100  # of repair; each round finishes at least one load that somebody started


class LoadCommitter:
    """Carries out the protocol for one group into one output directory."""

    def __init__(self, output: Storage, log: LoadLog, group: str, open_output: Callable[[str], Storage]) -> None:
        """`open_output` reaches the directory of an earlier load of the group, which may have been another one."""
        self._output = output
        self._log = log
        self._group = group
        self._open_output = open_output
        self._staging = f"{_STAGING}/{log.kind}"

    def repair(self) -> list[str]:
        """Finish what others began: publish what is committed, commit what is complete, remove what is void.

        Gives the ids of the loads that were brought to their end. Harmless beside a load that is running.
        """
        finished: dict[str, None] = {}
        for _ in range(_MAX_ROUNDS):
            steps = repair_steps(self._log.newest(), self._staged())
            if not steps:
                return list(finished)
            for step in steps:
                if self._take(step):
                    finished[step.load_id] = None
        raise LoadError(f"group '{self._group}': loads are committed faster than this one can look; try again")

    def stage(self, record: LoadRecord) -> str:
        """Write the intent; gives the directory, relative to the output, that the data must be written to.

        Raises LoadTooLarge, with nothing written, when the load could not be committed."""
        self._log.check(record)
        self._output.create(f"{self._staging}/{record.load_id}/intent.json", intent_of(record))
        return self._data(record.load_id)

    def seal(self, record: LoadRecord) -> None:
        """Say that the data is complete. From here on the load will be committed, by us or by a repair.

        When that fails, nothing is left, unless the manifest is there all the same: then another may be committing it.
        """
        manifest = f"{self._data(record.load_id)}/{MANIFEST}"
        try:
            self._output.create(manifest, record.to_bytes())
        except OSError:
            if not self._output.exists(manifest):
                self.discard(record.load_id)
            raise

    def commit(self, record: LoadRecord) -> None:
        """Commit a sealed load and publish it. Raises OffsetConflict, with nothing left, when another was first, and
        LoadTooLarge likewise."""
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
        """Sealed, with every file there in its size."""
        sizes = self._output.tree_sizes(self._data(load_id))
        if MANIFEST not in sizes:
            return False
        try:
            record = self._sealed(load_id)
        except FileNotFoundError:
            return False  # published or discarded by another in this moment
        return all(sizes.get(file.name) == file.size for file in record.files)

    def _take(self, step: Step) -> bool:
        """Carry out one step; True when it brought a load to its end."""
        if step.act is Act.PUBLISH or self._is_unpublished(step):
            self._publish(step.load_id)
            return True
        if step.act is Act.COMMIT:
            try:
                self._log.append(self._sealed(step.load_id))
            except FileNotFoundError:
                return False  # its owner was quicker
            except (OffsetConflict, LoadTooLarge):
                self.discard(step.load_id)  # the offsets have moved on without it, or no commit can hold it
            return False
        self.discard(step.load_id)
        return False

    def _is_unpublished(self, step: Step) -> bool:
        """Whether this attempt, though its number is not the newest, is what the log has under it: its owner was killed
        before the rename, and a stream of the same group has committed since."""
        if step.act is not Act.DISCARD or not self._is_complete(step.load_id):
            return False
        return any(record.load_id == step.load_id for record in standing(self._log.records()))

    def _publish(self, load_id: str) -> None:
        record = self._log.record(_sequence(load_id))
        if record is None:
            raise LoadError(f"load {load_id} has vanished from the commit log of group '{self._group}'")
        if record.rewind is not None:
            undo_outputs(record, record.rewind, self._reach)
            self._log.mark_published(record)
            return
        output = self._reach(record.output)
        target = published_directory(load_id)
        try:
            output.rename(self._data(load_id), target)
        except (FileNotFoundError, FileExistsError) as error:
            if not output.exists(f"{target}/{MANIFEST}"):  # else it was renamed before, or by another repair
                raise LoadError(
                    f"load {load_id} is committed, but its data is neither in {output.url_of(self._data(load_id))} nor "
                    f"in {output.url_of(target)}: run this where that directory can be reached, or restore it"
                ) from error
        self._log.mark_published(record)
        output.remove(f"{self._staging}/{load_id}")

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
