"""A Python source without rows and a sink that keeps none, as ceilings. They import nothing of ours, as their module is
imported by each process of Spark that they are sent to."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

DDL = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"


class Empty(DataSource):
    """No rows of Kafka's seven columns, in one task."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: object) -> EmptyReader:
        return EmptyReader()


class EmptyReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        return iter(())


class Nowhere(DataSource):
    """The ceiling: takes Arrow batches and forgets them."""

    @classmethod
    def name(cls) -> str:
        return "nowhere_ceiling"

    def writer(self, schema: object, overwrite: bool) -> NowhereWriter:
        return NowhereWriter()


class NowhereWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
