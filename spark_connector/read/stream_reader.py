"""Streaming reads: PySpark's `DataSourceStreamReader`, adapted to micro_batches.py; what all versions of Spark call.

limited_stream_reader.py adds how Spark 4.2 and newer ask for the end of a batch, older_stream_reader.py how 4.0
and 4.1 do. What Spark does with a reader (observed on 4.0.5 and 4.3.0): one long-lived Python process per query calls
`initialOffset` (twice), `latestOffset`, `partitions` and `commit`, and is killed at the end without `stop`; another
process pickles a second instance of the reader for the executors' `read`. So nothing here survives a process but what
the offsets carry, and sockets are made when first needed.

`commit` comes one batch late and never for the last batch of an `availableNow` run, whose end is told to the
offset store when Spark asks for the next one: `latestOffset` begins where the last batch ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_connector.options.read_options import SourceOptions
from spark_connector.read.batch_reader import KafkaInputPartition, read_partition
from spark_connector.read.handing_over import can_hand_over, hand_over

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_connector.read.micro_batches import Document, MicroBatches

__all__ = ["KafkaStreamReader"]


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
            from spark_connector.read.shared_fetch import prefetch

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
