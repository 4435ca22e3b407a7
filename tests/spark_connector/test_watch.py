"""`watch` from Python, with real Spark: loads until stopped, and a stop in the middle of a load."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import ConfigError
from spark_connector.load import load
from spark_connector.loads.record import LoadRecord
from spark_connector.watch import watch
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    return TopicData(broker.bootstrap, topic, partitions=2)


@pytest.fixture
def arguments(data: TopicData, tmp_path: Path) -> dict[str, Any]:
    return {"bootstrap_servers": data.bootstrap, "topic": data.topic, "to": str(tmp_path / "out"), "group": "watch"}


def test_loads_follow_each_other_until_the_last_one_asked_for(
    spark: SparkSession, data: TopicData, arguments: dict[str, Any]
) -> None:
    data.produce(100)
    stop = threading.Event()
    rows = []
    for result in watch(spark, interval="10ms", max_loads=3, max_records=60, stop=stop, **arguments):
        rows.append(result.rows)
        if len(rows) == 2:
            data.produce(20)
    assert rows == [60, 40, 20]
    assert not stop.is_set()


def test_a_load_that_writes_when_told_to_stop_is_cancelled_and_leaves_nothing(
    spark: SparkSession, data: TopicData, arguments: dict[str, Any], tmp_path: Path
) -> None:
    data.produce(100)
    stop = threading.Event()

    def stop_soon(phase: str, record: LoadRecord | None) -> None:
        if phase == "write":
            threading.Timer(0.2, stop.set).start()

    release = tmp_path / "release"

    def wait_for_release(_element: int) -> None:
        while not release.exists():
            time.sleep(0.05)

    # Every core of Spark is taken, so that the load's job cannot end before it is cancelled.
    holding = threading.Thread(target=lambda: spark.sparkContext.parallelize(range(2), 2).foreach(wait_for_release))
    holding.start()
    try:
        eventually(lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds()) > 0, 60)
        by_spark = {"minPartitions": "2"}  # without it the driver would load so few records itself
        assert list(watch(spark, stop=stop, on_phase=stop_soon, options=by_spark, **arguments)) == []
        assert holding.is_alive(), "other jobs are not cancelled"
        assert not list((tmp_path / "out").glob("load=*"))
        assert not list((tmp_path / "out" / "_staging" / "files").iterdir())
    finally:
        release.touch()
        holding.join()
    assert load(spark, **arguments).rows == 100


def test_wrong_arguments_are_told_at_once(spark: SparkSession, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="interval"):
        watch(spark, interval="soon", **arguments)
    with pytest.raises(ConfigError, match="max_loads"):
        watch(spark, max_loads=0, **arguments)
    with pytest.raises(ConfigError, match="group 'a/b'"):
        next(watch(spark, **{**arguments, "group": "a/b"}))
