"""How a stream moves from one micro-batch to the next: offsets in, offsets out, no pyspark.

stream_reader.py hands Spark's calls to `MicroBatches`, which asks the offset_reader and decides. It keeps
nothing that a restart may lose: where the query began, and where partitions that came later begin, stands in
the END offset of the batch that begins with them (see offsets.py).

Departures from Spark's `KafkaMicroBatchStream`, all to lose nothing silently: what is gone is reported before
the batch is logged, not while it is planned; a topic that was deleted and created anew is recognised by its id
and read from its beginning; a start that moves (`latest`) is put on record at once, by an empty batch if
there is no data yet, where Spark writes it to a file of its own; so is what new options select.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker.client.metadata import UnknownTopic
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.options.range_limit import LATEST, Position, SpecificOffsets
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.committed import CommittedOffsets
from spark_connector.read.offset_reader import Ends, OffsetReader
from spark_connector.read.offsets import Offsets, StreamOffset, plan_start
from spark_connector.read.partition_changes import Losses, PartitionChanges, compare
from spark_connector.read.planning import OffsetRange, limit_bytes, limit_offsets, stream_ranges

__all__ = ["BatchPlan", "Document", "MicroBatches"]

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
        self._committed = CommittedOffsets(options)
        self._offsets = OffsetReader(options, self._committed)
        self._initial: Document | None = None
        self._refused: ConfigError | ConnectorError | None = None
        self._ends: Ends | None = None
        self._freeze = False
        self._last_batch_at: float | None = None

    def close(self) -> None:
        """Hang up everywhere."""
        self._offsets.close()
        self._committed.close()

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
            self._committed.publish(begin.offsets)
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
        self._committed.publish(StreamOffset.from_json(end).offsets)

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
