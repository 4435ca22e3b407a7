"""Reads of an archive in a real Spark: a batch, a stream, an exactly-once load, SQL; and what a plan shows."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_connector.load import load
from spark_connector.loads.request import Target
from spark_connector.maintenance import verify
from tests.support.all_available import take_all
from tests.support.archive_reads import Filler, Reads
from tests.support.topic_archiver import TopicArchiver

SECRET = "hush-hush"


@pytest.fixture
def archived(topic_of_segments: Filler, archiver: TopicArchiver) -> Filler:
    """600 records in each partition, of which the first third is archived."""
    topic_of_segments.send(topic_of_segments.producer(), 600)
    archiver.archive(most=6)
    return topic_of_segments


def test_a_batch_and_a_stream(spark: SparkSession, archived: Filler, reads: Reads, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": reads.bootstrap, "subscribe": reads.topic, **reads.where}
    frame = spark.read.format("pykafka").options(**options, minPartitions="3").load()
    assert sorted(row.value for row in frame.select("value").collect()) == [bytearray(one) for one in archived.values]
    stream = spark.readStream.format("pykafka").options(
        **options, startingOffsets="earliest", maxOffsetsPerTrigger="700", includeHeaders="true"
    )
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    take_all(writer, str(tmp_path / "output"))
    rows = spark.read.parquet(str(tmp_path / "output"))
    assert sorted(row.value for row in rows.select("value").collect()) == [bytearray(one) for one in archived.values]


def test_loads_are_exactly_once_wherever_their_records_are(
    spark: SparkSession, archived: Filler, archiver: TopicArchiver, reads: Reads, tmp_path: Path
) -> None:
    to, group = str(tmp_path / "loads"), f"g-{reads.topic}"

    def run(**options: str) -> None:
        where = {"minPartitions": "2", **reads.where, **options}
        servers, topic = reads.bootstrap, reads.topic
        load(spark, bootstrap_servers=servers, topic=topic, to=to, group=group, options=where, max_records=500)

    run()
    archiver.archive()
    run()
    run()
    rows = spark.read.parquet(to)
    assert rows.count() == 2 * archived.number
    assert rows.select("partition", "offset").distinct().count() == 2 * archived.number
    assert not verify(Target(to, group), reads.bootstrap).problems


def test_no_plan_shows_a_secret(spark: SparkSession, archived: Filler, reads: Reads) -> None:
    options = {"subscribe": reads.topic, **reads.where, "archive": "only"}
    shown = io.StringIO()
    frame = spark.read.format("pykafka").options(**options, **{"archive.option.secret.account_key": SECRET}).load()
    with contextlib.redirect_stdout(shown):
        frame.explain(True)
    frame.createOrReplaceTempView("archived")
    with contextlib.redirect_stdout(shown):
        spark.sql("SELECT count(*) FROM archived").explain("formatted")
        stream = (
            spark.readStream.format("pykafka")
            .options(**options, **{"archive.option.secret.account_key": SECRET})
            .load()
        )
        stream.explain(True)
        spark.sql("EXPLAIN EXTENDED SELECT value FROM archived").show(truncate=False)
    assert "pykafka" in shown.getvalue()
    assert SECRET not in shown.getvalue()
