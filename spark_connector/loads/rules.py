"""The pure decisions of loads: which offsets a load covers, and what a repair does.

Ranges, for plan.py: a partition continues where the group's last load ended. A partition that the group has never
loaded begins at `starts`, which the first commit keeps, also where there is nothing to load yet; one that was added
since the group's last load begins at offset 0. Records that were deleted before they were loaded are data loss (L7): an
error with Spark's condition name or, with failOnDataLoss=false, a warning and a range that begins at the first record
that is left.

Steps of a repair, for files/directory.py (L4): it collects the facts that a crash can leave behind (the newest commit,
the staged attempts) and carries out the steps until none is left.

    newest commit, not yet published     → publish it: its data is complete, only the rename is missing
    attempt at a number that is taken    → discard it: it can never be committed
    attempt at the next number, complete → commit it: its owner would do this next
    attempt at the next number, partial  → leave it: its owner may be alive. It is discarded when the number is taken.

The steps rest on one invariant: attempts at number N+1 start only after number N is committed and published. So only
the newest commit can be unpublished, and only attempts at the next number can still succeed. (A stream that commits to
the same group does not wait for publishing. Therefore directory.py looks into the log before it discards.)
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from broker.client.partition_offsets import NO_EPOCH, Position
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import data_loss, report_data_loss
from spark_connector.loads.commit import Newest
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.rewind import standing
from spark_connector.offset_store.base import Offsets
from spark_connector.read.planning import limit_offsets


@dataclass(frozen=True)
class Bounds:
    """What the brokers have of the partitions.

    `earliest`: the first offset that is left. `latest`: the end of the log. `starts`: where new partitions begin (may
    name more partitions). `ends`: where to stop; `latest` unless the user set an end. `recreated`: topics whose id is
    not the one that the group loaded last. `epochs`: the leader epochs at `latest`. `cut`: partitions whose log was
    truncated below the stored offset → where it now differs from what was loaded (-1: not known). `begins`: the new
    partitions whose start is an offset that later loads shall go on from, whether there is something to load or not.
    `added`: new partitions that were not there at the group's last load, so all their records are to be loaded.
    """

    earliest: Offsets
    latest: Offsets
    starts: Offsets
    ends: Offsets
    recreated: Collection[str] = ()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    cut: Offsets = field(default_factory=dict)
    begins: Collection[TopicPartition] = ()
    added: Collection[TopicPartition] = ()


def plan_ranges(
    stored: Offsets, bounds: Bounds, *, fail_on_data_loss: bool, max_records: int | None = None
) -> tuple[LoadRange, ...]:
    """The ranges with something to load, in order of partition; together at most `max_records` offsets.

    `stored` may have partitions that are not part of the load. If there is something to load, two kinds of partitions
    get a range, even an empty one: of a topic that was deleted and created again those that are stored, so that the
    commit replaces the offsets of the old topic, and those that begin here (`Bounds.begins`), so that the next load
    finds out when their first records are gone. Raises DataLoss.
    """
    starts = plan_starts(stored, bounds, fail_on_data_loss=fail_on_data_loss)
    ends = {tp: max(min(bounds.ends[tp], bounds.latest[tp]), starts[tp]) for tp in starts}
    if max_records is not None:
        ends = limit_offsets(max_records, starts, ends)
    if all(ends[tp] == starts[tp] for tp in starts):
        return ()
    outdated = {tp: starts.get(tp, 0) for tp in stored if tp.topic in bounds.recreated}
    kept = {*outdated, *bounds.begins}
    return tuple(
        LoadRange(tp.topic, tp.partition, start, ends.get(tp, start), stored.get(tp))
        for tp, start in sorted({**starts, **outdated}.items())
        if tp in kept or ends[tp] > start
    )


def plan_starts(stored: Offsets, bounds: Bounds, *, fail_on_data_loss: bool) -> dict[TopicPartition, int]:
    """Where each partition goes on. Raises DataLoss."""
    return {tp: _start(tp, stored, bounds, fail=fail_on_data_loss) for tp in bounds.latest}


def plan_positions(
    known: Mapping[TopicPartition, Position], stored: Offsets, ranges: Iterable[LoadRange], bounds: Bounds
) -> dict[TopicPartition, Position]:
    """The group's positions after the load of `ranges`; `known` are those at `stored`.

    A partition that is loaded gets the epoch of its current leader. Any other partition keeps the known epoch, not the
    leader's: after a restart that lost records, Kafka may continue with a later epoch. Nothing can be cut off below
    offset 0, and a log without records may not tell where an epoch ended.
    """
    moved = {range.tp: range.end for range in ranges}
    stands = {**stored, **moved}
    kept = {tp: position for tp, position in known.items() if tp not in moved}
    asked = {
        tp: Position(stands[tp], epoch)
        for tp, epoch in bounds.epochs.items()
        if epoch > NO_EPOCH and tp in stands and 0 < stands[tp] <= bounds.latest[tp]
    }
    return {**asked, **kept}


def plan_rerun(loads: Iterable[LoadRecord], stored: Offsets) -> tuple[LoadRange, ...]:
    """One range per partition over everything that these consecutive loads have loaded, for a second output.

    `stored` are the offsets that the commit of the re-run must find in its own log (none in a new log).
    """
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for load in standing(loads):
        if load.rerun_of is not None:
            continue  # it covers what earlier loads have loaded
        for range in load.ranges:
            if starts.get(range.tp) == ends.get(range.tp):  # nothing of it so far
                starts[range.tp] = range.start
            ends[range.tp] = range.end
    return tuple(LoadRange(tp.topic, tp.partition, starts[tp], ends[tp], stored.get(tp)) for tp in sorted(starts))


def refuse_other_topics(loads: Iterable[LoadRecord], current: Mapping[str, str]) -> None:
    """Raise DataLoss when a topic of these loads has another id now: its records no longer exist."""
    for load in loads:
        for topic in sorted({range.topic for range in load.ranges}):
            if topic in current and load.topic_ids.get(topic, current[topic]) != current[topic]:
                raise data_loss(
                    "PARTITION_OFFSET_CHANGED",
                    f"Topic '{topic}', which load {load.load_id} has loaded, has been deleted and created again since.",
                )


def _start(tp: TopicPartition, stored: Offsets, bounds: Bounds, *, fail: bool) -> int:
    earliest, latest = bounds.earliest[tp], bounds.latest[tp]
    if tp not in stored:
        begin = bounds.starts.get(tp, earliest)
        if tp in bounds.added and earliest > 0:
            what = f"was added after the group's last load, but begins at {earliest} now: {_deleted(earliest)}"
            report_data_loss("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", f"Partition {tp} {what}", fail=fail)
        elif begin < earliest:
            text = f"Partition {tp} was to be loaded from offset {begin}, but begins at {earliest} now."
            report_data_loss("COULD_NOT_READ_OFFSET_RANGE", text, fail=fail)
        return min(max(begin, earliest), latest)
    lost = _lost(tp, stored[tp], bounds)
    if lost is None:
        return stored[tp]
    condition, what, left = lost
    report_data_loss(condition, f"Partition {tp} was loaded up to offset {stored[tp]}{what}", fail=fail)
    return left


def _lost(tp: TopicPartition, stored: int, bounds: Bounds) -> tuple[str, str, int] | None:
    """(Spark's condition, what was lost, the first offset that is left); None when nothing is lost."""
    earliest, latest = bounds.earliest[tp], bounds.latest[tp]
    if tp.topic in bounds.recreated:
        what = " of a topic that has been deleted and created again; the new topic has not been loaded."
        return "PARTITION_OFFSET_CHANGED", what, earliest
    if tp in bounds.cut:
        how = f"was truncated to {bounds.cut[tp]}" if bounds.cut[tp] >= 0 else "is another one"
        what = (
            f", but its log {how} since, by a leader that did not have all records, and ends at {latest} now: the new "
            f"records below {stored} have not been loaded."
        )
        return "PARTITION_OFFSET_CHANGED", what, min(max(bounds.cut[tp], earliest), latest)
    if stored > latest:
        what = f", but ends at {latest}: the topic was created again or truncated."
        return "PARTITION_OFFSET_CHANGED", what, earliest
    if stored < earliest:
        what = f", but begins at {earliest} now: {_deleted(earliest - stored)}"
        return "COULD_NOT_READ_OFFSET_RANGE", what, earliest
    return None


def _deleted(count: int) -> str:
    return f"{count} offsets were deleted before they were loaded."


class Act(enum.Enum):
    """A step of a repair."""

    PUBLISH = "publish"
    COMMIT = "commit"
    DISCARD = "discard"


@dataclass(frozen=True)
class Step:
    act: Act
    load_id: str


@dataclass(frozen=True)
class StagedLoad:
    """A directory in the staging area. `complete`: its manifest and all its files are written."""

    load_id: str
    sequence: int
    complete: bool


def repair_steps(newest: Newest, staged: Collection[StagedLoad]) -> list[Step]:
    """The steps to take now, in order; empty when nothing is left to do. After a COMMIT, collect the facts again."""
    if newest.load_id is not None and not newest.published:
        return [Step(Act.PUBLISH, newest.load_id)]
    in_order = sorted(staged, key=lambda attempt: (attempt.sequence, attempt.load_id))
    steps = [Step(Act.DISCARD, attempt.load_id) for attempt in in_order if attempt.sequence <= newest.sequence]
    ready = [a for a in in_order if a.complete and a.sequence == newest.sequence + 1]
    if ready:
        steps.append(Step(Act.COMMIT, ready[0].load_id))
    return steps
