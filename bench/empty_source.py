"""A Python source without rows, as a ceiling. It imports nothing of ours, as its module is imported by each process of
Spark that it is sent to."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

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
