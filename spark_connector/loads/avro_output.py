"""Avro output of a load, without Spark's external Avro jar: a small data source whose tasks write with fastavro.

Used by loads/output.py. A task writes into `attempts/` beside the data directory, under a name of this attempt alone.
Spark gives the commit messages of the winning attempts, one per task, to `commit`, which moves just their files into
the data directory and leaves what they hold in `counts.json`. What an attempt that failed, or came second, has written
stays in the staging area and goes with it.
"""

from __future__ import annotations

import json
import posixpath
import secrets
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.storage import Storage, open_storage

__all__ = ["AvroDataSource", "Count", "read_avro_counts", "write_avro"]

Count = tuple[str, int, int, int, int]
"""(topic, partition, rows, lowest offset, highest offset)"""

_CODECS = ("snappy", "deflate", "null")
_COUNTS = "counts.json"

_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [{"name": "key", "type": ["null", "string"]}, {"name": "value", "type": ["null", "bytes"]}],
}
_AVRO_TYPES: dict[str, Any] = {
    "key": "bytes",
    "value": "bytes",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestampType": "int",
    "headers": {"type": "array", "items": ["null", _HEADER]},
}

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()  # registering twice makes Spark warn


def write_avro(frame: DataFrame, output: Storage, directory: str, write_options: Mapping[str, str]) -> None:
    """Write the frame's rows to `directory` of `output`.

    The only write option is `compression`: snappy (default), deflate or null. Raises ConfigError for others.
    """
    session = frame.sparkSession
    if session not in _registered:
        session.dataSource.register(AvroDataSource)
        _registered.add(session)
    writer = frame.write.format(AvroDataSource.name()).mode("append").option("codec", _codec(write_options))
    settings = json.dumps(output.options)
    writer.option("url", output.url).option("directory", directory).option("storage", settings).save()


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
        return _AvroWriter(dict(self.options), schema.fieldNames())


@dataclass
class _Written(WriterCommitMessage):
    """The file of one task (None: it had no rows) and what lies in it."""

    file: str | None
    counts: list[Count]


class _AvroWriter(DataSourceArrowWriter):
    """Pickled to the executors; `commit` runs in another process of the driver."""

    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None:
        self._url = options["url"]
        self._storage_options = json.loads(options["storage"])
        self._directory = options["directory"]
        self._codec = options["codec"]
        fields = [{"name": name, "type": ["null", _AVRO_TYPES[name]]} for name in columns]
        self._schema = {"type": "record", "name": "KafkaRecord", "fields": fields}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return _Written(None, [])
        name = f"part-{secrets.token_hex(12)}.avro"
        counts: dict[TopicPartition, Count] = {}
        with self._open().open_output(self._attempt(name)) as file:
            fastavro.writer(file, self._schema, _records(first, batches, counts), codec=self._codec)
        return _Written(name, list(counts.values()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        storage = self._open()
        storage.make_directory(self._directory)
        written = [message for message in messages if isinstance(message, _Written)]
        for message in written:
            if message.file is not None:
                storage.rename(self._attempt(message.file), f"{self._directory}/{message.file}")
        counts = [count for message in written for count in message.counts]
        storage.create(_beside(self._directory, _COUNTS), json.dumps(counts).encode())

    def _open(self) -> Storage:
        return open_storage(self._url, self._storage_options)

    def _attempt(self, name: str) -> str:
        return _beside(self._directory, f"attempts/{name}")


def _records(
    first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], counts: dict[TopicPartition, Count]
) -> Iterator[dict[str, Any]]:
    batch: pa.RecordBatch | None = first
    while batch is not None:
        _count(batch, counts)
        # As microseconds: fastavro would turn them back from datetime objects one by one.
        index = batch.schema.get_field_index("timestamp")
        micros = batch.column(index).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        yield from batch.set_column(index, "timestamp", micros).to_pylist()
        batch = next(rest, None)


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
