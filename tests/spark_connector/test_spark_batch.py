"""`spark.read.format("pykafka")` as a user writes it, in a real Spark on a real broker."""

from __future__ import annotations

import json

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructType

from spark_connector.options.read_options import COLUMNS
from spark_connector.read.schema import spark_schema
from tests.support.kafka import Kafka
from tests.support.sample_records import AWKWARD
from tests.support.spark_versions import since_spark
from tests.support.topics import Topic


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", topic.bootstrap)
    return reader.option("subscribe", topic.name).options(**options).load()


@pytest.fixture
def thousand(broker: Kafka, topic: str) -> Topic:
    """A thousand numbered records in each of three partitions."""
    made = Topic(broker.bootstrap, topic, 3)
    for partition in range(3):
        made.number(1000, partition)
    return made


def test_every_record_is_read_once(spark: SparkSession, thousand: Topic) -> None:
    frame = read(spark, thousand)
    assert frame.schema == spark_schema()
    seen = frame.agg(F.count("*"), F.count_distinct("partition", "offset"), F.sum(F.col("value").cast("string")))
    assert seen.first() == (3000, 3000, 3 * sum(range(1000)))


def test_what_a_record_holds_arrives(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    for sample in AWKWARD:
        made.produce([sample.value], key=sample.key, headers=sample.headers, codec="zstd", timestamp=1_700_000_000_123)
    frame = read(spark, made, includeHeaders="true")
    assert frame.schema == spark_schema(COLUMNS)
    rows = frame.orderBy("offset").withColumn("millis", F.unix_millis("timestamp")).collect()
    for offset, (row, sample) in enumerate(zip(rows, AWKWARD, strict=True)):
        assert (row.topic, row.partition, row.offset, row.timestampType) == (topic, 0, offset, 0)
        assert (row.key, row.value, row.millis) == (sample.key, sample.value, 1_700_000_000_123)
        assert ([(h.key, h.value) for h in row.headers] if row.headers is not None else None) == (
            list(sample.headers) or None
        )


def test_a_part_of_the_topic(spark: SparkSession, thousand: Topic) -> None:
    start = json.dumps({thousand.name: {"0": 990, "1": -2, "2": 1000}})
    end = json.dumps({thousand.name: {"0": -1, "1": 5, "2": 1000}})
    frame = read(spark, thousand, startingOffsets=start, endingOffsets=end)
    expected = spark.createDataFrame([(0, 10, 990), (1, 5, 0)], "partition int, count long, first long")
    counts = frame.groupBy("partition").agg(F.count("*").alias("count"), F.min("offset").alias("first"))
    assert_df_equality(counts, expected, ignore_row_order=True, ignore_nullable=True)


def test_only_the_columns_asked_for_in_their_order(spark: SparkSession, thousand: Topic) -> None:
    frame = read(spark, thousand, columns="offset,headers,value,partition", includeHeaders="true")
    assert frame.columns == ["offset", "headers", "value", "partition"]
    right = frame.where("headers IS NULL AND cast(cast(value AS string) AS int) = offset")
    assert sorted(right.groupBy("partition").count().collect()) == [(0, 1000), (1, 1000), (2, 1000)]


def test_an_empty_range_has_no_rows_and_still_the_schema(spark: SparkSession, broker: Kafka, topic: str) -> None:
    frame = read(spark, Topic(broker.bootstrap, topic), includeHeaders="true")
    assert frame.count() == 0
    assert frame.collect() == []
    assert frame.schema == spark_schema(COLUMNS)


def test_tasks_follow_min_partitions(spark: SparkSession, thousand: Topic) -> None:
    frame = read(spark, thousand, minPartitions="6")
    assert frame.groupBy(F.spark_partition_id().alias("task")).count().select("count").collect() == [(500,)] * 6


@since_spark("4.1", "a DataFrame that keeps its partitions from action to action")
def test_a_dataframe_that_was_loaded_reads_the_same_offsets_each_time(spark: SparkSession, thousand: Topic) -> None:
    frame = read(spark, thousand)
    assert frame.count() == 3000
    thousand.number(5, 0, first=1000)
    assert frame.count() == 3000
    assert read(spark, thousand).count() == 3005


def test_a_limit_leaves_a_read_early_and_the_next_one_is_whole(spark: SparkSession, thousand: Topic) -> None:
    frame = read(spark, thousand, **{"kafka.max.partition.fetch.bytes": "2000"})
    assert len(frame.limit(3).collect()) == 3
    assert frame.count() == 3000


def test_sql_finds_the_format_too(spark: SparkSession, thousand: Topic) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW records USING pykafka OPTIONS "
        f"(`kafka.bootstrap.servers` '{thousand.bootstrap}', subscribe '{thousand.name}')"
    )
    (row,) = spark.sql("SELECT count(*) AS n FROM records WHERE offset >= 500").collect()
    assert row.n == 1500
    spark.catalog.dropTempView("records")


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, thousand: Topic) -> None:
    reader = spark.read.format("pykafka").schema(StructType().add("value", LongType()))
    with pytest.raises(PySparkException, match=r"Kafka source has a fixed schema .* leave out \.schema"):
        reader.options(subscribe=thousand.name, **{"kafka.bootstrap.servers": thousand.bootstrap}).load().count()
