"""The Spark side of a load: read the planned ranges, write them to the staging directory, count what was written.

Called by load.py. parquet, orc and json are Spark's own writers; its output committer makes sure that a task which
runs twice leaves its rows once; avro is avro_output.py. The count is taken from the files themselves, per partition,
and compared with what passed through Spark and with the ranges: a load that does not add up is not committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow.parquet
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.avro_output import Count, read_avro_counts, write_avro
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.storage import Storage

__all__ = ["Written", "read_ranges", "write_output"]

_FOOTER_THREADS = 8


class Written(NamedTuple):
    """What the staged files hold of one partition: rows, and the lowest and highest offset among them."""

    rows: int
    low: int
    high: int

    def plus(self, other: Written) -> Written:
        return Written(self.rows + other.rows, min(self.low, other.low), max(self.high, other.high))


def read_ranges(spark: SparkSession, record: LoadRecord, options: Mapping[str, str]) -> DataFrame:
    """Exactly the planned offsets as a batch DataFrame. `options` are the reader's, without what says where to read."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for range in record.ranges:
        partitions.setdefault(range.topic, []).append(range.partition)
        starts.setdefault(range.topic, {})[str(range.partition)] = range.start
        ends.setdefault(range.topic, {})[str(range.partition)] = range.end
    return (
        spark.read.format("pykafka")
        .options(**options)
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )


def write_output(
    frame: DataFrame, record: LoadRecord, output: Storage, directory: str, write_options: Mapping[str, str]
) -> LoadRecord:
    """Write the frame's rows to `directory` of `output` in the record's format; gives the record with files and rows.

    Raises LoadError when the files do not hold what they should.
    """
    observation = Observation()
    observed = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    if record.format == "avro":
        write_avro(observed, output, directory, write_options)
    else:
        observed.write.format(record.format).options(**write_options).save(output.url_of(directory))
    written = _count(frame.sparkSession, record.format, output, directory)
    _check(record, written, passed=int(observation.get["rows"]))
    return record.completed({tp: count.rows for tp, count in written.items()}, _data_files(output, directory))


def _check(record: LoadRecord, written: Mapping[TopicPartition, Written], passed: int) -> None:
    """Fewer rows than offsets are fine (compaction, transaction markers); anything else that differs is not."""
    total = sum(count.rows for count in written.values())
    if total != passed:
        raise LoadError(f"load {record.load_id}: Spark read {passed} rows, but its output files hold {total}")
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
        return _sum(read_avro_counts(output, directory))
    if format == "parquet":
        counted = _count_by_footers(output, directory)
        if counted is not None:
            return counted
    return _count_by_spark(spark, format, output.url_of(directory))


def _count_by_footers(output: Storage, directory: str) -> dict[TopicPartition, Written] | None:
    """From the statistics of the row groups, without reading a row; None when a group mixes partitions."""
    paths = [f"{directory}/{name}" for name in _data_files(output, directory)]

    def read_footer(path: str) -> Any:
        with output.open_input(path) as file:
            return pyarrow.parquet.read_metadata(file)

    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        footers = list(pool.map(read_footer, paths))
    counts = [_count_of_row_group(footer.row_group(i)) for footer in footers for i in range(footer.num_row_groups)]
    return None if None in counts else _sum(count for count in counts if count is not None)


def _count_of_row_group(group: Any) -> Count | None:
    columns = {column.path_in_schema: column.statistics for column in map(group.column, range(group.num_columns))}
    statistics: list[Any] = [columns.get(name) for name in ("topic", "partition", "offset")]
    if not all(each is not None and each.has_min_max for each in statistics):
        return None
    topic, partition, offset = statistics
    if topic.min != topic.max or partition.min != partition.max:
        return None
    return topic.min, partition.min, group.num_rows, offset.min, offset.max


def _count_by_spark(spark: SparkSession, format: str, url: str) -> dict[TopicPartition, Written]:
    rows = (
        spark.read.format(format)
        .schema("topic string, partition int, offset long")
        .load(url)
        .groupBy("topic", "partition")
        .agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("low"), F.max("offset").alias("high"))
        .collect()
    )
    return _sum((row.topic, row.partition, row.rows, row.low, row.high) for row in rows)


def _sum(counts: Iterable[Count]) -> dict[TopicPartition, Written]:
    total: dict[TopicPartition, Written] = {}
    for topic, partition, *numbers in counts:
        tp, count = TopicPartition(topic, partition), Written(*numbers)
        total[tp] = total[tp].plus(count) if tp in total else count
    return total


def _data_files(output: Storage, directory: str) -> dict[str, int]:
    """Name → size of what readers will see: hidden files (_SUCCESS, checksums) are none of it."""
    return {name: size for name, size in output.file_sizes(directory).items() if not name.startswith(("_", "."))}
