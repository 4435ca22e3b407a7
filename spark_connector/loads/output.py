"""The Spark side of a load: read the planned ranges, write them to the staging directory, count what was written.

Called by load.py. parquet, orc and json are Spark's own writers; its output committer makes sure that a task which
runs twice leaves its rows once; avro is avro_output.py. The count is taken from the files themselves, per partition,
and compared with what passed through Spark and with the ranges: a load that does not add up is not committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from broker.protocol.topic_partition import TopicPartition
from pyspark_pykafka import DefaultSource
from spark_connector.loads.avro_output import read_avro_counts, write_avro
from spark_connector.loads.footers import Count, count_rows, read_footers
from spark_connector.loads.layout import DERIVED
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.storage import Storage

__all__ = ["Written", "check_rows", "read_ranges", "sum_counts", "write_output"]

_SPARK_FORMATS = {"delta": "parquet"}  # what the files of a format are, where it is not itself


class Written(NamedTuple):
    """What the staged files hold of one partition: rows, and the lowest and highest offset among them."""

    rows: int
    low: int
    high: int

    def plus(self, other: Written) -> Written:
        return Written(self.rows + other.rows, min(self.low, other.low), max(self.high, other.high))


def read_ranges(spark: SparkSession, record: LoadRecord, options: Mapping[str, str]) -> DataFrame:
    """Exactly the planned offsets as a batch DataFrame, with the columns of a partitioned layout (loads/layout.py).

    `options` are the reader's, without what says where to read.
    """
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for range in record.ranges:
        if range.size == 0:
            continue  # of a partition that may be gone
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
        # Spark looks for Python sources once. When its worker is killed in that moment, or another package's module
        # fails, the session never finds any (4.3); the error has many classes, one for each kind of session.
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        spark.dataSource.register(DefaultSource)
        frame = spark.read.format("pykafka").options(**options, **ranges).load()
    derived = {name: F.expr(DERIVED[name]) for name in record.partition_by if name in DERIVED}
    return frame.withColumns(derived) if derived else frame  # none at all is an assertion of Spark Connect's


def write_output(
    frame: DataFrame, record: LoadRecord, output: Storage, directory: str, write_options: Mapping[str, str]
) -> LoadRecord:
    """Write the frame's rows to `directory` of `output` in the record's format; gives the record with files and rows.

    Raises LoadError when the files do not hold what they should.
    """
    observation = Observation()
    observed = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    format = _SPARK_FORMATS.get(record.format, record.format)
    if format == "avro":
        write_avro(observed, output, directory, write_options, record.partition_by)
    else:
        writer = observed.write.format(format).options(**write_options)
        writer.partitionBy(*record.partition_by).save(output.url_of(directory))
    written = _count(frame.sparkSession, format, output, directory)
    check_rows(record, written, passed=int(observation.get["rows"]))
    return record.completed({tp: count.rows for tp, count in written.items()}, _data_files(output, directory))


def check_rows(record: LoadRecord, written: Mapping[TopicPartition, Written], passed: int) -> None:
    """Compare what was written with what Spark has read and with the ranges. Raises LoadError.

    Fewer rows than offsets are fine (compaction, transaction markers); anything else that differs is not.
    """
    total = sum(count.rows for count in written.values())
    if total != passed:
        raise LoadError(f"load {record.load_id}: Spark read {passed} rows, but its output holds {total}")
    planned = {range.tp: range for range in record.ranges}
    for tp, count in sorted(written.items()):
        range = planned.get(tp)
        if range is None or not _fits(count, range):
            asked = f"offsets {range.start} to {range.end - 1}" if range else "nothing"
            raise LoadError(
                f"load {record.load_id}: asked for {asked} of {tp.topic}-{tp.partition}, but the output holds "
                f"{count.rows} rows with offsets {count.low} to {count.high}"
            )


def _fits(count: Written, range: LoadRange) -> bool:
    return range.start <= count.low and count.high < range.end and count.rows <= count.high - count.low + 1


def _count(spark: SparkSession, format: str, output: Storage, directory: str) -> dict[TopicPartition, Written]:
    if not _data_files(output, directory):
        return {}
    if format == "avro":
        return sum_counts(read_avro_counts(output, directory))
    if format == "parquet":
        counted = _count_by_footers(output, directory)
        if counted is not None:
            return counted
    return _count_by_spark(spark, format, output.url_of(directory))


def _count_by_footers(output: Storage, directory: str) -> dict[TopicPartition, Written] | None:
    """From the statistics of the row groups, without reading a row; None when a group mixes partitions."""
    footers = read_footers(output, directory, _data_files(output, directory))
    counts = [count_rows(name, footer) for name, footer in footers.items()]
    return None if None in counts else sum_counts(count for file in counts if file is not None for count in file)


def _count_by_spark(spark: SparkSession, format: str, url: str) -> dict[TopicPartition, Written]:
    rows = (
        spark.read.format(format)
        .schema("topic string, partition int, offset long")
        .load(url)
        .groupBy("topic", "partition")
        .agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("low"), F.max("offset").alias("high"))
        .collect()
    )
    return sum_counts((row.topic, row.partition, row.rows, row.low, row.high) for row in rows)


def sum_counts(counts: Iterable[Count]) -> dict[TopicPartition, Written]:
    """Counts of files, row groups or tasks, added up per partition."""
    total: dict[TopicPartition, Written] = {}
    for topic, partition, *numbers in counts:
        tp, count = TopicPartition(topic, partition), Written(*numbers)
        total[tp] = total[tp].plus(count) if tp in total else count
    return total


def _data_files(output: Storage, directory: str) -> dict[str, int]:
    """Name → size of what readers will see: hidden files (_SUCCESS, checksums) are none of it."""
    return {name: size for name, size in output.tree_sizes(directory).items() if not _is_hidden(name)}


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(("_", "."))
