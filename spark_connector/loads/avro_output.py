"""Avro output of a load, without Spark's external Avro jar: a small data source whose tasks write with fastavro.

Used by loads/output.py. A task writes into `attempts/` beside the data directory, under a name of this attempt alone.
Spark gives the commit messages of the winning attempts, one per task, to `commit`, which moves just their files into
the data directory and leaves what they hold in `counts.json`. What an attempt that failed, or came second, has written
stays in the staging area and goes with it.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.avro_schema import avro_schema
from spark_connector.loads.footers import Count
from spark_connector.storage import Storage, open_storage

__all__ = ["AvroDataSource", "read_avro_counts", "write_avro"]

_CODECS = ("snappy", "deflate", "null")
_COUNTS = "counts.json"

_NULL = "__HIVE_DEFAULT_PARTITION__"  # as Spark names the directory of rows without a value

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()  # registering twice makes Spark warn


def write_avro(
    frame: DataFrame,
    output: Storage,
    directory: str,
    write_options: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> None:
    """Write the frame's rows to `directory` of `output`, in directories named by the columns `partition_by`.

    The only write option is `compression`: snappy (default), deflate or null. Raises ConfigError for others.
    """
    session = frame.sparkSession
    if session not in _registered:
        session.dataSource.register(AvroDataSource)
        _registered.add(session)
    if partition_by:  # so that a task has one file open at a time
        frame = frame.sortWithinPartitions(*partition_by)
    writer = frame.write.format(AvroDataSource.name()).mode("append").option("codec", _codec(write_options))
    settings = json.dumps(output.options)
    writer.option("url", output.url).option("directory", directory).option("storage", settings)
    writer.option("layout", ",".join(partition_by)).save()


def read_avro_counts(output: Storage, directory: str) -> list[Count]:
    """What the files in `directory` hold, once `write_avro` is through."""
    return [tuple(count) for count in json.loads(output.read(_beside(directory, _COUNTS)))]


def _beside(directory: str, name: str) -> str:
    return posixpath.join(posixpath.dirname(directory), name)


def _codec(write_options: Mapping[str, str]) -> str:
    options = {name.lower(): value for name, value in write_options.items()}
    codec = options.pop("compression", "snappy").lower()
    if options or codec not in _CODECS:
        raise ConfigError(f"avro output takes the write option 'compression' only: one of {', '.join(_CODECS)}")
    return codec


class AvroDataSource(DataSource):
    """Write-only, and only for `load`."""

    @classmethod
    def name(cls) -> str:
        return "pykafka_load_avro"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _AvroWriter(dict(self.options))


@dataclass
class _Written(WriterCommitMessage):
    """The files of one task (none when it had no rows) and what lies in them."""

    files: list[str]
    counts: list[Count]


class _AvroWriter(DataSourceArrowWriter):
    """Pickled to the executors; `commit` runs in another process of the driver."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url = options["url"]
        self._storage_options = json.loads(options["storage"])
        self._directory = options["directory"]
        self._codec = options["codec"]
        self._by = [name for name in options["layout"].split(",") if name]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        storage = self._open()
        files: list[str] = []
        counts: dict[TopicPartition, Count] = {}
        for place, pieces in itertools.groupby(_pieces(iterator, self._by, counts), key=lambda piece: piece[0]):
            name = posixpath.join(place, f"part-{secrets.token_hex(12)}.avro")
            batches = (batch for _, batch in pieces)
            first = next(batches)
            with storage.open_output(self._attempt(name)) as file:
                records = _records(itertools.chain([first], batches))
                fastavro.writer(file, avro_schema(first.schema), records, codec=self._codec)
            files.append(name)
        return _Written(files, list(counts.values()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        storage = self._open()
        storage.make_directory(self._directory)
        written = [message for message in messages if isinstance(message, _Written)]
        for message in written:
            for file in message.files:
                storage.rename(self._attempt(file), f"{self._directory}/{file}")
        counts = [count for message in written for count in message.counts]
        storage.create(_beside(self._directory, _COUNTS), json.dumps(counts).encode())

    def _open(self) -> Storage:
        return open_storage(self._url, self._storage_options)

    def _attempt(self, name: str) -> str:
        return _beside(self._directory, f"attempts/{name}")


def _pieces(
    batches: Iterable[pa.RecordBatch], by: list[str], counts: dict[TopicPartition, Count]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(directory, rows that go there), counted on the way; the rows come sorted by the columns `by`, which are left
    out: the directory's name says them."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        _count(batch, counts)
        if not by:
            yield "", batch
            continue
        grouped = pa.Table.from_batches([batch]).group_by(by, use_threads=False).aggregate([([], "count_all")])
        rest, start = batch.drop_columns(by), 0
        for row in grouped.to_pylist():
            yield "/".join(f"{name}={_shown(row[name])}" for name in by), rest.slice(start, row["count_all"])
            start += row["count_all"]


def _shown(value: Any) -> str:
    return _NULL if value is None else str(value)


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        index = batch.schema.get_field_index("timestamp")
        if index >= 0:
            # As microseconds: fastavro would turn them back from datetime objects one by one.
            micros = batch.column(index).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            batch = batch.set_column(index, "timestamp", micros)
        yield from batch.to_pylist()


def _count(batch: pa.RecordBatch, counts: dict[TopicPartition, Count]) -> None:
    """Add a batch's rows, and the span of its offsets, to the counts per partition."""
    grouped = pa.Table.from_batches([batch]).group_by(["topic", "partition"])
    summed = grouped.aggregate([("offset", "count"), ("offset", "min"), ("offset", "max")])
    for row in summed.to_pylist():
        tp = TopicPartition(row["topic"], row["partition"])
        rows, low, high = row["offset_count"], row["offset_min"], row["offset_max"]
        if tp in counts:
            _, _, before, lowest, highest = counts[tp]
            rows, low, high = rows + before, min(low, lowest), max(high, highest)
        counts[tp] = (*tp, rows, low, high)
