"""The Spark side of a load: read the planned ranges, write them to the staging area, count and seal what was written.

Called by load.py. Spark writes parquet, orc and json itself, and its output committer keeps the rows of a task that ran
twice only once. files/avro_files.py and database/staged_rows.py have writers of their own. The rows of each partition
are counted in the output itself and compared with the rows that Spark has read and with the ranges: a load that does
not add up is not committed (L5).
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.datasource import DataSource

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from pyspark_pykafka import DefaultSource
from spark_connector.loads.destination import Destination, NewSession
from spark_connector.loads.footers import Count, count_rows, read_footers
from spark_connector.loads.plan import confirm_topics
from spark_connector.loads.record import LoadError, LoadRecord, failed_load
from spark_connector.loads.request import DERIVED, LOAD_COLUMN, TABLE_FORMATS, LoadRequest
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.outages import summary
from spark_connector.storage import Storage

_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_writing: weakref.WeakKeyDictionary[SparkSession, int] = weakref.WeakKeyDictionary()
_writing_lock = threading.Lock()
_registered: weakref.WeakKeyDictionary[SparkSession, set[str]] = weakref.WeakKeyDictionary()


def write_load(request: LoadRequest, destination: Destination, record: LoadRecord, session: NewSession) -> LoadRecord:
    """Stage the load, write, count and seal its rows; gives the sealed record. A failure leaves nothing behind."""
    place = destination.stage(record)
    try:
        frame = read_ranges(session(), record, request.options)
        write_rows = destination.own_writer(record.format) or functools.partial(write_files, destination)
        sealed = write_rows(frame, record, place, request.write_options)
        confirm_topics(request, record)
    except Exception as error:
        overtaken = destination.is_overtaken(record)
        destination.discard(record.load_id)
        if overtaken:  # the winner has removed our staging directory, so Spark may fail with any error
            raise OffsetConflict(
                f"group '{request.target.group}': another load committed number {record.id.sequence} while "
                f"{record.load_id} was running; nothing of {record.load_id} is kept"
            ) from error
        if isinstance(error, PykafkaError):
            raise
        # An OSError is one of this process; what an error of Spark stands for is in its text.
        reason = summary(str(error))
        failure = error if isinstance(error, OSError) else reason
        raise failed_load(f"load {record.load_id} failed: {reason}", failure) from error
    destination.seal(sealed)  # discards the attempt itself when it fails
    return sealed


def read_ranges(spark: SparkSession, record: LoadRecord, options: Mapping[str, str]) -> DataFrame:
    """The planned offsets as a batch DataFrame, with the columns of a partitioned layout (request.py).

    `options` are the reader's, without those that choose topics and offsets.
    """
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for range in record.ranges:
        if range.size == 0:
            continue  # the partition may no longer exist
        partitions.setdefault(range.topic, []).append(range.partition)
        starts.setdefault(range.topic, {})[str(range.partition)] = range.start
        ends.setdefault(range.topic, {})[str(range.partition)] = range.end
    ranges = {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    try:
        frame = spark.read.format("pykafka").options(**options, **ranges).load()
    except Exception as error:
        # Spark looks for Python data sources once. If its worker is killed then, or a module of another package fails,
        # the session never finds any (4.3). The class of the error depends on the kind of session.
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        spark.dataSource.register(DefaultSource)
        frame = spark.read.format("pykafka").options(**options, **ranges).load()
    derived = {name: F.expr(DERIVED[name]) for name in record.partition_by if name in DERIVED}
    return frame.withColumns(derived) if derived else frame  # Spark Connect refuses an empty mapping


def write_files(
    destination: Destination,
    frame: DataFrame,
    record: LoadRecord,
    directory: str,
    write_options: Mapping[str, str],
) -> LoadRecord:
    """Write the frame's rows to `directory` of the destination with one of Spark's own writers.

    Gives the record with files and rows. Raises LoadError when the files do not hold what they should. Rows of a
    table get the column that names their load; files have it in the name of their directory.
    """
    output, format = destination.output, record.format
    assert output is not None
    destination.prepare(record, frame.schema.json())
    if format in TABLE_FORMATS:
        format, frame = "parquet", frame.withColumn(LOAD_COLUMN, F.lit(record.load_id))
        if record.format == "delta" and "date" in record.partition_by:
            frame = frame.withColumn("date", _date_of_delta())

    def write(observed: DataFrame) -> None:
        writer = observed.write.format(format).options(**write_options)
        with _whole_microseconds(frame.sparkSession):
            writer.partitionBy(*record.partition_by).save(output.url_of(directory))

    written = write_counted(frame, record, write, lambda: _count(frame.sparkSession, format, output, directory))
    return record.completed(written, output.data_files(directory))


def _date_of_delta() -> Column:
    """The column date. Readers of Delta could not open the table if one of its directories had another year."""
    said = "The record at offset %d of topic '%s', partition %d, lies in a year that Delta's readers do not know: "
    said += "leave date out of partition_by, or the record out of the load (option filterTimestampUntil)"
    known = F.expr("date BETWEEN DATE'0001-01-01' AND DATE'9999-12-31'")
    complaint = F.format_string(said, "offset", "topic", "partition")
    return F.when(F.col("date").isNull() | known, F.col("date")).otherwise(F.raise_error(complaint).cast("date"))


@contextlib.contextmanager
def _whole_microseconds(spark: SparkSession) -> Iterator[None]:
    """Write timestamps of parquet as microseconds, unless the session has a wish of its own.

    In Spark's default, INT96, a time before 1677 or after 2262 is another time to most other readers: they take INT96
    for nanoseconds. Several loads may write in one session at once.
    """
    with _writing_lock:
        if not _writing.get(spark) and _TIMESTAMPS in spark.conf.getAll:
            wished = True
        else:
            wished = False
            spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
            _writing[spark] = _writing.get(spark, 0) + 1
    try:
        yield
    finally:
        with _writing_lock:
            if not wished:
                _writing[spark] -= 1
                if not _writing[spark]:
                    # Ctrl-C may have ended Spark already; what ended the load is told, not that.
                    with contextlib.suppress(Exception):
                        spark.conf.unset(_TIMESTAMPS)


def write_counted(
    frame: DataFrame,
    record: LoadRecord,
    write: Callable[[DataFrame], None],
    count: Callable[[], Mapping[TopicPartition, Count]],
) -> dict[TopicPartition, int]:
    """Write the frame's rows with `write` and compare them with what `count` finds; gives the rows per partition.

    Raises LoadError when they differ, or are not the rows of the load's ranges.
    """
    observation = Observation()
    write(frame.observe(observation, F.count(F.lit(1)).alias("rows")))
    written = count()
    check_rows(record, written, passed=int(observation.get["rows"]))
    return {tp: count.rows for tp, count in written.items()}


def save_by_tasks(frame: DataFrame, source: type[DataSource], options: Mapping[str, str]) -> None:
    """Write the frame with a data source of our own, which is registered with the session once: Spark warns of more."""
    known = _registered.setdefault(frame.sparkSession, set())
    if source.name() not in known:
        frame.sparkSession.dataSource.register(source)
        known.add(source.name())
    frame.write.format(source.name()).mode("append").options(**options).save()


def check_rows(record: LoadRecord, written: Mapping[TopicPartition, Count], passed: int) -> None:
    """Compare the rows that were written with `passed`, the rows that Spark has read, and with the ranges.

    Raises LoadError for any difference, except fewer rows than offsets (compaction, transaction markers).
    """
    total = sum(count.rows for count in written.values())
    if total != passed:
        raise LoadError(f"load {record.load_id}: Spark read {passed} rows, but its output holds {total}")
    planned = {range.tp: range for range in record.ranges}
    for tp, count in sorted(written.items()):
        range = planned.get(tp)
        fits = range is not None and range.start <= count.low and count.high < range.end
        if not fits or count.rows > count.high - count.low + 1:
            asked = f"offsets {range.start} to {range.end - 1}" if range else "nothing"
            raise LoadError(
                f"load {record.load_id}: asked for {asked} of {tp.topic}-{tp.partition}, but the output holds "
                f"{count.rows} rows with offsets {count.low} to {count.high}"
            )


def _count(spark: SparkSession, format: str, output: Storage, directory: str) -> dict[TopicPartition, Count]:
    """By the statistics of parquet's row groups where none mixes partitions, else by reading the rows."""
    files = output.data_files(directory)
    if not files:
        return {}
    if format == "parquet":
        counts = [count_rows(name, footer) for name, footer in read_footers(output, directory, files).items()]
        if None not in counts:
            return sum_counts(count for file in counts if file is not None for count in file)
    rows = (
        spark.read.format(format)
        .schema("topic string, partition int, offset long")
        .load(output.pattern_of(directory))
        .groupBy("topic", "partition")
        .agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("low"), F.max("offset").alias("high"))
        .collect()
    )
    return sum_counts(Count(*row) for row in rows)


def sum_counts(counts: Iterable[Count]) -> dict[TopicPartition, Count]:
    """Counts of files, row groups or tasks, added up per partition."""
    total: dict[TopicPartition, Count] = {}
    for count in counts:
        tp = TopicPartition(count.topic, count.partition)
        before = total.get(tp, count._replace(rows=0))
        low, high = min(before.low, count.low), max(before.high, count.high)
        total[tp] = Count(*tp, before.rows + count.rows, low, high)
    return total
