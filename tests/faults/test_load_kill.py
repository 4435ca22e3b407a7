"""kill -9 at random moments of a load, driver and Python workers: in the end output equals input.

After every kill: no row visible twice, none that was not produced. At the end one undisturbed load, then every
(topic, partition, offset) that was produced is there exactly once. One kill of a driver and one of a worker in every
test run, twenty of each in the slow set; tests/faults/test_table_kills.py kills between the steps of a load.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from spark_connector.load import load
from tests.support.broker_process import BrokerProcess
from tests.support.load_driver import LoadDriver
from tests.support.randomness import seed_of
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
RECORDS = 40_000  # per round: more than a driver loads by itself
SEED = 7  # of the fast ones: a driver dies after 1.6 s, a worker after 0.8 s
LONGEST = 5.0  # seconds a load may go on before it is killed; about what an undisturbed one takes from a cold start

Kill = Callable[[LoadDriver, float], bool]


@pytest.fixture
def data(broker: BrokerProcess, topic: str) -> TopicData:
    return TopicData(broker.bootstrap, topic, partitions=PARTITIONS)


def visible(output: Path) -> list[tuple[str, int, int]]:
    """What a reader of the directory finds."""
    directories = [str(path) for path in output.glob("load=*")] if output.exists() else []
    if not directories:
        return []
    table = pyarrow.dataset.dataset(str(output), format="parquet").to_table(columns=["topic", "partition", "offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


class KilledLoads:
    """Loads of one topic into one directory, every one of them killed at a random moment."""

    def __init__(self, data: TopicData, directory: Path, offsets: str, zookeeper: str) -> None:
        self._data = data
        self._directory = directory
        self._output = directory / "output"
        self.arguments: dict[str, Any] = {
            "bootstrap_servers": data.bootstrap,
            "topic": data.topic,
            "to": str(self._output),
            "group": data.topic,
            "offsets": offsets,
            "zookeeper_connect": f"{zookeeper}/kills" if offsets == "zookeeper" else None,
        }

    def run(self, rounds: int, kill: Kill, *, longest: float, seed: int) -> None:
        """New data and a killed load, `rounds` times; the moments (up to `longest` seconds) are drawn from `seed`."""
        moments = random.Random(seed)
        killed = 0
        for number in range(rounds):
            self._data.produce(RECORDS)
            moment = moments.uniform(0, longest)
            with self._driver() as driver:
                driver.wait_until_ready()
                killed += kill(driver, moment)
                driver.result()
            rows = self.visible()
            assert len(set(rows)) == len(rows), f"round {number}: killed after {moment:.2f} s, rows are doubled"
            assert set(rows) <= set(self._data.positions())
        print(f"{killed} of {rounds} rounds killed within {longest:.1f} s, seed {seed}")
        assert killed > 0

    def time_of_one(self) -> float:
        """Seconds an undisturbed load takes from a cold start."""
        self._data.produce(RECORDS)
        with self._driver() as driver:
            driver.wait_until_ready()
            begun = time.monotonic()
            assert driver.result() is not None
            return time.monotonic() - begun

    def check(self, spark: SparkSession) -> None:
        """One undisturbed load, then output equals input and the staging area is empty."""
        load(spark, **self.arguments)
        assert self.visible() == self._data.positions()
        assert [path.name for path in self._output.glob("_staging/*/*")] == []

    def visible(self) -> list[tuple[str, int, int]]:
        """What a reader of the directory finds."""
        if not list(self._output.glob("load=*")):
            return []
        dataset = pyarrow.dataset.dataset(str(self._output), format="parquet")
        table = dataset.to_table(columns=["topic", "partition", "offset"])
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def _driver(self) -> LoadDriver:
        settings = {"spark.local.dir": str(self._directory / "spark")}
        return LoadDriver(self.arguments, settings, self._directory / "driver.log")


@pytest.mark.timeout(900)
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, data: TopicData, tmp_path: Path, zookeeper: str
) -> None:
    loads = KilledLoads(data, tmp_path, "zookeeper", zookeeper)
    loads.run(1, LoadDriver.kill_after, longest=LONGEST, seed=SEED)
    loads.check(spark)


@pytest.mark.timeout(900)
def test_a_killed_python_worker_loses_and_doubles_nothing(
    spark: SparkSession, data: TopicData, tmp_path: Path, zookeeper: str
) -> None:
    loads = KilledLoads(data, tmp_path, "files", zookeeper)
    loads.run(1, LoadDriver.kill_a_worker_after, longest=LONGEST / 2, seed=SEED)
    loads.check(spark)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("offsets", ["files", "zookeeper"])
@pytest.mark.parametrize("kill", [LoadDriver.kill_after, LoadDriver.kill_a_worker_after], ids=["driver", "worker"])
def test_twenty_rounds(
    spark: SparkSession, data: TopicData, tmp_path: Path, zookeeper: str, offsets: str, kill: Kill
) -> None:
    loads = KilledLoads(data, tmp_path, offsets, zookeeper)
    loads.run(20, kill, longest=1.1 * loads.time_of_one(), seed=seed_of(1))
    loads.check(spark)
