"""`USING pykafka` in SQL: temporary views, and what Spark's catalog makes of a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.kafka import Kafka
from tests.support.topics import Topic


@pytest.fixture
def numbers(broker: Kafka, topic: str) -> Topic:
    """Ten numbered records."""
    made = Topic(broker.bootstrap, topic)
    made.number(10)
    return made


@pytest.fixture
def catalog_table(spark: SparkSession) -> Iterator[str]:
    yield "pykafka_numbers"
    spark.sql("DROP TABLE IF EXISTS pykafka_numbers")


def test_a_temporary_view_reads_a_topic(spark: SparkSession, numbers: Topic) -> None:
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY VIEW pykafka_view USING pykafka
        OPTIONS (kafka.bootstrap.servers '{numbers.bootstrap}', subscribe '{numbers.name}', minPartitions 2)
        """
    )
    found = spark.sql("SELECT sum(CAST(CAST(value AS STRING) AS INT)) FROM pykafka_view WHERE offset >= 5")
    assert found.first() == (sum(range(5, 10)),)
    spark.catalog.dropTempView("pykafka_view")


def test_a_table_takes_its_options_with_each_query(spark: SparkSession, numbers: Topic, catalog_table: str) -> None:
    options = f"`kafka.bootstrap.servers` = '{numbers.bootstrap}', subscribe = '{numbers.name}'"
    spark.sql(f"CREATE TABLE {catalog_table} USING pykafka OPTIONS ({options}) COMMENT 'numbers'")
    found = spark.sql(f"SELECT count(*), max(offset) FROM {catalog_table} WITH ({options})")
    assert found.first() == (10, 9)
    with pytest.raises(PySparkException, match=r"hands the OPTIONS of CREATE TABLE .* to no query"):
        spark.sql(f"SELECT * FROM {catalog_table}").collect()


def test_an_option_that_does_not_exist_is_found_in_sql_too(spark: SparkSession, catalog_table: str) -> None:
    with pytest.raises(PySparkException, match="Unknown option 'subscrib' for format pykafka. Did you mean 'subscribe"):
        spark.sql(f"CREATE TABLE {catalog_table} USING pykafka OPTIONS (subscrib 't')")
