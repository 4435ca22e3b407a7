"""Runs the tasks of a load: each fetches its ranges, writes them, and tells the driver of its files.

The driver plans the tasks. Spark runs them through a data source whose rows are pickled TaskResults, one row per task.
So `collect` gives the files of the attempts that count, and no record crosses to the JVM. The driver writes a
small load itself, which takes less time than Spark needs to start a task.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import pickle
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.client.cluster import Cluster
from broker.errors import ConfigError
from spark_connector.delegation import lent_to_tasks
from spark_connector.entry_point import entry_point
from spark_connector.formats.bad_record_rows import BadCount, BadRecordRows
from spark_connector.formats.field_presence import NOTHING_SEEN, FieldsSeen
from spark_connector.formats.value_format import UnfitRows
from spark_connector.loads.destination import NewSession
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.unfit_values import unfit_values
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.fetch import prefetch, read_ranges
from spark_connector.read.offset_readers import open_offset_reader
from spark_connector.read.planning import OffsetRange, keep_offsets

_SIGNATURE = 32  # bytes
_FEW = 20_000  # offsets that the driver tries to load itself

TopicIds = Mapping[str, str]


@dataclass(frozen=True)
class BadRecordFiles:
    """Where tasks write the bad records of a load: into a table of dead letters."""

    layout: FileLayout
    output: TaskOutput


@dataclass(frozen=True)
class TaskResult:
    """What tasks have written: the files of the rows, those of bad records, and how many of these there are, which is
    counted although they may be written nowhere."""

    files: list[WrittenFile] = field(default_factory=list)
    bad_files: list[WrittenFile] = field(default_factory=list)
    bad: tuple[BadCount, ...] = ()
    seen: FieldsSeen = NOTHING_SEEN
    """The fields of the decoded columns that some record has."""

    def __add__(self, other: TaskResult) -> TaskResult:
        return TaskResult(
            self.files + other.files,
            self.bad_files + other.bad_files,
            self.bad + other.bad,
            self.seen + other.seen,
        )


@dataclass(frozen=True)
class TaskJob:
    """What every task of one load does. Pickled to the executors."""

    options: SourceOptions
    topic_ids: TopicIds
    layout: FileLayout
    output: TaskOutput
    bad_records: BadRecordFiles | None = None
    is_quiet: bool = False
    """Whether the log is not told of bad records, because the caller is."""
    unfit_changes: UnfitRows | None = None
    """Of an upsert: finds the records whose rows its table cannot take."""

    @property
    def unfit(self) -> UnfitRows | None:
        """Finds the rows that the table cannot take; None where bad records have no other place than the table: then
        they fail the load."""
        letters = self.bad_records is not None or self.options.formats.bad_records_topic is not None
        return (self.unfit_changes or unfit_values(self.layout)) if letters else None

    def run(self, session: NewSession, ranges: Sequence[OffsetRange]) -> TaskResult:
        """Write all records of the ranges. `session` is called only if Spark is needed.

        Raises the client's errors, DataLoss, OSError and Spark's errors.
        """
        wanted = keep_offsets(ranges, self.options.filters)
        with closing(open_offset_reader(self.options)) as reader:
            ranges = reader.split(wanted, self.topic_ids)
            if self.options.fits_one_task(sum(one.size for one in wanted), _FEW):
                result = self._run_here(ranges)
                if result is not None:
                    return result
            tasks = reader.tasks(ranges)
        if not tasks:
            return TaskResult()
        with lent_to_tasks(self.options) as lent:
            return _run_in_spark(session(), replace(self, options=lent), tasks)

    def run_task(self, ranges: Sequence[OffsetRange]) -> TaskResult:
        """What one task does."""
        with self._writers() as writers:
            which, bad_records = (self.options, ranges, self.topic_ids), writers.bad_records
            with contextlib.closing(read_ranges(*which, bad_records, self.unfit)) as batches:
                return writers.write(batches)

    def _run_here(self, ranges: Sequence[OffsetRange]) -> TaskResult | None:
        """In this process, if one response of each leader holds all records; else None."""
        with closing(Cluster(self.options.client, create_topics=False)) as cluster, self._writers() as writers:
            which = (self.options, ranges, self.topic_ids)
            rows = prefetch(*which, cluster, writers.bad_records, self.unfit)
            return None if rows is None else writers.write(rows)

    @contextlib.contextmanager
    def _writers(self) -> Iterator[_Writers]:
        """The writers of one task. Files that are not closed at the end of the block are aborted."""
        writers = _Writers(self)
        try:
            yield writers
        finally:
            writers.abort()


class _Writers:
    """What one task writes: its rows, and its bad records."""

    def __init__(self, job: TaskJob) -> None:
        self._rows = FileWriter(job.layout, job.output)
        beside = job.bad_records
        self._bad = None if beside is None else FileWriter(beside.layout, beside.output)
        self.bad_records: BadRecordRows | None = None
        formats = job.options.formats
        if formats.columns:
            self.bad_records = BadRecordRows(formats, self._bad.write if self._bad else None, quiet=job.is_quiet)

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        for batch in batches:
            self._rows.write(batch)
        files = self._rows.close()
        bad_files = self._bad.close() if self._bad else []
        if self.bad_records is None:
            return TaskResult(files, bad_files)
        return TaskResult(files, bad_files, self.bad_records.counts, self.bad_records.seen)

    def abort(self) -> None:
        """Close what is open, whatever becomes of it."""
        self._rows.abort()
        if self._bad is not None:
            self._bad.abort()


def _run_in_spark(spark: SparkSession, job: TaskJob, tasks: Sequence[tuple[OffsetRange, ...]]) -> TaskResult:
    rows = task_frame(spark, job, tasks).collect()
    return sum((pickle.loads(row["result"]) for row in rows), TaskResult())


def task_frame(spark: SparkSession, job: TaskJob, tasks: Sequence[tuple[OffsetRange, ...]]) -> DataFrame:
    """A data frame with the pickled result of each task; to read it is to run the tasks."""
    if spark not in _registered:  # Spark warns when it is done twice
        spark.dataSource.register(_TASKS)
        _registered.add(spark)
    # Spark never shows an option with such a name (spark.sql.redaction.options.regex): clients have passwords.
    plan = pickle.dumps((job, tasks))
    secret = base64.b64encode(_TASKS.signature(plan) + plan).decode()
    return spark.read.format(TaskSource.name()).option("secret", secret).load()


class TaskSource(DataSource):
    """Read-only, and only for `load`: a row per task with what it has written.

    The option is a pickle, and whoever may read by Spark may name this source. So only plans of the process that has
    registered it are unpickled: a class with the key is what it registers, and Spark shows that to nobody.
    """

    key = b""

    @classmethod
    def signature(cls, plan: bytes) -> bytes:
        return hmac.digest(cls.key, plan, "sha256")

    @classmethod
    def name(cls) -> str:
        return "pykafka_load_tasks"

    def schema(self) -> str:
        return "result binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        given = base64.b64decode(self.options.get("secret", ""))
        signature, plan = given[:_SIGNATURE], given[_SIGNATURE:]
        if not (self.key and hmac.compare_digest(signature, self.signature(plan))):
            raise ConfigError(f"format {self.name()} is for loads themselves: use load, or format pykafka")
        return _TaskReader(*pickle.loads(plan))


# Not by its name in this module, so that it is sent with its key.
_TASKS: type[TaskSource] = type("_KeyedTasks", (TaskSource,), {"key": secrets.token_bytes(32)})
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


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
            yield (pickle.dumps(self.job.run_task(partition.value)),)
