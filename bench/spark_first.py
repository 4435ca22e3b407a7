"""How long the first read of a fresh session takes: `python -m bench.spark_first FORMAT BOOTSTRAP TOPIC`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.spark_common import bench_session
from bench.spark_read_bench import DDL


class Empty(DataSource):
    """A Python source without rows."""

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


def main() -> None:
    format, bootstrap, topic = sys.argv[1:]
    with bench_session(Empty) as spark:
        start = time.perf_counter()
        reader = spark.read.format(format)
        if format == "pykafka":
            reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        reader.load().selectExpr("count(*)", "sum(length(value))").collect()
        print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
