"""Runs the tasks of a load: each fetches its ranges, writes them, and tells the driver of its files.

The driver plans the tasks. Spark runs them through a data source whose rows are pickled lists of WrittenFiles, one row
per task. So `collect` gives the files of the attempts that count, and no record crosses to the JVM. The driver writes a
small load itself, which takes less time than Spark needs to start a task.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.client.cluster import Cluster
from spark_connector.entry_point import entry_point
from spark_connector.loads.data_sources import register_once
from spark_connector.loads.destination import NewSession
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.fetch import prefetch, read_ranges
from spark_connector.read.offset_reader import OffsetReader
from spark_connector.read.planning import OffsetRange, keep_offsets

_FEW = 20_000  # offsets that the driver tries to load itself

TopicIds = Mapping[str, str]


@dataclass(frozen=True)
class TaskJob:
    """What every task of one load does. Pickled to the executors."""

    options: SourceOptions
    topic_ids: TopicIds
    layout: FileLayout
    output: TaskOutput

    def run(self, session: NewSession, ranges: Sequence[OffsetRange]) -> list[WrittenFile]:
        """Write all records of the ranges; gives the files. `session` is called only if Spark is needed.

        Raises the client's errors, DataLoss, OSError and Spark's errors.
        """
        wanted = keep_offsets(ranges, self.options.filters)
        if self.options.fits_one_task(sum(one.size for one in wanted), _FEW):
            rows = self._prefetched(wanted)
            if rows is not None:
                return self.write(rows)
        with closing(OffsetReader(self.options)) as reader:
            tasks = reader.tasks(reader.split(wanted))
        if not tasks:
            return []
        return _run_in_spark(session(), self, tasks)

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write the batches of one task."""
        writer = FileWriter(self.layout, self.output)
        try:
            for batch in batches:
                writer.write(batch)
            return writer.close()
        except BaseException:
            writer.abort()
            raise

    def _prefetched(self, ranges: Sequence[OffsetRange]) -> list[pa.RecordBatch] | None:
        with closing(Cluster(self.options.client, create_topics=False)) as cluster:
            return prefetch(self.options, ranges, self.topic_ids, cluster)


def _run_in_spark(spark: SparkSession, job: TaskJob, tasks: Sequence[tuple[OffsetRange, ...]]) -> list[WrittenFile]:
    register_once(spark, TaskSource)
    # Spark never shows an option with such a name (spark.sql.redaction.options.regex): clients have passwords.
    secret = base64.b64encode(pickle.dumps((job, tasks))).decode()
    rows = spark.read.format(TaskSource.name()).option("secret", secret).load().collect()
    return [file for row in rows for file in pickle.loads(row["files"])]


class TaskSource(DataSource):
    """Read-only, and only for `load`: a row per task with the files it has written."""

    @classmethod
    def name(cls) -> str:
        return "pykafka_load_tasks"

    def schema(self) -> str:
        return "files binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TaskReader(*pickle.loads(base64.b64decode(self.options["secret"])))


class _Ranges(InputPartition):
    """The ranges of one task."""

    value: tuple[OffsetRange, ...]


@dataclass
class _TaskReader(DataSourceReader):
    job: TaskJob
    tasks: Sequence[tuple[OffsetRange, ...]]

    def __reduce__(self) -> tuple[object, ...]:
        return _TaskReader, (self.job, ())  # a task needs its own ranges only

    def partitions(self) -> list[InputPartition]:
        return [_Ranges(task) for task in self.tasks]

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        if isinstance(partition, _Ranges):  # not the placeholder of a read without partitions
            job = self.job
            with contextlib.closing(read_ranges(job.options, partition.value, job.topic_ids)) as batches:
                yield (pickle.dumps(job.write(batches)),)
