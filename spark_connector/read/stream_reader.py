"""Streaming reads: PySpark's `DataSourceStreamReader`, adapted to micro_batches.py; what all versions of Spark call.

limited_stream_reader.py adds how Spark 4.2 and newer ask for the end of a batch, older_stream_reader.py how 4.0
and 4.1 do. What Spark does with a reader (observed on 4.0.5 and 4.3.0): one long-lived Python process per query calls
`initialOffset` (twice), `latestOffset`, `partitions` and `commit`, and is killed at the end without `stop`; another
process pickles a second instance of the reader for the executors' `read`. So nothing here survives a process but what
the offsets carry, and sockets are made when first needed.

`commit` comes one batch late and never for the last batch of an `availableNow` run, whose end is told to the
offset store when Spark asks for the next one: `latestOffset` begins where the last batch ended.

How a stream reader gives Spark the rows of a micro-batch together with its plan, so that no Python task runs for it.

PySpark does that for readers of the simple kind only, which it tells by their private class: after `partitions`, which
must give one, it calls `getCache` on them and stores the rows in Spark's block manager, where the task, and the one
that repeats it, finds them. So a reader becomes one of those for that moment, and is itself again when the rows are
taken: other calls (limits, the latest offset for progress reports) are not what simple readers offer. Where PySpark
has no such class the rows stay here and the task reads them itself.

The end of a batch as Spark 4.2 and newer ask for it: from a start, under a limit, with a say in `availableNow`.

The end of a batch as Spark 4.0 and 4.1 ask for it: `latestOffset()`, without a start and without a limit.

So the reader remembers where the query is. A process that goes on from a checkpoint is told where that ends before all
else, by an empty range to plan (`AcceptsLatestSeenOffset`; observed on 4.0.5 and 4.1.4); a new query asks for the end
even before it asks for the start. From then on every end given is the end of the next batch: Spark writes it to the
checkpoint and runs that batch before it asks again, even where the batch is never planned (its rows are not wanted).

Limits are kept here, since the engine knows none. `Trigger.AvailableNow` (as `Trigger.Once`) runs one batch with a
Python source on these versions, so a limit ends such a run early; no reader can tell which trigger it is under. With
`spark.sql.streaming.triggerAvailableNowWrapper.enabled` Spark asks before it tells where the checkpoint ends, and asks
twice: what a restarted query is given then must not be read, and what is not planned yet is not finished.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.version import __version__ as pyspark_version

from spark_connector.errors import ConnectorError
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.batch_reader import KafkaInputPartition, read_partition
from spark_connector.read.stream_offset import StreamOffset
from spark_connector.spark_versions import ADMISSION_CONTROL

if ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_connector.options.read_options import SourceOptions
    from spark_connector.read.micro_batches import Document, MicroBatches

__all__ = ["KafkaStreamReader", "LimitedStreamReader", "OlderStreamReader", "can_hand_over", "hand_over"]


class KafkaStreamReader(DataSourceStreamReader):
    """One streaming query; method names are PySpark's. How far a batch goes is a subclass's: which one, Spark's version
    decides (`spark_connector.source`)."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._batches: MicroBatches | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return KafkaStreamReader, (self._options,)  # executors get the options, no sockets and no rows

    def initialOffset(self) -> Document:  # noqa: N802
        """Where a query without a checkpoint starts."""
        return self._driver().initial()

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of the batch from `start` to `end`. Where the rows are few they are read here, and go to Spark with
        the one task there is then; none is for a batch without rows."""
        driver = self._driver()
        plan = driver.plan(start, end)
        if driver.fits_one_task(plan) and can_hand_over(self):
            from spark_connector.read.fetch import prefetch

            rows = prefetch(self._options, plan.ranges, plan.topic_ids)
            if rows is not None:
                if rows:
                    hand_over(self, rows)
                return [KafkaInputPartition(plan.ranges, plan.topic_ids)] if rows else []
        return [KafkaInputPartition(task, plan.topic_ids) for task in driver.tasks(plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, those of each partition in order of offset."""
        return read_partition(self._options, partition)

    def commit(self, end: Document) -> None:
        """Spark has finished all that lies before `end`: tell the offset store, if there is one."""
        self._driver().committed(end)

    def stop(self) -> None:
        """Hang up; Spark calls it only after an error."""
        if self._batches is not None:
            self._batches.close()

    def _driver(self) -> MicroBatches:
        if self._batches is None:
            from spark_connector.read.micro_batches import MicroBatches  # the driver's side; tasks do without

            self._batches = MicroBatches(self._options)
        return self._batches


logger = logging.getLogger("pykafka.spark")

_ROWS = "_rows_to_hand_over"
_KIND = "_kind_without_rows"


def can_hand_over(reader: DataSourceStreamReader) -> bool:
    """Whether this PySpark takes rows from such a reader."""
    return _handing_over(_kind_of(reader)) is not None


def hand_over(reader: DataSourceStreamReader, rows: Sequence[pa.RecordBatch]) -> None:
    """Have Spark take `rows`, at least one batch, for the one partition that `partitions` is about to give."""
    kind = _handing_over(_kind_of(reader))
    assert kind is not None, "asked can_hand_over"
    reader.__dict__[_ROWS] = rows
    reader.__class__ = kind


def _kind_of(reader: DataSourceStreamReader) -> type[DataSourceStreamReader]:
    kind: type[DataSourceStreamReader] = getattr(type(reader), _KIND, type(reader))
    return kind


@functools.cache
def _handing_over(kind: type[DataSourceStreamReader]) -> type[DataSourceStreamReader] | None:
    simple = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
    if not isinstance(simple, type) or not callable(getattr(simple, "getCache", None)):
        return None

    def take(reader: DataSourceStreamReader, _start: Any, _end: Any) -> Iterator[pa.RecordBatch]:
        reader.__class__ = kind
        return iter(reader.__dict__.pop(_ROWS))

    return type(f"{kind.__name__}WithRows", (kind, simple), {"getCache": take, _KIND: kind})


class OlderStreamReader(KafkaStreamReader):
    """A stream reader without admission control."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._reached: Document | None = None  # where the next batch begins
        self._asked = False
        self._planned = False  # has the batch that ends there begun?
        self._warned = False

    def latestOffset(self) -> Document:  # type: ignore[override]  # noqa: N802
        """The end of the next batch, by the limits of the options; where the query is, when there is none."""
        start = self.initialOffset() if self._reached is None else self._reached
        end = self._driver().next_end(
            start,
            cap=self._options.max_offsets_per_trigger,
            byte_cap=self._options.byte_limits.per_trigger,
            at_least=self._options.min_offsets_per_trigger,
            finished=self._planned,
            tell_latest=True,
        )
        if "latest" in end:
            self._warn_of_single_batches()
        self._planned &= end == start
        self._reached, self._asked = end, True
        return end

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of the batch from `start` to `end`. Raises ConnectorError when Spark tells a restarted query where
        it is after it has asked for an end, which was counted from the query's first offset, and for a checkpoint that
        this source did not write."""
        if start == end != self._reached and self._asked:
            raise ConnectorError(
                "PYKAFKA_START_UNKNOWN",
                "Spark asked for the end of a batch before it told where the checkpoint ends, which "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=true makes it do: unset it "
                "(Trigger.AvailableNow is then one batch), or use PySpark 4.2 or newer, which needs it no more; "
                f"this is {pyspark_version}",
            )
        StreamOffset.from_json(end)  # a checkpoint that is not ours ends the query here
        self._reached, self._planned = end, True
        return super().partitions(start, end)

    def _warn_of_single_batches(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "A limit of the options ends this batch before the end of the topics. With PySpark %s a run under "
                "Trigger.AvailableNow or Trigger.Once is one batch, and so ends here; other triggers go on. "
                "PySpark 4.2 runs as many batches as it takes.",
                pyspark_version,
            )


if ADMISSION_CONTROL:

    class LimitedStreamReader(KafkaStreamReader, SupportsTriggerAvailableNow):
        """A stream reader with admission control."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            """The limit by our options. Spark can hand back only its own kinds, one at a time; see `latestOffset`."""
            if self._options.max_offsets_per_trigger is not None:
                return ReadMaxRows(self._options.max_offsets_per_trigger)
            if self._options.min_offsets_per_trigger is not None:
                return ReadMinRows(self._options.min_offsets_per_trigger)
            if self._options.byte_limits.per_trigger is not None:
                return ReadMaxBytes(self._options.byte_limits.per_trigger)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """Called before any offset is known; the target is set at the first `latestOffset` (SPARK-53560)."""
            self._driver().freeze()

        def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
            """The end of the next batch, never None; `start` itself when there is none.

            `ReadAllAvailable` overrules the options (`Trigger.Once`); any other limit means them, with
            the cap Spark says.
            """
            cap = byte_cap = at_least = None
            if not isinstance(limit, ReadAllAvailable):
                cap = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
                byte_cap = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.byte_limits.per_trigger
                at_least = self._options.min_offsets_per_trigger
            return self._driver().next_end(start, cap=cap, byte_cap=byte_cap, at_least=at_least)

        def reportLatestOffset(self) -> Document | None:  # noqa: N802
            """What the brokers had at the last look: `sources[].latestOffset` in the progress, to compute lag from."""
            return self._driver().latest_known()
