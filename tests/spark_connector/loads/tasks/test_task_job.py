"""The tasks of a load in Spark, and the load that the driver writes itself."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.tasks import task_job
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_job import TaskJob, TaskResult, Tasks
from spark_connector.loads.tasks.task_output import StorageOutput
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.arrow_batches import arrow_schema
from spark_connector.read.planning import OffsetRange
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(600)
    return data


def job_of(data: TopicData, tmp_path: Path, **options: str) -> TaskJob:
    given = {"kafka.bootstrap.servers": data.bootstrap, "subscribe": data.topic, **options}
    source = parse_options(given, Mode.BATCH)
    schema = arrow_schema(source.columns)
    return TaskJob(
        source, {}, FileLayout(schema, TableColumns.of((), schema)), StorageOutput(f"file://{tmp_path}", {}, "data")
    )


def ranges(data: TopicData, count: int = 300) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition(data.topic, partition), 0, count) for partition in (0, 1)]


def positions(tmp_path: Path, names: list[str]) -> list[tuple[str, int, int]]:
    columns = ["topic", "partition", "offset"]
    tables = [pyarrow.parquet.ParquetFile(tmp_path / "data" / name).read(columns) for name in names]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def never() -> SparkSession:
    raise AssertionError("Spark is not needed")


def test_a_task_that_writes_parquet_imports_nothing_of_the_driver_or_of_other_formats() -> None:
    """Together they would take every new worker of Spark 40 ms of the processor."""
    program = (
        "import sys, spark_connector.loads.tasks.task_job as task_job, spark_connector.loads.write_options as options;"
        "from spark_connector.loads.tasks.file_formats import TASK_FORMATS; TASK_FORMATS[options.PARQUET]();"
        "unwanted = ('broker.client.admin', 'fastavro', 'spark_connector.delegation', 'spark_connector.read.offset_r',"
        "'spark_connector.loads.destination', 'spark_connector.loads.history', 'spark_connector.formats.avro_',"
        "'spark_connector.formats.json_', 'spark_connector.formats.schema_registry', 'http.client', 'pandas');"
        "print(sorted(name for name in sys.modules if name.startswith(unwanted)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_driver_writes_few_records_itself(data: TopicData, tmp_path: Path) -> None:
    files = job_of(data, tmp_path).run(never, ranges(data)).files
    assert positions(tmp_path, [file.name for file in files]) == data.positions()
    assert sum(file.rows for file in files) == 600


def test_nothing_to_write_needs_no_spark(data: TopicData, tmp_path: Path) -> None:
    assert job_of(data, tmp_path, filterOffsets="1000-2000").run(never, ranges(data)) == TaskResult()


@pytest.mark.parametrize("limits", [{"minPartitions": "4"}, {"maxRecordsPerPartition": "100"}])
def test_tasks_write_what_the_options_share_among_them(
    spark: SparkSession, data: TopicData, tmp_path: Path, limits: dict[str, str]
) -> None:
    files = job_of(data, tmp_path, **limits).run(lambda: spark, ranges(data)).files
    assert len(files) >= 4
    assert positions(tmp_path, [file.name for file in files]) == data.positions()


def test_more_than_the_driver_takes_goes_to_spark(
    spark: SparkSession, data: TopicData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_job, "_FEW", 599)
    files = job_of(data, tmp_path).run(lambda: spark, ranges(data)).files
    assert positions(tmp_path, [file.name for file in files]) == data.positions()


def test_records_that_are_gone_are_told_by_the_tasks(spark: SparkSession, data: TopicData, tmp_path: Path) -> None:
    Topic.eat(data.bootstrap, data.topic, 0, 100)
    with pytest.raises(Exception, match="COULD_NOT_READ_OFFSET_RANGE") as raised:
        job_of(data, tmp_path).run(lambda: spark, ranges(data))
    assert "Traceback" not in str(raised.value)


def test_tasks_of_spark_connect_are_a_data_frame_without_secrets(
    spark: SparkSession, data: TopicData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every task is one partition, in which its own ranges are read."""
    job = job_of(data, tmp_path, **{"kafka.ssl.keystore.password": "hush-hush"})
    frame = Tasks(job, [pickle.dumps((one,)) for one in ranges(data)]).frame(spark)
    frame.explain("extended")
    explained = capsys.readouterr().out
    assert "MapInArrow" in explained
    assert "hush" not in explained
    assert "gAS" not in explained  # the beginning of a pickle in base64
    results = [pickle.loads(row["result"]) for row in frame.collect()]
    assert [[count.partition for file in one.files for count in file.counts] for one in results] == [[0], [1]]
