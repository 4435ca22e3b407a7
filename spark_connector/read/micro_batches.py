"""How a stream moves from one micro-batch to the next: offsets in, offsets out, no pyspark.

stream_reader.py hands Spark's calls to `MicroBatches`, which asks the offset_reader and decides. It keeps
nothing that a restart may lose: where the query began, and where partitions that came later begin, stands in
the END offset of the batch that begins with them (see offsets.py).

Departures from Spark's `KafkaMicroBatchStream`, all to lose nothing silently: what is gone is reported before
the batch is logged, not while it is planned; a topic that was deleted and created anew is recognised by its id
and read from its beginning; a start that moves (`latest`) is put on record at once, by an empty batch if
there is no data yet, where Spark writes it to a file of its own; so is what new options select.

What became of a stream's partitions since its last offset, and what was lost by it: pure, but for the log.

Called by micro_batches.py between the look at the brokers and the end of the next batch. With
`failOnDataLoss=true` the first loss raises DataLoss; else each is logged with numbers, and the sum per topic goes into
the stream's offset, where progress reports show it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker.client.cluster_metadata import UnknownTopic
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, report_data_loss
from spark_connector.options.range_limit import LATEST, Position, SpecificOffsets, format_partitions
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.subscription_options import read_selection
from spark_connector.read.offset_reader import Ends, OffsetReader
from spark_connector.read.planning import OffsetRange, limit_bytes, limit_offsets, stream_ranges
from spark_connector.read.stream_offset import Offsets, StreamOffset, plan_start

__all__ = ["BatchPlan", "Document", "Losses", "MicroBatches", "PartitionChanges", "compare"]

Document = dict[str, Any]
"""A stream offset as Spark keeps it: JSON objects all the way down."""


@dataclass(frozen=True)
class BatchPlan:
    """What a micro-batch reads, and the ids of the topics it was planned for."""

    ranges: list[OffsetRange]
    topic_ids: Mapping[str, str]

    @property
    def records(self) -> int:
        """As many at most: offsets may have none."""
        return sum(one.size for one in self.ranges)


class MicroBatches:
    """The driver's side of one running query. One thread; `close()` when the query ends."""

    def __init__(self, options: SourceOptions, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic = monotonic
        self._offsets = OffsetReader(options)
        self._initial: Document | None = None
        self._refused: ConfigError | ConnectorError | None = None
        self._ends: Ends | None = None
        self._freeze = False
        self._last_batch_at: float | None = None

    def close(self) -> None:
        """Hang up everywhere."""
        self._offsets.close()

    def initial(self) -> Document:
        """Where a new query starts; the same answer however often Spark asks this process.

        Spark also asks when a crash has left batch 0 undone, and then goes on with the start that batch has on record.
        Partitions may have come since that the options do not name, or that have nothing as young as they ask for: that
        is an error of a query that has no batch yet, so it is kept until the first one is asked for.
        """
        if self._initial is None:
            try:
                found = self._offsets.initial()
            except (ConfigError, ConnectorError) as error:
                found, self._refused = StreamOffset({}), error
            self._initial = replace(found, selects=self._options.selection.text).to_json()
        return self._initial

    def freeze(self) -> None:
        """Read up to what is there at the next look, and nothing that comes later (`availableNow`)."""
        self._freeze = True

    def latest_known(self) -> Document | None:
        """The ends at the last look, for progress reports."""
        return None if self._ends is None else StreamOffset(self._ends.offsets, self._ends.topic_ids).to_json()

    def next_end(
        self,
        start: Document,
        *,
        cap: int | None = None,
        byte_cap: int | None = None,
        at_least: int | None = None,
        finished: bool = True,
        tell_latest: bool = False,
    ) -> Document:
        """The end of the batch that begins at `start`: `start` itself when there is nothing (or too little) to do.

        `cap`: most offsets; `byte_cap`: most bytes, as far as they can be estimated; `at_least`: fewer offsets are left
        for later, up to `maxTriggerDelay`; `finished`: Spark is done with what lies before; `tell_latest`: the end of a
        limited batch says what there was.
        """
        begin = StreamOffset.from_json(start)
        first = start == self._initial
        if first and self._refused is not None:
            raise self._refused
        if finished and not first:
            self._offsets.committed.publish(begin.offsets)
        last_seen = {} if self._ends is None else self._ends.offsets
        if self._ends is None or not self._freeze:
            self._ends = self._offsets.ends(begin)
        ends = self._ends
        losses = Losses(fail=self._options.fail_on_data_loss)
        changes = compare(begin, ends)
        losses.report_changes(changes, begin.offsets, ends.offsets, last_seen)
        added = {
            **self._starts_of_new(begin, ends, changes, losses),
            **self._after_lost_heads(begin, ends, changes, losses),
        }
        if late := {tp: offset for tp, offset in added.items() if offset > ends.offsets[tp]}:
            ends = self._ends = replace(ends, offsets={**ends.offsets, **late})  # the start was asked after the end
        start_offsets = {tp: offset for tp, offset in {**begin.offsets, **added}.items() if tp in ends.offsets}
        end_offsets = dict(ends.offsets)
        if self._too_few(start_offsets, end_offsets, at_least):
            end_offsets = {tp: min(offset, end_offsets[tp]) for tp, offset in start_offsets.items()}
        else:
            end_offsets = self._limited(start_offsets, end_offsets, cap, byte_cap)
        selects = self._options.selection.text
        on_record = not first and begin.selects == selects
        if end_offsets == begin.offsets and not added and (on_record or not self._start_moves()):
            return start
        init = {tp: offset for tp, offset in begin.offsets.items() if tp in ends.offsets} if first else None
        latest = ends.offsets if tell_latest and end_offsets != ends.offsets else None
        skipped = losses.added_to(begin.skipped)
        return StreamOffset(end_offsets, ends.topic_ids, init, added, skipped, selects, latest).to_json()

    def plan(self, start: Document, end: Document) -> BatchPlan:
        """What a batch reads. That stands in the offsets alone, so that a replay after a crash reads the same; brokers
        are only asked for sizes, where `maxBytesPerPartition` cuts ranges by them."""
        if start == end:
            return BatchPlan([], {})
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        fail = self._options.fail_on_data_loss
        ranges = self._offsets.split(stream_ranges(plan_start(first, last), last.offsets, fail_on_data_loss=fail))
        return BatchPlan(ranges, last.topic_ids)

    def tasks(self, plan: BatchPlan) -> list[tuple[OffsetRange, ...]]:
        """The ranges of each task. Asks brokers for sizes, so that small ranges share one."""
        return self._offsets.tasks(plan.ranges)

    def fits_one_task(self, plan: BatchPlan) -> bool:
        """Whether the options let the driver read the batch: as one task, and not too much."""
        most = min(self._options.max_prefetched_records, self._options.max_records_per_partition or plan.records)
        return 0 < plan.records <= most and (self._options.min_partitions or 1) == 1

    def committed(self, end: Document) -> None:
        """Spark has finished all that lies before `end`."""
        self._offsets.committed.publish(StreamOffset.from_json(end).offsets)

    def _starts_of_new(
        self, begin: StreamOffset, ends: Ends, changes: PartitionChanges, losses: Losses
    ) -> dict[TopicPartition, int]:
        """Where partitions begin that `begin` does not know. New partitions of a topic it knows: at their beginning."""
        known = {tp.topic for tp in begin.offsets}
        grown = {tp for tp in changes.created if tp.topic in known}
        added = self._offsets.earliest(sorted(grown | changes.recreated))
        new_topics = self._offsets.starts_of_new_topics(changes.created - grown, changes.selected, ends.offsets)
        beginnings = {**added, **new_topics.earliest}
        for tp in sorted(changes.created):
            if beginnings.get(tp, 0):
                losses.report_late_start(tp, beginnings[tp])
        return {**added, **new_topics.starts}

    def _after_lost_heads(
        self, begin: StreamOffset, ends: Ends, changes: PartitionChanges, losses: Losses
    ) -> dict[TopicPartition, int]:
        """Where to go on in partitions whose next records are gone. Asked only where there is something to read."""
        backlog = [
            tp
            for tp, offset in begin.offsets.items()
            if offset < ends.offsets.get(tp, 0) and tp not in changes.recreated
        ]
        try:
            earliest = self._offsets.earliest(backlog)
        except UnknownTopic:
            return {}  # deleted this moment: the tasks, or the next look, will tell
        found = {}
        for tp in sorted(backlog):
            first = min(earliest[tp], ends.offsets[tp])
            if first > begin.offsets[tp]:
                losses.report_lost_head(tp, begin.offsets[tp], first)
                found[tp] = first
        return found

    def _limited(
        self, start: Offsets, end: Offsets, cap: int | None, byte_cap: int | None
    ) -> dict[TopicPartition, int]:
        """The end with both caps kept."""
        limited = dict(end) if cap is None else limit_offsets(cap, start, end)
        if byte_cap is None:
            return limited
        return limit_bytes(byte_cap, self._offsets.record_bytes.estimate(start, limited), start, limited)

    def _too_few(self, start: Offsets, end: Offsets, at_least: int | None) -> bool:
        """Whether to wait for more. A frozen stream never waits: nothing more would come."""
        if at_least is None or self._freeze:
            return False
        now = self._monotonic()
        due = self._last_batch_at is None or now - self._last_batch_at >= self._options.max_trigger_delay_ms / 1000
        if not due and sum(max(end[tp] - start[tp], 0) for tp in end) < at_least:
            return True
        self._last_batch_at = now
        return False

    def _start_moves(self) -> bool:
        """Whether a restart would resolve the start anew to something else."""
        starting = self._options.starting
        if isinstance(starting, SpecificOffsets):
            return LATEST in starting.offsets.values()
        return starting is not Position.EARLIEST


Partitions = frozenset[TopicPartition]


@dataclass(frozen=True)
class PartitionChanges:
    """`created`: new in the cluster; `selected`: new in the options; `shrunk`: they end before what was read."""

    gone: Partitions
    recreated: Partitions
    created: Partitions
    selected: Partitions
    shrunk: Partitions


def compare(begin: StreamOffset, ends: Ends) -> PartitionChanges:
    """What `ends` has that `begin` has not, and the other way round.

    A partition that the options of the run before would have read too must have been created since; any other was
    there, perhaps for years, and is new to the query only. Older checkpoints do not tell: there all are created.
    """
    before, now = begin.offsets, ends.offsets
    anew = {topic for topic, id_ in begin.topic_ids.items() if ends.topic_ids.get(topic, id_) != id_}
    new = {tp for tp in now if tp not in before and tp.topic not in anew}
    selection = read_selection(begin.selects) if new else None
    selected = {tp for tp in new if selection is not None and not selection.selects(tp)}
    return PartitionChanges(
        gone=frozenset(tp for tp in before if tp not in now and tp.topic not in anew),
        recreated=frozenset(tp for tp in now if tp.topic in anew),
        created=frozenset(new - selected),
        selected=frozenset(selected),
        shrunk=frozenset(tp for tp in now if tp.topic not in anew and now[tp] < before.get(tp, 0)),
    )


class Losses:
    """Offsets that a stream passes over, per topic."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._by_topic: Counter[str] = Counter()

    def added_to(self, skipped: Mapping[str, int]) -> dict[str, int]:
        """The sums with these losses."""
        return dict(Counter(skipped) + self._by_topic)

    def report(self, condition: str, reason: str, lost: Mapping[TopicPartition, int]) -> None:
        """Raise DataLoss, or log it and count the `lost` offsets of each partition."""
        numbers = ", ".join(f"{tp}: {count}" for tp, count in sorted(lost.items()) if count)
        skipped = f" Offsets skipped: {numbers}." if numbers and not self._fail else ""
        report_data_loss(condition, reason + skipped, fail=self._fail)
        for tp, count in lost.items():
            self._by_topic[tp.topic] += count

    def report_changes(self, changes: PartitionChanges, before: Offsets, now: Offsets, last_seen: Offsets) -> None:
        """What `changes` took away. Of a topic that is gone, only what `last_seen` had of it can be counted."""
        unread = {tp: max(last_seen.get(tp, 0) - offset, 0) for tp, offset in before.items()}
        if changes.gone:
            names = format_partitions(set(changes.gone))
            reason = f"Partitions {names} have been deleted, or the options do not select them any more."
            self.report("PARTITIONS_DELETED", reason, {tp: unread[tp] for tp in changes.gone})
        if changes.recreated:
            topics = {tp.topic for tp in changes.recreated}
            names = ", ".join(sorted(topics))
            reason = f"Topic {names} was deleted and created anew; the new one would be read from its beginning."
            self.report("TOPIC_RECREATED", reason, {tp: n for tp, n in unread.items() if tp.topic in topics})
        for tp in sorted(changes.shrunk):
            reason = (
                f"Partition {tp} offset was changed from {before[tp]} to {now[tp]}. This could either be a user error "
                "that the start offset is set too high and this is the first batch, or the topic was truncated."
            )
            self.report("PARTITION_OFFSET_CHANGED", reason, {})

    def report_late_start(self, tp: TopicPartition, offset: int) -> None:
        """A partition that was created since the last look has lost its beginning already."""
        reason = f"Added partition {tp} starts from {offset} instead of 0."
        self.report("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", reason, {tp: offset})

    def report_lost_head(self, tp: TopicPartition, start: int, earliest: int) -> None:
        """Records were deleted before they were read."""
        reason = (
            f"Could not read records in offset [{start}, {earliest}) for topic partition {tp} (topic '{tp.topic}', "
            f"partition {tp.partition}): {earliest} is the first offset there is."
        )
        self.report("COULD_NOT_READ_OFFSET_RANGE", reason, {tp: earliest - start})
