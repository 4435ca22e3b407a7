"""Recount every committed load: what the commit log says, what the destination holds, and what the Kafka log has.

Called by the console (`pykafka loads verify`, `pykafka load --verify`) and from Python; changes nothing and needs no
Spark: offsets are all that is read, of rows and of the log. Memory: the offsets of one load, 8 bytes a row, and for
tables those of the loads that are read at once (loads/table_holdings.py).

Found and named: rows missing, doubled or not in the log; loads that overlap or leave out records; of files those that
are missing, damaged, too many or of another size, a manifest that disagrees with the commit log, and directories that
readers see and no load has made. What the log no longer has, or a compacted topic has dropped since, cannot be held
against a load and is said to be unverifiable; so are tables that do not have the columns any more by which rows are
known. Loads of another cluster than the one asked are a problem: nobody has checked them. Raises ConfigError, LoadError
and the client's errors when it cannot be found out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.destination import Destination
from spark_connector.loads.groups import refuse_unknown_group
from spark_connector.loads.history import HistoryEntry
from spark_connector.loads.holdings import Held
from spark_connector.loads.log_rows import LogRows
from spark_connector.loads.planner import open_destination
from spark_connector.loads.recount import PartitionCount, recount
from spark_connector.loads.request import Target

__all__ = ["LoadCheck", "Verification", "verify"]

_NOT_KEPT = (
    "it was made before loads kept with which options they read, so committed records are counted, all of them: give "
    "those it had (kafka.isolation.level=read_uncommitted, filter…, mode=DROPMALFORMED with its format) by --option"
)


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
    """All loads, in order of number; `problems` and `notes` are those of no load alone."""

    loads: tuple[LoadCheck, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems and all(load.verdict != "mismatch" for load in self.loads)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "loads": [load.to_json() for load in self.loads],
        }


def verify(
    target: Target,
    bootstrap_servers: str,
    *,
    only: Collection[str] = (),
    options: Mapping[str, str] | None = None,
) -> Verification:
    """Recount all loads that stand, or those named by `only`, each read as its record says that it was.

    `options`: of the reader (`kafka.*`, logins); what they say of which records count wins over the records."""
    with open_destination(target.check()) as site, LogRows(bootstrap_servers, options or {}) as log:
        refuse_unknown_group(site, target.group)
        history = site.history()
        loads = history.committed
        unknown = set(only) - {entry.record.load_id for entry in loads}
        if unknown:
            raise ConfigError(f"there is no committed load '{min(unknown)}'")
        holdings = site.holdings(history)
        chosen = [entry for entry in loads if not only or entry.record.load_id in only]
        elsewhere = _of_other_clusters(chosen, bootstrap_servers, log)
        checks = tuple(_check_load(entry, held, holdings.place, log) for entry, held in holdings.of(chosen))
        if only:
            return Verification(checks, elsewhere)
        problems = (*holdings.strangers(), *_joints(loads, log), *_standing_offsets(loads, site), *elsewhere)
        forgotten = history.describe_forgotten()
        return Verification(checks, problems, (forgotten,) if forgotten else ())


def _of_other_clusters(loads: Sequence[HistoryEntry], bootstrap_servers: str, log: LogRows) -> tuple[str, ...]:
    """How many of the loads cannot be counted here, for they are of other clusters; ConfigError when that is all."""
    origins = [entry.record.origin for entry in loads]
    elsewhere = [origin for origin in origins if origin is not None and origin.differs_from(log.cluster_id)]
    if not elsewhere:
        return ()
    named = ", ".join(dict.fromkeys(map(str, elsewhere)))
    asked = f"{bootstrap_servers} is cluster {log.cluster_id}, which has nothing to count them by"
    if len(elsewhere) == len(origins):
        raise ConfigError(
            f"these loads are from {named}, and {asked}: give the servers of the former (--bootstrap-server)"
        )
    problem = f"{len(elsewhere):,} of {len(origins):,} loads were not checked: they are from {named}, and {asked}."
    return (f"{problem} Check each load against its own cluster: only (--load), the servers (--bootstrap-server)",)


def _check_load(entry: HistoryEntry, held: Held, place: str, log: LogRows) -> LoadCheck:
    record = entry.record
    if held.offsets is None:
        return LoadCheck(record.load_id, (), held.problems, held.notes)
    surplus = sorted(held.offsets.keys() - {range.tp for range in record.ranges})
    problems, notes = list(held.problems), list(held.notes)
    problems += [f"{tp}: {len(held.offsets[tp]):,} rows, but the load has no such range" for tp in surplus]
    counts = []
    for range in record.ranges:
        rows = held.offsets.get(range.tp, np.empty(0, np.int64))
        count = recount(range, rows, log, record)
        counts.append(count)
        problems += count.problems(place)
        notes += count.notes()
    if record.reading is None and any(count.missing or count.extra for count in counts):
        notes.append(_NOT_KEPT)
    for lost in log.truncations(record):
        up_to = lost.position.offset - 1
        notes.append(
            f"{lost.tp}: the log was cut to {lost.end} since; what it has up to {up_to} now was not loaded here"
        )
    if record.origin is not None and record.origin.differs_from(log.cluster_id):
        notes.append(f"it was loaded from {record.origin}, which is not the one asked")
    return LoadCheck(record.load_id, tuple(counts), tuple(problems), tuple(notes))


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
            stretch = log.extent(range.tp, entry.record).overlap(end, range.start)
            skipped = sum(len(part) for part in log.offsets(range.tp, *stretch, entry.record))
            if skipped and range.start > end:
                problems.append(
                    f"{range.tp}: {skipped:,} records of offsets {end} to {range.start - 1}, between {before} and "
                    f"{entry.record.load_id}, were never loaded"
                )
            ends[of_topic] = max(end, range.end), entry.record.load_id
    return problems


def _standing_offsets(loads: Sequence[HistoryEntry], site: Destination) -> list[str]:
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
