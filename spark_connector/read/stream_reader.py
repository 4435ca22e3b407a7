"""Streaming reads: PySpark 4.3's `DataSourceStreamReader`, adapted to micro_batches.py.

What Spark does with it (observed on 4.3.0): one long-lived Python process per query calls `initialOffset`
(twice), `latestOffset`, `partitions` and `commit`, and is killed at the end without `stop`; another process
pickles a second instance of the reader for the executors' `read`. So nothing here survives a process but what
the offsets carry, and sockets are made when first needed.

`commit` comes one batch late and never for the last batch of an `availableNow` run, whose end is told to the
offset store when Spark asks for the next one: `latestOffset(start)` begins where the last batch ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_connector.options.read_options import SourceOptions
from spark_connector.read.batch_reader import KafkaInputPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_connector.read.micro_batches import Document, MicroBatches

__all__ = ["KafkaStreamReader"]


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query; method names are PySpark's."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._batches: MicroBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_batches": None}  # executors get the options, no sockets

    def initialOffset(self) -> Document:  # noqa: N802
        """Where a query without a checkpoint starts."""
        return self._driver().initial()

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

        `ReadAllAvailable` overrules the options (`Trigger.Once`); any other limit means them, with the cap Spark says.
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

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of the batch from `start` to `end`; asks no broker."""
        plan = self._driver().plan(start, end)
        return [KafkaInputPartition(r, plan.topic_ids.get(r.tp.topic)) for r in plan.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in order of offset."""
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
