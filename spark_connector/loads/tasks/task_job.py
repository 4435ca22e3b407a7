"""Runs the tasks of a load: each fetches its ranges, writes them, and tells the driver of its files.

The driver plans the tasks. Spark runs them as a job whose results are pickled TaskResults, one per task. So `collect`
gives the files of the attempts that count, and no record crosses to the JVM. Spark starts no Python on the driver for
that, which may lack the interpreter of the executors. The driver writes a small load itself, which takes less time than
Spark needs to start a task.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from broker.client.cluster import Cluster
from spark_connector.entry_point import entry_point
from spark_connector.formats.field_presence import NOTHING_SEEN, FieldsSeen
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.unfit_values import unfit_values
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.options.read_options import SourceOptions
from spark_connector.pandas_later import without_pandas
from spark_connector.read.fetch import prefetch, read_ranges
from spark_connector.read.planning import OffsetRange, keep_offsets
from spark_connector.shipped import shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_connector.formats.bad_record_rows import BadCount, BadRecordRows  # registries behind it
    from spark_connector.formats.value_format import UnfitRows
    from spark_connector.loads.destination import NewSession  # what only a driver does behind it

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
        from spark_connector.delegation import lent_to_tasks  # for the driver only
        from spark_connector.read.offset_readers import open_offset_reader

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
            from spark_connector.formats.bad_record_rows import BadRecordRows

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
    results = Tasks(job, [pickle.dumps(task) for task in tasks]).run(spark)
    return sum(map(pickle.loads, results), TaskResult())


@dataclass(frozen=True)
class Tasks:
    """`ranges` are pickled, those of one task after the other's: a task unpickles its own only."""

    job: TaskJob
    ranges: Sequence[bytes]

    def run(self, spark: SparkSession) -> list[bytes]:
        """The pickled result of each task, of the attempts that count. Raises Spark's errors."""
        context = getattr(spark, "sparkContext", None)
        if context is not None:
            job = replace(self, ranges=())

            def result(ranges: bytes) -> bytes:  # a method would be pickled by its name, which needs our package
                return job.task(ranges)

            found: list[bytes] = context.parallelize(self.ranges, len(self.ranges)).map(result).collect()
            return found
        return [row["result"] for row in self.frame(spark).collect()]  # a session of Spark Connect has no context

    def frame(self, spark: SparkSession) -> DataFrame:
        """The same as a data frame; to read it is to run the tasks."""

        def results(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self._of(numbers)

        count = len(self.ranges)
        return spark.range(0, count, 1, count).mapInArrow(results, "result binary")

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(Tasks, self.job, self.ranges)

    @entry_point
    def task(self, ranges: bytes) -> bytes:
        with without_pandas():
            return pickle.dumps(self.job.run_task(pickle.loads(ranges)))

    def _of(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch([pa.array([self.task(self.ranges[number])], pa.binary())], ["result"])
