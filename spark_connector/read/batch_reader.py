"""Batch reads: Spark's `DataSourceReader` over planning and fetch.

Spark asks a reader for its partitions once per loaded DataFrame and keeps the answer: every action on that
DataFrame reads the same offsets. (Spark's own source looks them up anew for each action, and Spark 4.0 asks ours anew.)
`partitions` runs on the driver, `read` in Python workers on the executors; between them the reader is pickled, so it
holds options only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_connector.options.read_options import SourceOptions
from spark_connector.read.planning import OffsetRange, batch_ranges, keep_offsets, split_ranges

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaBatchReader", "KafkaInputPartition", "read_partition"]


class KafkaInputPartition(InputPartition):
    """What a task reads: `value` is the range, `topic_id` the topic it was planned for."""

    value: OffsetRange

    def __init__(self, value: OffsetRange, topic_id: str | None) -> None:
        super().__init__(value)
        self.topic_id = topic_id


class KafkaBatchReader(DataSourceReader):
    """One batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks; looks up start and end once. Raises ConnectorError, ConfigError and what the client raises."""
        # The driver's side; a task, which unpickles this object, does without.
        from spark_connector.read.committed import CommittedOffsets
        from spark_connector.read.offset_reader import OffsetReader

        committed = CommittedOffsets(self._options)
        reader = OffsetReader(self._options, committed)
        try:
            bounds = reader.batch_bounds()
            most_of = reader.offsets_of_bytes(self._options.byte_limits.per_partition, bounds.start, bounds.end)
        finally:
            reader.close()
            committed.close()
        ranges = split_ranges(
            keep_offsets(batch_ranges(bounds.start, bounds.end), self._options.filters),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            most_of=most_of,
        )
        return [KafkaInputPartition(r, bounds.topic_ids.get(r.tp.topic)) for r in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in order of offset."""
        return read_partition(self._options, partition)


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a task; none for the placeholder that Spark makes of an empty list of partitions."""
    if not isinstance(partition, KafkaInputPartition):
        return iter(())
    from spark_connector.read.fetch import read_range  # the executors' side; planning does without

    return read_range(options, partition.value, partition.topic_id)
