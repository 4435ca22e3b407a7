"""The rows in the directories of loads, and the files compared with the manifest beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.destination import Held, NewSession
from spark_connector.loads.files.file_rows import read_offsets
from spark_connector.loads.files.history import Outputs
from spark_connector.loads.history import MANIFEST, History, HistoryEntry, LoadState
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord
from spark_connector.storage import Storage

__all__ = ["FileHoldings"]


class FileHoldings:
    """The rows of one group, whose loads may have gone to several directories. Memory: the offsets of one load."""

    place = "the files"

    def __init__(self, output: Storage, outputs: Outputs, history: History, session: NewSession) -> None:
        """`session` gives the Spark session that reads orc and json; it is not called for other formats."""
        self._output = output
        self._outputs = outputs
        self._history = history
        self._session = session

    def of(self, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, Held]]:
        for entry in entries:
            yield entry, self._held(entry)

    def strangers(self) -> list[str]:
        """Visible entries that are no load, or no load of the commit log. Other groups may share the directory."""
        problems = []
        states = ((entry.state, f"load={entry.record.load_id}") for entry in self._history.entries)
        unknown = {name for state, name in states if state is LoadState.UNKNOWN}
        for name in self._output.names(""):
            if name.startswith(("_", ".")):
                continue
            is_load = name.startswith("load=") and LoadId.parse(name.removeprefix("load=")) is not None
            if not is_load or name in unknown:
                problems.append(f"{self._output.url_of(name)} is visible to readers, but no load of this group")
        return problems

    def _held(self, entry: HistoryEntry) -> Held:
        record = entry.record
        if not record.format:
            return Held(None, ("its manifest is missing, and the commit log has forgotten it",))
        if entry.directory is None:
            return Held(None, (f"its directory, {record.output}/load={record.load_id}, is gone",))
        output = self._outputs.at(record.output)
        directory = entry.directory.removeprefix(output.url + "/")
        hidden = "it is committed, but not visible yet; the next load or a recovery makes it visible"
        sizes = output.tree_sizes(directory).items()
        files = {name: size for name, size in sizes if not name.rpartition("/")[2].startswith(("_", "."))}
        problems = _check_manifest(record, output.url_of(f"{directory}/{MANIFEST}"), entry, files)
        held, unreadable = read_offsets(output, directory, sorted(files), record.format, self._session)
        return Held(held, (*problems, *unreadable), (hidden,) if entry.state is LoadState.HIDDEN else ())


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
