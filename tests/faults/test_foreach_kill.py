"""Exactly once inside foreachBatch: kill -9 of the driver when a batch is written and not over; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.committed_records import committed_values
from tests.support.foreach_driver import ForeachDriver, copy_batches
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(600)
def test_a_batch_that_was_written_when_the_driver_died_is_not_written_again(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    source, target = Topic(broker.bootstrap, f"{topic}-source", 2), Topic(broker.bootstrap, topic, 2)
    source.number(25, 0)
    source.number(25, 1, first=25)
    names = {"source": source.name, "target": target.name, "checkpoint": str(tmp_path / "checkpoint")}
    arguments = {"bootstrap": broker.bootstrap, **names}
    with ForeachDriver(arguments, tmp_path / "driver.log") as driver:
        assert driver.lines_until("written 1") == [
            "refused batch: spark.speculation=true",
            "refused stream: spark.speculation=true",
            "refused thread: set option 'txnVersion' to the batch's id",
            "refused foreachBatch: set option 'txnAppId'",
            "written 0",
            "written 1",
        ], (tmp_path / "driver.log").read_text()[-3000:]
        assert driver.kill_after(0)
    assert len(committed_values(broker.bootstrap, topic)) == 40
    again: list[int] = []
    copy_batches(spark, arguments, again.append, txnAppId="copy")
    assert again == [1, 2]
    assert committed_values(broker.bootstrap, topic) == sorted(b"%d" % number for number in range(50))
