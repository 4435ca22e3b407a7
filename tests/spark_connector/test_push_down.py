"""Why `pushDown=true` is refused: what PySpark does with a source whose filters were pushed down, and what ours does.

When the first test fails with the right counts, the defect is gone from PySpark and the option can be had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tests.support.kafka import Kafka
from tests.support.spark_versions import since_spark
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def ten_rows() -> type[DataSource]:
    """A source of the numbers 0 to 9 that takes `a > x` off Spark's hands. Made here so that it is pickled by value."""

    from pyspark.sql.datasource import GreaterThan

    class Reader(DataSourceReader):
        above = -1

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
            for one in filters:
                if isinstance(one, GreaterThan):
                    self.above = one.value
                else:
                    yield one

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((number,) for number in range(self.above + 1, 10))

    class TenRows(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ten_rows"

        def schema(self) -> str:
            return "a int"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return TenRows


@since_spark("4.1", "push-down to Python sources")
def test_pyspark_keeps_a_pushed_filter_for_the_next_query_on_the_same_dataframe(spark: SparkSession) -> None:
    spark.conf.set(PUSH_DOWN, "true")
    try:
        spark.dataSource.register(ten_rows())
        frame = spark.read.format("ten_rows").load()
        before, filtered, after = frame.count(), frame.where("a > 6").count(), frame.count()
    finally:
        spark.conf.unset(PUSH_DOWN)
    assert (before, filtered) == (10, 3)
    assert after == 3, "10 would be right: lift the refusal of pushDown"


def test_ours_pushes_nothing_down_whatever_the_session_allows(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.number(10)
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", made.bootstrap).option("subscribe", topic)
    with pytest.raises(PySparkException, match=r"'pushDown'.*Use the options columns, where"):
        reader.option("pushDown", "true").load()
    spark.conf.set(PUSH_DOWN, "true")
    try:
        frame = reader.option("pushDown", "false").option("filterTimestampFrom", "1").load()
        assert [frame.count(), frame.where("offset > 6").count(), frame.count()] == [10, 3, 10]
    finally:
        spark.conf.unset(PUSH_DOWN)
