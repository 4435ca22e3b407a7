"""Loads into a real HDFS: Spark's JVM client writes, hdfs-native commits; killed and run again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from broker.storage.storage import open_storage
from spark_connector.load import LoadResult, load
from tests.support.broker_process import BrokerProcess
from tests.support.hdfs import MiniHdfs
from tests.support.load_driver import LoadDriver
from tests.support.randomness import seed_of
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(300)]

LONGEST = 6.0  # seconds until a load is killed


class HdfsLoads:
    """Loads of one topic into one HDFS directory."""

    def __init__(self, spark: SparkSession, hdfs: MiniHdfs, directory: str, data: TopicData) -> None:
        self.spark, self.hdfs, self.directory, self.data = spark, hdfs, directory, data
        self.arguments: dict[str, Any] = {
            "bootstrap_servers": data.bootstrap,
            "topic": data.topic,
            "to": directory,
            "group": "hdfs",
            "storage_options": hdfs.client_options,
        }

    def __call__(self, **arguments: Any) -> LoadResult:
        return load(self.spark, **self.arguments, **arguments)

    def positions(self) -> list[tuple[str, int, int]]:
        rows = self.spark.read.parquet(self.directory).select("topic", "partition", "offset").collect()
        return sorted((row.topic, row.partition, row.offset) for row in rows)


@pytest.fixture
def loads(spark: SparkSession, hdfs: MiniHdfs, hdfs_directory: str, broker: BrokerProcess, topic: str) -> HdfsLoads:
    for name, value in hdfs.client_options.items():
        # The session is shared by all tests and is older than this HDFS.
        spark.sparkContext._jsc.hadoopConfiguration().set(name, value)
    return HdfsLoads(spark, hdfs, hdfs_directory, TopicData(broker.bootstrap, topic, partitions=3))


def test_loads_follow_each_other(loads: HdfsLoads) -> None:
    loads.data.produce(300)
    assert loads().rows == 300
    loads.data.produce(30)
    assert loads().rows == 30
    assert loads().load_id is None
    assert loads.positions() == loads.data.positions()


def test_avro(loads: HdfsLoads) -> None:
    loads.data.produce(30)
    result = loads(format="avro")
    output = open_storage(loads.directory, loads.hdfs.client_options)
    records = []
    for name in output.names(f"load={result.load_id}"):
        if name.endswith(".avro"):
            with output.open_input(f"load={result.load_id}/{name}") as file:
                records += list(fastavro.reader(file))
    assert len(records) == result.rows == 30


def kill_loads(loads: HdfsLoads, tmp_path: Path, *, rounds: int, seed: int) -> None:
    moments = random.Random(seed)
    settings = {f"spark.hadoop.{name}": value for name, value in loads.hdfs.client_options.items()}
    killed = 0
    for _ in range(rounds):
        loads.data.produce(20_000)
        with LoadDriver(loads.arguments, settings, tmp_path / "driver.log") as driver:
            driver.wait_until_ready()
            killed += driver.kill_after(moments.uniform(0, LONGEST))
    loads()
    assert loads.positions() == loads.data.positions()
    print(f"{killed} of {rounds} rounds killed, seed {seed}")


def test_a_killed_driver_loses_and_doubles_nothing(loads: HdfsLoads, tmp_path: Path) -> None:
    kill_loads(loads, tmp_path, rounds=1, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_rounds(loads: HdfsLoads, tmp_path: Path) -> None:
    kill_loads(loads, tmp_path, rounds=20, seed=seed_of(1))
