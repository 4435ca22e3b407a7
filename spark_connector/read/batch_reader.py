"""Batch reads: Spark's `DataSourceReader` over planning and fetch.

Spark asks a reader for its partitions once per loaded DataFrame and keeps the answer, so every action on that DataFrame
reads the same offsets. (Spark's own source looks them up again for each action, and Spark 4.0 asks ours again.)
`partitions` runs on the driver, `read` in Python workers on the executors. The reader is pickled in between, so it
holds options only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_connector.entry_point import entry_point
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.planning import OffsetRange, batch_ranges, keep_offsets

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaInputPartition(InputPartition):
    """The work of one task: `value` is its ranges, `topic_ids` the ids of the topics they were planned for."""

    value: tuple[OffsetRange, ...]

    def __init__(self, value: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        super().__init__(tuple(value))
        topics = {one.tp.topic for one in value}
        self.topic_ids = {topic: topic_ids[topic] for topic in topics if topic in topic_ids}


class KafkaBatchReader(DataSourceReader):
    """One batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @entry_point
    def partitions(self) -> list[InputPartition]:
        """The tasks; looks up start and end once. Raises ConnectorError, ConfigError and the client's errors."""
        from spark_connector.read.offset_reader import OffsetReader  # for the driver only; tasks do not load it

        reader = OffsetReader(self._options)
        try:
            bounds = reader.batch_bounds()
            whole = keep_offsets(batch_ranges(bounds.start, bounds.end), self._options.filters)
            tasks = reader.tasks(reader.split(whole))
        finally:
            reader.close()
        return [KafkaInputPartition(task, bounds.topic_ids) for task in tasks]

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a task, ordered by offset within each partition.

    None for the placeholder that Spark makes when there are no partitions.
    """
    if not isinstance(partition, KafkaInputPartition):
        return iter(())
    from spark_connector.read.fetch import read_ranges  # for executors only; planning does not load it

    return read_ranges(options, partition.value, partition.topic_ids)
