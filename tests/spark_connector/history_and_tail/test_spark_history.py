"""A read with `history` by real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.all_available import take_all
from tests.support.history_loads import FORMATS, HistoryLoads
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("format", FORMATS)
def test_table_and_tail_are_one_data_frame(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, format: str
) -> None:
    loads = HistoryLoads(broker.bootstrap, topic, str(tmp_path / "table"), format)
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(20)
    loads.load()
    data.produce(6)
    frame = spark.read.format("pykafka").options(**loads.options(historyColumn="loaded")).load()
    rows = frame.collect()
    assert sorted((row.topic, row.partition, row.offset) for row in rows) == data.positions()
    assert sum(row.loaded for row in rows) == 20
    for row in rows:
        assert (bytes(row.key), bytes(row.value)) == data.record(row.partition, row.offset)


@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_begins_with_the_table(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, format: str
) -> None:
    loads = HistoryLoads(broker.bootstrap, topic, str(tmp_path / "table"), format)
    data = TopicData(broker.bootstrap, topic, partitions=2)
    output, checkpoint = str(tmp_path / "output"), str(tmp_path / "checkpoint")

    def run() -> list[tuple[str, int, int]]:
        stream = spark.readStream.format("pykafka").options(**loads.options(maxOffsetsPerTrigger="15"))
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
        take_all(writer, output).stop()
        rows = spark.read.parquet(output).select("topic", "partition", "offset").collect()
        return sorted((row.topic, row.partition, row.offset) for row in rows)

    data.produce(20)
    loads.load()
    data.produce(20)
    loads.load()
    data.produce(6)
    assert run() == data.positions()
    data.produce(4)
    loads.load()
    assert run() == data.positions()
