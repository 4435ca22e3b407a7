"""Which offsets a load covers: pure functions from what is stored and what the brokers hold to ranges.

Called by load.py. A partition goes on where the group's last load ended; one that the group has never loaded begins
where `starts` says. Records that are gone before they were loaded are data loss: an error under Spark's condition
names, or, with failOnDataLoss=false, a warning and a range that begins at what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import data_loss, report_data_loss
from spark_connector.loads.reached_epochs import ReachedEpochs
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.rewind import standing
from spark_connector.read.planning import limit_offsets

__all__ = ["Bounds", "plan_epochs", "plan_ranges", "plan_rerun", "refuse_other_topics"]

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Bounds:
    """What the brokers hold of the partitions asked for.

    `earliest`: first offset still there; `latest`: end of the log; `starts`: where new partitions begin (may name
    more); `ends`: where to stop, `latest` unless the user set an end; `recreated`: topics with another id than when
    the group loaded them last; `epochs`: those of the leaders under which logs reach up to `latest`; `cut`: partitions
    whose logs have lost records up to the stored offset, and where they part from what was loaded (-1: not known).
    """

    earliest: Offsets
    latest: Offsets
    starts: Offsets
    ends: Offsets
    recreated: Collection[str] = ()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    cut: Offsets = field(default_factory=dict)


def plan_ranges(
    stored: Offsets, bounds: Bounds, *, fail_on_data_loss: bool, max_records: int | None = None
) -> tuple[LoadRange, ...]:
    """The ranges with something to load, in order of partition; together at most `max_records` offsets.

    `stored` may hold partitions that the load is not about. Of a topic that was created anew every partition that is
    stored gets a range, an empty one where there is nothing to load, so that the commit forgets what was stored of the
    old one. Raises DataLoss.
    """
    starts = {tp: _start(tp, stored, bounds, fail=fail_on_data_loss) for tp in bounds.latest}
    ends = {tp: max(min(bounds.ends[tp], bounds.latest[tp]), starts[tp]) for tp in starts}
    if max_records is not None:
        ends = limit_offsets(max_records, starts, ends)
    if all(ends[tp] == starts[tp] for tp in starts):
        return ()
    outdated = {tp: starts.get(tp, 0) for tp in stored if tp.topic in bounds.recreated}
    return tuple(
        LoadRange(tp.topic, tp.partition, start, ends.get(tp, start), stored.get(tp))
        for tp, start in sorted({**starts, **outdated}.items())
        if tp in outdated or ends[tp] > start
    )


def plan_epochs(
    known: Mapping[TopicPartition, int], stored: Offsets, ranges: Iterable[LoadRange], bounds: Bounds
) -> ReachedEpochs | None:
    """The epochs under which logs have got to where the group stands after `ranges`; `known` are those of `stored`.

    Of what is loaded, that of the leader just asked. Where the group stays, the known one: it says more than a later
    one, which Kafka may go on with after a restart that has cost records.
    """
    moved = {range.tp: range.end for range in ranges}
    stands = {**stored, **moved}
    kept = {tp: epoch for tp, epoch in known.items() if tp not in moved}
    asked = {
        tp: epoch
        for tp, epoch in bounds.epochs.items()
        if tp not in kept and tp in stands and stands[tp] <= bounds.latest[tp]
    }
    return ReachedEpochs.of({**kept, **asked}, stands)


def plan_rerun(loads: Iterable[LoadRecord], stored: Offsets) -> tuple[LoadRange, ...]:
    """One range per partition over everything these consecutive loads have loaded, for a second output.

    `stored` is what the commit of the re-run must find in its own log (nothing, when that is a new one).
    """
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for load in standing(loads):
        if load.rerun_of is not None:
            continue  # covers what others have loaded before
        for range in load.ranges:
            starts.setdefault(range.tp, range.start)
            ends[range.tp] = range.end
    return tuple(LoadRange(tp.topic, tp.partition, starts[tp], ends[tp], stored.get(tp)) for tp in sorted(starts))


def refuse_other_topics(loads: Iterable[LoadRecord], current: Mapping[str, str]) -> None:
    """Raise DataLoss when one of the loads is of a topic that has another id now: its records are not to be had."""
    for load in loads:
        for topic in sorted({range.topic for range in load.ranges}):
            if topic in current and load.topic_ids.get(topic, current[topic]) != current[topic]:
                raise data_loss(
                    "PARTITION_OFFSET_CHANGED",
                    f"Topic '{topic}', which load {load.load_id} is of, has been deleted and created anew since.",
                )


def _start(tp: TopicPartition, stored: Offsets, bounds: Bounds, *, fail: bool) -> int:
    earliest, latest = bounds.earliest[tp], bounds.latest[tp]
    if tp not in stored:
        return min(max(bounds.starts.get(tp, earliest), earliest), latest)
    if tp.topic in bounds.recreated:
        report_data_loss(
            "PARTITION_OFFSET_CHANGED",
            f"Partition {tp} was loaded up to offset {stored[tp]} of a topic that has been deleted; the topic of that "
            "name now was created anew, and has not been loaded.",
            fail=fail,
        )
        return earliest
    if tp in bounds.cut:
        parts = f"was cut to {bounds.cut[tp]}" if bounds.cut[tp] >= 0 else "is another one"
        report_data_loss(
            "PARTITION_OFFSET_CHANGED",
            f"Partition {tp} was loaded up to offset {stored[tp]}, but its log {parts} since, by a leader that had not "
            f"got so far, and ends at {latest} now: what stands below {stored[tp]} there has not been loaded.",
            fail=fail,
        )
        return min(max(bounds.cut[tp], earliest), latest)
    if stored[tp] > latest:
        report_data_loss(
            "PARTITION_OFFSET_CHANGED",
            f"Partition {tp} was loaded up to offset {stored[tp]}, but ends at {latest}: the topic was created anew.",
            fail=fail,
        )
        return earliest
    if stored[tp] < earliest:
        report_data_loss(
            "COULD_NOT_READ_OFFSET_RANGE",
            f"Partition {tp} was loaded up to offset {stored[tp]}, but begins at {earliest} now: "
            f"{earliest - stored[tp]} offsets were deleted before they were loaded.",
            fail=fail,
        )
        return earliest
    return stored[tp]
