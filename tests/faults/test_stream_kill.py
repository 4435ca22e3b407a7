"""kill -9 at random moments of a streaming query, driver and Python workers: in the end output equals input.

The query writes parquet with a checkpoint and is started again from it after every kill. At no time does a reader
of the output find a row twice, and when the query has caught up every (partition, offset) is there exactly once. One
kill of each in every test run, twenty kills in the slow set.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.stream_driver import StreamDriver
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
RECORDS = 6_000  # per round
CAP = 100  # records per micro-batch: a round's 60 take far longer than BATCHES and LONGEST, on a fast machine too
BATCHES = 4  # micro-batches of a round, at most, before it is killed
LONGEST = 1.0  # seconds after them, at most


class KilledStream:
    """One query over one checkpoint, killed in every round."""

    def __init__(self, data: TopicData, directory: Path) -> None:
        self._data = data
        self._directory = directory
        self.output = directory / "output"
        self._arguments: dict[str, Any] = {
            "bootstrap": data.bootstrap,
            "topic": data.topic,
            "output": str(self.output),
            "checkpoint": str(directory / "checkpoint"),
        }

    def run(self, spark: SparkSession, rounds: int, *, seed: int) -> None:
        """New data and a killed query, `rounds` times: the driver and the workers in turn."""
        moments = random.Random(seed)
        for number in range(rounds):
            self._data.produce(RECORDS)
            with self._driver() as driver:
                kill = driver.kill_a_worker_after if number % 2 else driver.kill_after
                assert driver.wait_for_batches(moments.randint(1, BATCHES)), self._log()
                assert kill(moments.uniform(0, LONGEST)), f"round {number} was over: {self._log()}"
                if number % 2:
                    driver.wait_for_batch(self._committed() + 2)  # that of the killed worker came through
            rows = self.visible(spark)
            assert len(set(rows)) == len(rows), f"round {number}: rows are doubled"
            assert set(rows) <= set(self._data.positions())
        with self._driver(cap=RECORDS) as driver:  # what is left, in few batches
            assert driver.finished(), self._log()
        assert self.visible(spark) == self._data.positions()

    def visible(self, spark: SparkSession) -> list[tuple[str, int, int]]:
        """What Spark reads from the output: what the sink's log says is committed."""
        if not (self.output / "_spark_metadata").exists():
            return []
        rows = spark.read.schema("topic string, partition int, offset long").parquet(str(self.output)).collect()
        return sorted((row.topic, row.partition, row.offset) for row in rows)

    def _committed(self) -> int:
        """The last micro-batch that the checkpoint says is over."""
        return max(int(path.name) for path in (self._directory / "checkpoint" / "commits").glob("[0-9]*"))

    def _driver(self, cap: int = CAP) -> StreamDriver:
        return StreamDriver(self._arguments | {"cap": cap}, self._directory / "driver.log")

    def _log(self) -> str:
        return (self._directory / "driver.log").read_text()[-3000:]


@pytest.fixture
def stream(broker: BrokerProcess, topic: str, tmp_path: Path) -> KilledStream:
    return KilledStream(TopicData(broker.bootstrap, topic, partitions=PARTITIONS), tmp_path)


@pytest.mark.timeout(900)
def test_output_equals_input_after_2_kills(stream: KilledStream, spark: SparkSession) -> None:
    stream.run(spark, 2, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_output_equals_input_after_20_kills(stream: KilledStream, spark: SparkSession) -> None:
    stream.run(spark, 20, seed=20)
