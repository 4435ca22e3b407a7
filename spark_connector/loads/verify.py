"""Recount every committed load: what the commit log says, what lies in the files, and what the Kafka log has.

Called by the console (`pykafka loads verify`, `pykafka load --verify`) and from Python; changes nothing and needs no
Spark: offsets are all that is read, of the files and of the log. Memory: the offsets of one load, 8 bytes a row.

Found and named: files that are missing, damaged, too many or of another size; rows missing, doubled or not in the log;
a manifest that disagrees with the commit log; loads that overlap or leave out records; directories that readers see
and no load has made. What the log no longer has, or a compacted topic has dropped since, cannot be held against a load
and is said to be unverifiable. Raises ConfigError, LoadError and the client's errors when it cannot be found out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.commit import MANIFEST
from spark_connector.loads.file_rows import Offsets, UnreadableFile, read_offsets
from spark_connector.loads.history import FILE_FORMATS, HistoryEntry, LoadState, Outputs, read_history
from spark_connector.loads.log_rows import LogRows
from spark_connector.loads.planner import LoadSite, open_site
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord
from spark_connector.loads.recount import PartitionCount, recount
from spark_connector.loads.request import Target

__all__ = ["LoadCheck", "Verification", "verify"]

_READERS = 4  # files at once


@dataclass(frozen=True)
class LoadCheck:
    """One load: what was counted, and what does not add up. `notes` say what could not be checked."""

    load_id: str
    partitions: tuple[PartitionCount, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`ok`, `mismatch`, or `unverifiable`: nothing of it could be held against the log."""
        if self.problems:
            return "mismatch"
        counted = [count for count in self.partitions if count.end > count.start]
        if any(count.log_rows is not None for count in counted) or not (counted or self.notes):
            return "ok"
        return "unverifiable"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True)
class Verification:
    """All loads, in order of number; `problems` are those of no load alone."""

    loads: tuple[LoadCheck, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems and all(load.verdict != "mismatch" for load in self.loads)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "problems": list(self.problems), "loads": [load.to_json() for load in self.loads]}


def verify(
    target: Target,
    bootstrap_servers: str,
    *,
    only: Collection[str] = (),
    options: Mapping[str, str] | None = None,
) -> Verification:
    """Recount all loads that stand, or those named by `only`. `options`: of the reader, as the loads had them."""
    with open_site(target.check()) as site, LogRows(bootstrap_servers, options or {}) as log:
        entries = read_history(target, site)
        loads = [entry for entry in entries if entry.state.is_committed]
        unknown = set(only) - {entry.record.load_id for entry in loads}
        if unknown:
            raise ConfigError(f"there is no committed load '{min(unknown)}'")
        outputs = Outputs(target, site.output)
        chosen = [entry for entry in loads if not only or entry.record.load_id in only]
        checks = tuple(_check_load(entry, outputs, log) for entry in chosen)
        problems = () if only else (*_strangers(site, entries), *_joints(loads, log), *_standing_offsets(loads, site))
        return Verification(checks, problems)


def _check_load(entry: HistoryEntry, outputs: Outputs, log: LogRows) -> LoadCheck:
    record = entry.record
    if not record.format:
        return LoadCheck(record.load_id, (), ("its manifest is missing, and the commit log has forgotten it",), ())
    if record.format not in FILE_FORMATS:
        return LoadCheck(record.load_id, (), (), (f"what is in format '{record.format}' cannot be recounted",))
    if entry.directory is None:
        return LoadCheck(record.load_id, (), (f"its directory, {record.output}/load={record.load_id}, is gone",), ())
    output = outputs.at(record.output)
    directory = entry.directory.removeprefix(output.url + "/")
    problems, notes = [], []
    if entry.state is LoadState.HIDDEN:
        notes.append("it is committed, but not visible yet; the next load or a recovery shows it")
    sizes = output.tree_sizes(directory).items()
    files = {name: size for name, size in sizes if not name.rpartition("/")[2].startswith(("_", "."))}
    problems += _check_manifest(record, output.url_of(f"{directory}/{MANIFEST}"), entry, files)
    held, unreadable = _held(outputs, record, directory, files)
    problems += unreadable
    problems += [f"{tp}: {len(held[tp]):,} rows, but the load has no such range" for tp in _surplus(record, held)]
    counts = []
    for range in record.ranges:
        count = recount(range, held.get(range.tp, np.empty(0, np.int64)), log, record.topic_ids.get(range.topic))
        counts.append(count)
        problems += count.problems()
        notes += count.notes()
    return LoadCheck(record.load_id, tuple(counts), tuple(problems), tuple(notes))


def _held(
    outputs: Outputs, record: LoadRecord, directory: str, files: Iterable[str]
) -> tuple[dict[TopicPartition, Offsets], list[str]]:
    """The sorted offsets of every partition that the files hold, and what is wrong with files."""
    output = outputs.at(record.output)
    held: dict[TopicPartition, list[Offsets]] = {}
    problems = []

    def read(name: str) -> dict[TopicPartition, list[Offsets]] | UnreadableFile:
        try:
            return read_offsets(output, directory, name, record.format)
        except UnreadableFile as error:
            return error

    with ThreadPoolExecutor(_READERS) as pool:
        for found in pool.map(read, sorted(files)):
            if isinstance(found, UnreadableFile):
                problems.append(str(found))
                continue
            for tp, arrays in found.items():
                held.setdefault(tp, []).extend(arrays)
    return {tp: np.sort(np.concatenate(arrays)) for tp, arrays in held.items()}, problems


def _check_manifest(record: LoadRecord, where: str, entry: HistoryEntry, files: Mapping[str, int]) -> list[str]:
    """The manifest against the commit log, and the directory against the manifest."""
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


def _surplus(record: LoadRecord, held: Mapping[TopicPartition, Offsets]) -> list[TopicPartition]:
    return sorted(held.keys() - {range.tp for range in record.ranges})


def _strangers(site: LoadSite, entries: Sequence[HistoryEntry]) -> list[str]:
    """What readers of the directory see besides loads. Loads of other groups may share it."""
    problems = []
    unknown = {f"load={entry.record.load_id}" for entry in entries if entry.state is LoadState.UNKNOWN}
    for name in site.output.names(""):
        if name.startswith(("_", ".")):
            continue
        is_load = name.startswith("load=") and LoadId.parse(name.removeprefix("load=")) is not None
        if not is_load or name in unknown:
            problems.append(f"{site.output.url_of(name)} is visible to readers, but no load of this group")
    return problems


def _joints(loads: Sequence[HistoryEntry], log: LogRows) -> list[str]:
    """Where one load ends the next should begin: what they both have is doubled, what lies between was never loaded."""
    problems = []
    ends: dict[tuple[TopicPartition, str | None], tuple[int, str]] = {}
    for entry in loads:
        for range in entry.record.ranges:
            topic_id = entry.record.topic_ids.get(range.topic)
            of_topic = range.tp, topic_id
            if entry.record.rerun_of is not None and range.stored is not None:
                continue  # loaded again for another directory
            end, before = ends.get(of_topic) or ends.get((range.tp, None)) or (range.start, "")
            if range.start < end:
                both = f"{before} and {entry.record.load_id}"
                problems.append(f"{range.tp}: offsets {range.start} to {end - 1} are in {both}")
            stretch = log.extent(range.tp, topic_id).overlap(end, range.start)
            skipped = sum(len(part) for part in log.offsets(range.tp, *stretch))
            if skipped and range.start > end:
                problems.append(
                    f"{range.tp}: {skipped:,} records of offsets {end} to {range.start - 1}, between {before} and "
                    f"{entry.record.load_id}, were never loaded"
                )
            ends[of_topic] = max(end, range.end), entry.record.load_id
    return problems


def _standing_offsets(loads: Sequence[HistoryEntry], site: LoadSite) -> list[str]:
    """A group that stands before the end of its last load would load records a second time."""
    stored = site.log.offsets()
    ends: dict[TopicPartition, int] = {}
    for entry in loads:
        if entry.record.rerun_of is None:
            ends.update({range.tp: range.end for range in entry.record.ranges})
    return [
        f"{tp}: loaded up to offset {end}, but the group stands at {stored.get(tp, 'none')}: the next load doubles rows"
        for tp, end in sorted(ends.items())
        if stored.get(tp, -1) < end
    ]
