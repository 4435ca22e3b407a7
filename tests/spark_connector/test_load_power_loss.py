"""What Spark, fastavro and deltalake wrote for a load that is done survives a power failure: they sync nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_connector.load import load
from spark_connector.loads.request import Target
from spark_connector.maintenance import verify
from tests.support.kafka import Kafka
from tests.support.power_loss import PowerLoss
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("format", ["parquet", "json", "orc", "avro", "delta"])
def test_a_load_that_is_done_survives_a_power_failure(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, format: str
) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    target = Target(str(tmp_path / "new" / "out"), "g", format=format)
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "group": "g", "format": format}
    with PowerLoss(tmp_path) as power:
        for count in (20, 2):
            data.produce(count)
            assert load(spark, to=target.to, partition_by="partition", **common).rows == count
        power.cut()
    found = verify(target, broker.bootstrap, session=lambda: spark)
    assert found.ok, found
    assert [sum(count.file_rows for count in one.partitions) for one in found.loads] == [20, 2]
    data.produce(4)
    assert load(spark, to=target.to, partition_by="partition", **common).rows == 4
