"""Recount every committed load: the commit log, the rows in the destination, and Kafka's log must agree.

Reads only offsets, of rows and of Kafka's log, and changes nothing. Memory: 8 bytes for every row of one load, or of
the loads of a table that one query reads (table.py).

Problems are: missing rows, rows that are there twice or not in the log; loads that overlap or leave out records; rows
in a table of a load that does not stand; files that are missing, damaged, of another size or not of the load; a
manifest that disagrees with the commit log; visible directories that no load has made; loads from another cluster.
The log may have lost the beginning of a range (retention), its end (the topic was created again) or, when it is
compacted, any record. So a row is missing only if the log still has its record, and a row is too many only if the log
is not compacted. Each load, and the whole, has one of three verdicts (broker/verdict.py): what could not be compared,
because the log has lost the records, a table lacks the columns that identify a row, or a file cannot be reached, is
`unread`, and such a load is `unknown`, never `ok`. Raises ConfigError, LoadError and the client's errors when nothing
can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.verdict import Verdict
from spark_connector.loads.audit.kafka_log import KafkaLog
from spark_connector.loads.audit.verify_keys import count_keys
from spark_connector.loads.dead_letters import DeadLetters
from spark_connector.loads.destination import HeldRows, LoadedDestination, NewSession, Offsets
from spark_connector.loads.grammar import POSITION
from spark_connector.loads.history import HistoryEntry
from spark_connector.loads.record import LoadRange, LoadRecord

_NOT_KEPT = (
    "its record does not say with which options it was read, so all committed records are counted: give its options "
    "(kafka.isolation.level=read_uncommitted, filter…, mode=DROPMALFORMED with its format) by --option"
)
_EXAMPLES = 3
_NONE = np.empty(0, np.int64)

OnLoad = Callable[[int, int], object]
"""Is called with the number of loads that are checked, and of all that will be."""


@dataclass(frozen=True)
class PartitionCount:
    """The counts of one range.

    `rows`: rows by the commit log. `file_rows`: rows in the files or the table. `log_rows`: rows in Kafka's log, None
    when nothing of the range is left there. `missing`: rows of the log that the files lack. `extra`: rows that the log
    lacks. `doubled`: rows beyond the first of an offset. `outside`: rows beyond the range. `gone`: offsets that the log
    has lost. `compacted`: like `extra`, in a compacted topic. `low`, `high`: the lowest and highest offset. `bad`: dead
    letters by the commit log, None in a load without a table of them; `bad_rows`: those in the table, which count like
    rows: each record of the log must be one of the two.
    """

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    file_rows: int
    log_rows: int | None
    low: int | None
    high: int | None
    missing: int
    extra: int
    doubled: int
    outside: int
    gone: int
    compacted: int
    examples: tuple[int, ...] = ()
    bad: int | None = None
    bad_rows: int = 0

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def problems(self, place: str) -> list[str]:
        """What does not add up. `place` is where the rows are, in words."""
        such_as = f", such as offset {', '.join(map(str, self.examples))}" if self.examples else ""
        unequal = self.rows != self.file_rows
        lost = self.bad is not None and self.bad != self.bad_rows
        return self._told(
            (lost, f"{self.bad or 0:,} dead letters were committed, {self.bad_rows:,} are in their table"),
            (unequal, f"{self.rows:,} rows were committed, {self.file_rows:,} are in {place}"),
            (self.doubled, f"{self.doubled:,} rows are there more than once{such_as}"),
            (self.outside, f"{self.outside:,} rows lie outside the range {self.start} to {self.end - 1}"),
            (self.missing, f"{self.missing:,} records of the log are not in {place}{such_as}"),
            (self.extra, f"{self.extra:,} rows are not in the log{such_as}"),
        )

    def unread(self) -> list[str]:
        """What could not be compared."""
        return self._told(
            (self.gone, f"{self.gone:,} of {self.end - self.start:,} offsets are no longer in the log"),
            (self.compacted, f"{self.compacted:,} rows were compacted away in the log, or never were in it"),
        )

    def _told(self, *texts: tuple[int, str]) -> list[str]:
        return [f"{self.tp}: {text}" for count, text in texts if count]


class Totals(NamedTuple):
    """Sums over the partitions of a load: rows by the commit log, found, dead letters found, and records in Kafka's
    log; offsets gone from it."""

    partitions: int
    committed: int
    found: int
    bad: int
    logged: int
    gone: int


@dataclass(frozen=True)
class LoadCheck:
    """The result for one load. `problems` do not add up, `unread` could not be compared, `notes` are good to know.

    `whole` are the totals where rows cannot be told apart, and so are counted for the load as a whole.
    """

    load_id: str
    partitions: tuple[PartitionCount, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    whole: Totals | None = None
    unread: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return Verdict.of(self.problems, self.unread)

    @property
    def totals(self) -> Totals:
        if self.whole is not None:
            return self.whole
        sums = [(one.rows, one.file_rows, one.bad_rows, one.log_rows or 0, one.gone) for one in self.partitions]
        return Totals(len(sums), *map(sum, zip(*sums, strict=True))) if sums else Totals(0, 0, 0, 0, 0, 0)

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self), "whole": self.whole._asdict() if self.whole else None}


@dataclass(frozen=True)
class Verification:
    """The result for all loads, in order of number. `problems`, `unread` and `notes` belong to no single load."""

    loads: tuple[LoadCheck, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        own = Verdict.of(self.problems, self.unread)
        return Verdict.of_all([own, *(load.verdict for load in self.loads)])

    @property
    def ok(self) -> bool:
        """Whether everything was compared, and agrees."""
        return self.verdict is Verdict.OK

    def to_json(self) -> dict[str, Any]:
        texts = {name: list(getattr(self, name)) for name in ("problems", "unread", "notes")}
        return {"verdict": self.verdict, "ok": self.ok, **texts, "loads": [load.to_json() for load in self.loads]}


class Said(NamedTuple):
    """What a part of the audit says. The lists are filled as it goes on."""

    problems: list[str]
    unread: list[str]
    notes: list[str]

    @classmethod
    def nothing(cls) -> Said:
        return cls([], [], [])

    def add(self, problems: Iterable[str] = (), unread: Iterable[str] = (), notes: Iterable[str] = ()) -> None:
        for texts, more in zip(self, (problems, unread, notes), strict=True):
            texts.extend(more)


def verify_loads(
    destination: LoadedDestination,
    bootstrap_servers: str,
    *,
    only: Collection[str],
    options: Mapping[str, str],
    session: NewSession,
    on_load: OnLoad,
    dead_letters: Callable[[Collection[str]], Sequence[DeadLetters]] = lambda names: (),
) -> Verification:
    """Recount the loads that stand, or those of the ids `only`. maintenance.py's `verify` describes the arguments.

    `dead_letters` opens the tables of these names.
    """
    with KafkaLog(bootstrap_servers, options) as log:
        history = destination.history()
        loads = history.committed
        unknown = set(only) - {entry.record.load_id for entry in loads}
        if unknown:
            raise ConfigError(f"there is no committed load '{min(unknown)}'")
        chosen = [entry for entry in loads if not only or entry.record.load_id in only]
        said = Said.nothing()
        said.add(unread=_of_other_clusters(chosen, bootstrap_servers, log))
        tables = dead_letters(sorted({name for entry in loads for name in entry.record.dead_letters}))
        checks: list[LoadCheck] = []
        if any(entry.record.upsert for entry in chosen):
            letters = _bad_rows(loads, tables, session)
            _check_keys(destination, loads, only, log, said, letters)
            _check_letters(loads, letters, log, said)
        else:
            bad = _bad_rows(chosen, tables, session)
            on_load(0, len(chosen))
            for entry, held in destination.held(chosen, session):
                checks.append(_check_load(entry, held, bad.get(entry.record.load_id), destination.rows_are_in, log))
                on_load(len(checks), len(chosen))
            if not only:
                said.add(*destination.unknown_loads(history))
        if not only:
            for table in tables:
                strays, notes = table.strays(history)
                said.add(strays, (), notes)
            _check_joints(loads, log, said)
            said.add(_standing_offsets(loads, destination))
            if forgotten := history.describe_forgotten():
                said.add(unread=[forgotten])
        return Verification(tuple(checks), tuple(said.problems), tuple(said.notes), tuple(said.unread))


def _check_keys(
    destination: LoadedDestination,
    loads: Sequence[HistoryEntry],
    only: Collection[str],
    log: KafkaLog,
    said: Said,
    letters: Mapping[str, HeldRows],
) -> None:
    """Of a table with one row per key: no load has rows of its own to count, so all of them are checked together."""
    if only:
        raise ConfigError(
            "a table with one row per key is verified as a whole, because later loads replace rows of earlier ones: "
            "leave out only (--load)"
        )
    offsets = {load_id: held.offsets for load_id, held in letters.items() if held.offsets}
    counts = count_keys(destination, [entry.record for entry in loads], log, offsets)
    said.add(counts.problems, counts.unread, counts.notes)


def _check_letters(entries: Sequence[HistoryEntry], bad: Mapping[str, HeldRows], log: KafkaLog, said: Said) -> None:
    """About the dead letters of loads into a table with one row per key: each record of the log must be one that can be
    decoded, or a dead letter."""
    counted = 0
    for entry in entries:
        record, held = entry.record, bad.get(entry.record.load_id)
        if held is None or not (held.offsets is not None or record.bad_rows):
            continue
        whose = f"load {record.load_id}"
        if held.offsets is None:
            said.add(unread=_unread_letters(record, held, f"{whose}: "))
            continue
        decoded = replace(record, reading={**(record.reading or {}), "mode": "DROPMALFORMED"})
        for range in record.ranges:
            part = log.extent(range.tp, record).overlap(range.start, range.end)
            rows = np.concatenate([_NONE, *log.offsets(range.tp, *part, decoded)])
            letters = held.offsets.get(range.tp, _NONE)
            rows = rows[~np.isin(rows, letters)]  # can be decoded, but the table cannot hold it
            count = recount(replace(range, rows=len(rows)), rows, log, record, letters)
            problems = (f"{whose}: {text}" for text in count.problems("rows and dead letters"))
            said.add(problems, (f"{whose}: {text}" for text in count.unread()))
            counted += count.bad_rows
    if counted:
        said.add(notes=[f"{counted:,} dead letters are in their tables."])


def _unread_letters(record: LoadRecord, letters: HeldRows, whose: str = "") -> list[str]:
    why = [*letters.problems, *letters.unread, *letters.notes] or ["they were not looked for"]
    return [f"{whose}its {record.bad_rows or 0:,} dead letters were not compared: {text}" for text in why]


def _of_other_clusters(loads: Sequence[HistoryEntry], bootstrap_servers: str, log: KafkaLog) -> tuple[str, ...]:
    """Says that some loads are from other clusters and cannot be counted. Raises ConfigError when all are."""
    origins = [entry.record.origin for entry in loads]
    elsewhere = [origin for origin in origins if origin is not None and origin.differs_from(log.cluster_id)]
    if not elsewhere:
        return ()
    named = ", ".join(dict.fromkeys(map(str, elsewhere)))
    asked = f"{bootstrap_servers} is cluster {log.cluster_id}, which has nothing to count them by"
    if len(elsewhere) == len(origins):
        raise ConfigError(
            f"these loads are from {named}, and {asked}: give the servers of the first (--bootstrap-server)"
        )
    unread = f"{len(elsewhere):,} of {len(origins):,} loads were not checked: they are from {named}, and {asked}."
    return (f"{unread} Check each load against its own cluster: only (--load), the servers (--bootstrap-server)",)


def _bad_rows(
    entries: Sequence[HistoryEntry], tables: Iterable[DeadLetters], session: NewSession
) -> dict[str, HeldRows]:
    """Load id → its dead letters, of the loads that have a table of them."""
    found: dict[str, HeldRows] = {}
    for table in tables:
        chosen = [entry for entry in entries if table.name in entry.record.dead_letters]
        found.update((entry.record.load_id, held) for entry, held in table.held(chosen, session))
    return found


def _check_load(entry: HistoryEntry, held: HeldRows, letters: HeldRows | None, place: str, log: KafkaLog) -> LoadCheck:
    record = entry.record
    bad_rows = (letters.offsets if letters is not None else None) or {}
    untold = []
    if letters is not None and letters.offsets is None and record.bad_rows:
        untold = _unread_letters(record, letters)
    if held.offsets is None and (held.rows is None or untold):
        untold += held.unread or (() if held.problems else ("its rows were not compared",))
    if untold:
        return LoadCheck(record.load_id, (), held.problems, held.notes, unread=tuple(untold))
    if held.offsets is None:
        if held.rows is None:
            return LoadCheck(record.load_id, (), held.problems, held.notes)
        return _check_whole(record, held, held.rows, bad_rows, place, log)
    problems, unread, notes = list(held.problems), list(held.unread), list(held.notes)
    for name, offsets in (("rows", held.offsets), ("dead letters", bad_rows)):
        surplus = sorted(offsets.keys() - {range.tp for range in record.ranges})
        problems += [
            f"{tp}: {len(offsets[tp]):,} {name}, but the load has no range of this partition" for tp in surplus
        ]
    counts = []
    for range in record.ranges:
        rows = held.offsets.get(range.tp, _NONE)
        count = recount(range, rows, log, record, bad_rows.get(range.tp, _NONE))
        counts.append(count)
        problems += count.problems(place)
        unread += count.unread()
        if count.compacted:
            unread += log.untold(range.topic)
    if record.reading is None and any(count.missing or count.extra for count in counts):
        notes.append(_NOT_KEPT)
    for lost in log.truncations(record):
        up_to = lost.position.offset - 1
        unread.append(
            f"{lost.tp}: the log was truncated to {lost.end} since; its records up to {up_to} are not the loaded ones"
        )
    if record.origin is not None and record.origin.differs_from(log.cluster_id):
        notes.append(f"it was loaded from {record.origin}, which is not this cluster")
    return LoadCheck(record.load_id, tuple(counts), tuple(problems), tuple(notes), unread=tuple(unread))


def _check_whole(
    record: LoadRecord, held: HeldRows, rows: int, bad_rows: Mapping[TopicPartition, Offsets], place: str, log: KafkaLog
) -> LoadCheck:
    """Compare the number of a load's rows with its record and, as far as the log has its records, with the log. A
    missing row and a doubled one make the same number, so it is never ok."""
    bad = sum(map(len, bad_rows.values()))
    logged = gone = 0
    for range in record.ranges:
        low, high = log.extent(range.tp, record).overlap(range.start, range.end)
        logged += sum(len(part) for part in log.offsets(range.tp, low, high, record))
        gone += range.size - (high - low)
    problems = list(held.problems)
    if rows != record.rows:
        problems.append(f"{record.rows:,} rows were committed, {rows:,} are in {place}")
    if bad != (record.bad_rows or 0):
        problems.append(f"{record.bad_rows or 0:,} dead letters were committed, {bad:,} are in their table")
    if logged > rows + bad:
        problems.append(f"{logged - rows - bad:,} records of the log are not in {place}")
    unread = list(held.unread)
    if gone:
        unread.append(f"{gone:,} offsets of its records are no longer in the log")
    elif logged < rows + bad:
        text = f"{rows + bad - logged:,} rows are not in the log"
        compacted = [range.topic for range in record.ranges if log.is_compacted(range.topic)]
        if compacted:
            untold = itertools.chain.from_iterable(map(log.untold, dict.fromkeys(compacted)))
            unread += [f"{text}: they were compacted away there, or never were in it", *untold]
        else:
            problems.append(text)
    unread.append(
        f"its rows have no {', '.join(POSITION)}: only their number was compared, {rows + bad:,} with {logged:,} "
        "records in the log"
    )
    whole = Totals(len(record.ranges), record.rows, rows, bad, logged, gone)
    return LoadCheck(record.load_id, (), tuple(problems), held.notes, whole, tuple(unread))


def _check_joints(loads: Sequence[HistoryEntry], log: KafkaLog, said: Said) -> None:
    """What is wrong between loads: an overlap means rows that are there twice, a gap means records never loaded."""
    ends: dict[tuple[TopicPartition, str | None], tuple[int, str]] = {}
    for last, entry in zip([None, *loads], loads, strict=False):
        for range in entry.record.ranges:
            topic_id = entry.record.topic_ids.get(range.topic)
            of_topic = range.tp, topic_id
            if entry.record.rerun_of is not None and range.stored is not None:
                continue  # a re-run for another directory
            end, before = ends.get(of_topic) or ends.get((range.tp, None)) or (range.start, "")
            added = not before and last is not None and last.record.lacked(range.tp, topic_id, entry.record.pattern)
            if added and last is not None:
                end, before = 0, last.record.load_id
            both = f"{before} and {entry.record.load_id}"
            if range.start < end:
                said.add([f"{range.tp}: offsets {range.start} to {end - 1} are in {both}"])
            elif range.start > end:
                where = f"of offsets {end} to {range.start - 1}, between {both}"
                low, high = log.extent(range.tp, entry.record).overlap(end, range.start)
                skipped = sum(len(part) for part in log.offsets(range.tp, low, high, entry.record))
                if skipped and not added:  # the options may begin it later
                    said.add([f"{range.tp}: {skipped:,} records {where}, were never loaded"])
                if gone := range.start - end - (high - low):
                    said.add(unread=[f"{range.tp}: {gone:,} {where}, were never loaded, and are no longer in the log"])
            ends[of_topic] = max(end, range.end), entry.record.load_id


def _standing_offsets(loads: Sequence[HistoryEntry], destination: LoadedDestination) -> list[str]:
    """Problems of offsets that are below the end of the last load: the next load would load records again."""
    ends: dict[TopicPartition, int] = {}
    for entry in loads:
        if entry.record.rerun_of is None:
            ends.update({range.tp: range.end for range in entry.record.ranges})
    stored = destination.log.offsets(ends)
    return [
        f"{tp}: loaded up to offset {end}, but the group stands at {stored.get(tp, 'none')}: the next load doubles rows"
        for tp, end in sorted(ends.items())
        if stored.get(tp, -1) < end
    ]


def recount(
    range: LoadRange, rows: Offsets, log: KafkaLog, load: LoadRecord, bad_rows: Offsets = _NONE
) -> PartitionCount:
    """Compare the sorted offsets of a load's range, of its rows and of its dead letters together, with the log, read
    with the load's options.

    Raises the errors of reading the log.
    """
    tp = range.tp
    held = np.sort(np.concatenate([rows, bad_rows])) if len(bad_rows) else rows
    is_first = np.ones(len(held), bool)
    is_first[1:] = held[1:] != held[:-1]
    once = held[is_first]
    inside = once[(once >= range.start) & (once < range.end)]
    low, high = log.extent(tp, load).overlap(range.start, range.end)
    log_rows, missing, extra = 0, 0, 0
    examples = held[~is_first][:_EXAMPLES].tolist()
    for lacking, surplus, count in _differences(inside, log.offsets(tp, low, high, load), low, high):
        log_rows += count
        missing += len(lacking)
        extra += len(surplus)
        examples += [*lacking[:_EXAMPLES].tolist(), *surplus[:_EXAMPLES].tolist()]
    compacted = extra if extra and log.is_compacted(tp.topic) else 0
    return PartitionCount(
        topic=range.topic,
        partition=range.partition,
        start=range.start,
        end=range.end,
        rows=range.rows or 0,
        file_rows=len(rows),
        log_rows=log_rows if low < high else None,
        low=int(rows[0]) if len(rows) else None,
        high=int(rows[-1]) if len(rows) else None,
        missing=missing,
        extra=extra - compacted,
        doubled=len(held) - len(once),
        outside=len(once) - len(inside),
        gone=range.size - (high - low),
        compacted=compacted,
        examples=tuple(examples[:_EXAMPLES]),
        bad=range.bad,
        bad_rows=len(bad_rows),
    )


def _differences(
    held: Offsets, logged: Iterable[Offsets], low: int, high: int
) -> Iterator[tuple[Offsets, Offsets, int]]:
    """(offsets only in the log, offsets only held, rows of the log) for each part of the log in turn."""
    position = low
    for offsets in logged:
        after = int(offsets[-1]) + 1
        here = held[np.searchsorted(held, position) : np.searchsorted(held, after)]
        lacking = np.setdiff1d(offsets, here, assume_unique=True)
        yield lacking, np.setdiff1d(here, offsets, assume_unique=True), len(offsets)
        position = after
    rest = held[np.searchsorted(held, position) : np.searchsorted(held, high)]
    yield np.empty(0, np.int64), rest, 0
