"""How a stream advances from one micro-batch to the next: offsets in, offsets out, without pyspark.

readers.py passes Spark's calls to `MicroBatches`, which looks up offsets and decides. It keeps no state that a
restart may lose: where the query began, and where partitions that came later begin, is part of the END offset of the
batch that begins with them (stream_offset.py).

It differs from Spark's `KafkaMicroBatchStream` so that nothing is lost silently: data loss is reported before the batch
is logged, not while it is planned (S3); a topic that was deleted and recreated is recognised by its id and read from
its beginning (S5); a log that was truncated is recognised by its leader epoch and read from where it was cut; a start
that moves (`latest`) is recorded at once, with an empty batch if there is no data yet, where Spark writes it to a
separate file; and so are partitions that changed options select.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from broker.client.cluster_metadata import UnknownTopic
from broker.client.partition_offsets import NO_EPOCH
from broker.client.partition_offsets import Position as ReachedPosition
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, report_data_loss
from spark_connector.offset_store.base import Offsets
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.selection import LATEST, Position, SpecificOffsets, format_partitions, read_selection
from spark_connector.read.offset_readers import open_offset_reader
from spark_connector.read.planning import OffsetRange, limit_bytes, limit_offsets, stream_ranges
from spark_connector.read.stream_offset import Document, StreamOffset, batch_of, plan_start


@dataclass(frozen=True)
class BatchPlan:
    """What a micro-batch reads, and the ids of the topics it was planned for."""

    ranges: list[OffsetRange]
    topic_ids: Mapping[str, str]


class MicroBatches:
    """The driver's side of one running query. For one thread; call `close()` when the query ends."""

    def __init__(self, options: SourceOptions, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic = monotonic
        self._offsets = open_offset_reader(options)
        self._initial: Document | None = None
        self._refused: ConfigError | ConnectorError | None = None
        self._ends: StreamOffset | None = None
        self._freeze = False
        self._last_batch_at: float | None = None

    def close(self) -> None:
        self._offsets.close()

    def initial(self) -> Document:
        """Where a new query starts; the same answer however often Spark asks this process.

        Spark also asks when a crash has left batch 0 unfinished, and then uses the recorded start of that batch. By
        then partitions may exist that the options do not name, or that have no record at or after a timestamp option.
        That is an error only for a query without a batch, so it is raised when Spark asks for the first batch.
        """
        if self._initial is None:
            try:
                found = self._offsets.initial()
            except (ConfigError, ConnectorError) as error:
                found, self._refused = StreamOffset({}), error
            self._initial = replace(found, selects=self._options.selection.text).to_json()
        return self._initial

    def freeze(self) -> None:
        """Read up to the ends at the next lookup, and nothing that comes later (`availableNow`)."""
        self._freeze = True

    def latest_known(self) -> Document | None:
        """The ends at the last lookup, for progress reports."""
        return None if self._ends is None else self._ends.to_json()

    def next_end(
        self,
        start: Document,
        *,
        cap: int | None = None,
        byte_cap: int | None = None,
        at_least: int | None = None,
        finished: bool = True,
        add_latest: bool = False,
    ) -> Document:
        """The end of the batch that begins at `start`; `start` itself when there is nothing, or too little, to read.

        `cap`: most offsets. `byte_cap`: most bytes, estimated. `at_least`: wait for this many offsets, up to
        `maxTriggerDelay`. `finished`: Spark has finished everything before `start`. `add_latest`: if a limit ends the
        batch, record the ends of the partitions in `latest`.
        """
        begin = StreamOffset.from_json(start)
        first = start == self._initial
        if first and self._refused is not None:
            raise self._refused
        if finished and not first:
            self._offsets.committed.publish(begin.offsets, begin.topic_ids)
        last_seen = {} if self._ends is None else self._ends.offsets
        if self._ends is None or not self._freeze:
            self._ends = self._offsets.ends(begin)
        losses = Losses(fail=self._options.fail_on_data_loss, by_key=self._options.filters.by_key)
        moved = self._moved(begin, self._ends, last_seen, losses)
        ends = self._ends
        if late := {tp: offset for tp, offset in moved.items() if offset > ends.offsets[tp]}:
            # these starts were looked up after the ends
            ends = self._ends = replace(ends, offsets={**ends.offsets, **late})
        starts = {tp: offset for tp, offset in {**begin.offsets, **moved}.items() if tp in ends.offsets}
        offsets = self._limited(starts, ends.offsets, cap=cap, byte_cap=byte_cap, at_least=at_least)
        selects = self._options.selection.text
        on_record = not first and begin.selects == selects
        if offsets == begin.offsets and not moved and (on_record or not self._start_moves()):
            return start
        init = {tp: offset for tp, offset in begin.offsets.items() if tp in offsets} if first else None
        latest = ends.offsets if add_latest and offsets != ends.offsets else None
        skipped = losses.added_to(begin.skipped)
        return StreamOffset(offsets, ends.topic_ids, init, moved, skipped, selects, latest, ends.epochs).to_json()

    def plan(self, start: Document, end: Document) -> BatchPlan:
        """What a batch reads. The offsets alone determine it, so a replay after a crash reads the same records (S1).
        Brokers are asked only for sizes, and only if `maxBytesPerPartition` splits ranges."""
        if start == end:
            return BatchPlan([], {})
        first, last = batch_of(start, end)
        fail = self._options.fail_on_data_loss
        whole = stream_ranges(plan_start(first, last), last.offsets, fail_on_data_loss=fail)
        return BatchPlan(self._offsets.split(whole, last.topic_ids), last.topic_ids)

    def tasks(self, plan: BatchPlan) -> list[tuple[OffsetRange, ...]]:
        """The ranges of each task. Asks brokers for sizes, so that small ranges share a task."""
        return self._offsets.tasks(plan.ranges)

    def fits_one_task(self, plan: BatchPlan) -> bool:
        """Whether the options allow the driver to read the batch: it is one task, and small enough."""
        records = sum(one.size for one in plan.ranges)
        return self._options.fits_one_task(records, self._options.max_prefetched_records)

    def committed(self, end: Document) -> None:
        """Spark has finished everything before `end`."""
        reached = StreamOffset.from_json(end)
        self._offsets.committed.publish(reached.offsets, reached.topic_ids)

    def _moved(
        self, begin: StreamOffset, ends: StreamOffset, last_seen: Offsets, losses: Losses
    ) -> dict[TopicPartition, int]:
        """Where partitions are read that do not go on where the last batch ended: they are new, their logs were cut, or
        their next records are gone. Reports the losses."""
        changes = compare(begin, ends)
        cut = self._truncated(begin, ends, changes.recreated, losses)
        losses.report_changes(
            replace(changes, shrunk=changes.shrunk - cut.keys()), begin.offsets, ends.offsets, last_seen
        )
        new = self._starts_of_new(begin, ends, changes, losses)
        backlog = {
            tp: offset
            for tp, offset in {**begin.offsets, **cut}.items()
            if offset < ends.offsets.get(tp, 0) and tp not in changes.recreated
        }
        return {**cut, **new, **self._after_lost_heads(backlog, ends.offsets, losses)}

    def _starts_of_new(
        self, begin: StreamOffset, ends: StreamOffset, changes: PartitionChanges, losses: Losses
    ) -> dict[TopicPartition, int]:
        """Where partitions start that are not in `begin`. New partitions of a known topic start at their beginning."""
        known = {tp.topic for tp in begin.offsets}
        grown = {tp for tp in changes.created if tp.topic in known}
        added = self._offsets.earliest(sorted(grown | changes.recreated))
        starts, earliest = self._offsets.starts_of_new_topics(changes.created - grown, changes.selected, ends)
        beginnings = {**added, **earliest}
        for tp in sorted(changes.created):
            if beginnings.get(tp, 0):
                losses.report_late_start(tp, beginnings[tp])
        return {**added, **starts}

    def _truncated(
        self, begin: StreamOffset, ends: StreamOffset, recreated: Partitions, losses: Losses
    ) -> dict[TopicPartition, int]:
        """Where to continue in partitions whose logs were truncated below what was read (KIP-320).

        A log can be truncated only when its leader epoch grows, so usually no broker is asked.
        """
        doubtful = {
            tp: ReachedPosition(begin.offsets[tp], epoch)
            for tp, epoch in begin.epochs.items()
            if tp in begin.offsets and tp not in recreated and epoch < ends.epochs.get(tp, NO_EPOCH)
        }
        try:
            found = self._offsets.truncations(doubtful)
        except UnknownTopic:
            return {}  # deleted just now
        for tp in sorted(found):
            # others may have taken the offsets of the records that were read
            losses.report("PARTITION_OFFSET_CHANGED", f"{found[tp]}.", {})
        return {tp: truncation.end for tp, truncation in found.items() if truncation.end >= 0}

    def _after_lost_heads(self, backlog: Offsets, ends: Offsets, losses: Losses) -> dict[TopicPartition, int]:
        """Where to continue in partitions of the backlog (tp → its begin) whose next records are gone."""
        try:
            earliest = self._offsets.earliest(backlog)
        except UnknownTopic:
            return {}  # deleted just now: the tasks or the next lookup will report it
        lost = {tp: min(earliest[tp], ends[tp]) for tp, offset in backlog.items() if earliest[tp] > offset}
        for tp in sorted(lost):
            losses.report_lost_head(tp, backlog[tp], lost[tp])
        return lost

    def _limited(
        self, starts: Offsets, ends: Offsets, *, cap: int | None, byte_cap: int | None, at_least: int | None
    ) -> Offsets:
        """The ends up to the limits of the trigger; none above its start while there are too few offsets."""
        if self._too_few(starts, ends, at_least):
            return {tp: min(offset, ends[tp]) for tp, offset in starts.items()}
        if cap is not None:
            ends = limit_offsets(cap, starts, ends)
        if byte_cap is not None:
            ends = limit_bytes(byte_cap, self._offsets.sizes.estimate(starts, ends), starts, ends)
        return ends

    def _too_few(self, starts: Offsets, ends: Offsets, at_least: int | None) -> bool:
        """Whether to wait for more offsets. A frozen stream never waits, because it gets no more."""
        if at_least is None or self._freeze:
            return False
        now = self._monotonic()
        due = self._last_batch_at is None or now - self._last_batch_at >= self._options.max_trigger_delay_ms / 1000
        if not due and sum(max(end - starts[tp], 0) for tp, end in ends.items()) < at_least:
            return True
        self._last_batch_at = now
        return False

    def _start_moves(self) -> bool:
        """Whether the start would resolve to other offsets after a restart."""
        starting = self._options.starting
        if isinstance(starting, SpecificOffsets):
            return LATEST in starting.offsets.values()
        return starting is not Position.EARLIEST


Partitions = frozenset[TopicPartition]


@dataclass(frozen=True)
class PartitionChanges:
    """`created`: new in the cluster; `selected`: new in the options; `shrunk`: they end before the offset read last."""

    gone: Partitions
    recreated: Partitions
    created: Partitions
    selected: Partitions
    shrunk: Partitions


def compare(begin: StreamOffset, ends: StreamOffset) -> PartitionChanges:
    """The differences between the partitions of `begin` and of `ends`.

    A new partition that the previous options would also have selected was created since then. Any other new partition
    may be old, and the new options have selected it. Older checkpoints do not hold the options: there all new
    partitions count as created.
    """
    before, now = begin.offsets, ends.offsets
    recreated = {topic for topic, id_ in begin.topic_ids.items() if ends.topic_ids.get(topic, id_) != id_}
    new = {tp for tp in now if tp not in before and tp.topic not in recreated}
    selection = read_selection(begin.selects) if new else None
    selected = {tp for tp in new if selection is not None and not selection.selects(tp)}
    return PartitionChanges(
        gone=frozenset(tp for tp in before if tp not in now and tp.topic not in recreated),
        recreated=frozenset(tp for tp in now if tp.topic in recreated),
        created=frozenset(new - selected),
        selected=frozenset(selected),
        shrunk=frozenset(tp for tp in now if tp.topic not in recreated and now[tp] < before.get(tp, 0)),
    )


class Losses:
    """Counts the offsets that a stream skips, per topic.

    With `fail` (failOnDataLoss=true) the first loss raises DataLoss. Otherwise each loss is logged with numbers, and
    the sum per topic goes into the stream's offset, which progress reports show. `by_key`: only the partitions of some
    keys are read.
    """

    def __init__(self, *, fail: bool, by_key: bool = False) -> None:
        self._fail = fail
        self._by_key = by_key
        self._by_topic: Counter[str] = Counter()

    def added_to(self, skipped: Mapping[str, int]) -> dict[str, int]:
        """`skipped` with these losses added."""
        return dict(Counter(skipped) + self._by_topic)

    def report(self, condition: str, reason: str, lost: Mapping[TopicPartition, int]) -> None:
        """Raise DataLoss, or log a warning and count the `lost` offsets of each partition."""
        numbers = ", ".join(f"{tp}: {count}" for tp, count in sorted(lost.items()) if count)
        skipped = f" Offsets skipped: {numbers}." if numbers and not self._fail else ""
        report_data_loss(condition, reason + skipped, fail=self._fail)
        for tp, count in lost.items():
            self._by_topic[tp.topic] += count

    def report_changes(self, changes: PartitionChanges, before: Offsets, now: Offsets, last_seen: Offsets) -> None:
        """Report the losses in `changes`. For a deleted topic only offsets up to `last_seen` can be counted."""
        unread = {tp: max(last_seen.get(tp, 0) - offset, 0) for tp, offset in before.items()}
        if changes.gone:
            names = format_partitions(set(changes.gone))
            reason = f"Partitions {names} have been deleted, or the options do not select them any more."
            if self._by_key:
                reason += (
                    " If the topic has more partitions now, its keys are in other ones: leave out filterKeyPartitioner "
                    "to go on with all of them and lose nothing."
                )
            self.report("PARTITIONS_DELETED", reason, {tp: unread[tp] for tp in changes.gone})
        if changes.recreated:
            topics = {tp.topic for tp in changes.recreated}
            names = ", ".join(sorted(topics))
            reason = f"Topic {names} was deleted and recreated; the new one would be read from its beginning."
            self.report("TOPIC_RECREATED", reason, {tp: n for tp, n in unread.items() if tp.topic in topics})
        for tp in sorted(changes.shrunk):
            reason = (
                f"Partition {tp} offset was changed from {before[tp]} to {now[tp]}. This could either be a user error "
                "that the start offset is set too high and this is the first batch, or the topic was truncated."
            )
            self.report("PARTITION_OFFSET_CHANGED", reason, {})

    def report_late_start(self, tp: TopicPartition, offset: int) -> None:
        """A partition that was created since the last lookup has already lost its beginning."""
        reason = f"Added partition {tp} starts from {offset} instead of 0."
        self.report("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", reason, {tp: offset})

    def report_lost_head(self, tp: TopicPartition, start: int, earliest: int) -> None:
        """Records were deleted before the stream read them."""
        reason = (
            f"Could not read records in offset [{start}, {earliest}) for topic partition {tp} (topic '{tp.topic}', "
            f"partition {tp.partition}): {earliest} is the first offset left."
        )
        self.report("COULD_NOT_READ_OFFSET_RANGE", reason, {tp: earliest - start})
