"""Avro output of a load, without Spark's external Avro jar: a small data source whose tasks write with fastavro.

Each attempt of a task writes into `attempts/` beside the data directory, under unique names. Spark gives `commit` the
messages of the winning attempts, one per task; it moves only their files into the data directory, and writes the counts
of their rows to `counts.json`. The files of other attempts are removed with the staging area.

The Avro schema is made from the rows' Arrow schema. Every column is nullable, as in Spark's own writer.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.file_check import check_sizes
from spark_connector.loads.footers import Count, count_positions, sum_counts
from spark_connector.loads.record import LoadFile, LoadRecord
from spark_connector.loads.request import NO_VALUE
from spark_connector.loads.tasks.file_writer import CountedFile
from spark_connector.loads.times import without_times
from spark_connector.loads.write import save_by_tasks, write_counted

if TYPE_CHECKING:
    from spark_connector.loads.files.directory import FilesDestination

_CODECS = ("snappy", "deflate", "null")
_COUNTS = "counts.json"


def write_rows(
    destination: FilesDestination,
    frame: DataFrame,
    record: LoadRecord,
    directory: str,
    write_options: Mapping[str, str],
) -> LoadRecord:
    """Write the frame's rows to `directory`; gives the record with files and rows.

    The only write option is `compression`: snappy (default), deflate or null. Raises ConfigError for others.
    """
    output = destination.output
    destination.prepare(record, frame.schema.json())
    if "date" in record.partition_by:  # the name of its directory as Spark's own writers spell it, in any year
        frame = frame.withColumn("date", F.col("date").cast("string"))
    if record.partition_by:  # so that a task has one file open at a time
        frame = frame.sortWithinPartitions(*record.partition_by)
    options = {
        "codec": _codec(write_options),
        "url": output.url,
        "directory": directory,
        "storage": json.dumps(output.options),
        "layout": ",".join(record.partition_by),
    }

    def count() -> dict[TopicPartition, Count]:
        counts = json.loads(output.read(_beside(directory, _COUNTS)))
        return sum_counts(Count(*count) for count in counts)

    written = write_counted(frame, record, lambda rows: save_by_tasks(rows, AvroDataSource, options), count)
    return record.completed(written, output.data_files(directory))


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
        by = [name for name in self.options["layout"].split(",") if name]
        storage = json.loads(self.options["storage"])
        return _AvroWriter(self.options["url"], storage, self.options["directory"], self.options["codec"], by)


@dataclass
class _TaskFiles(WriterCommitMessage):
    """The files of one task (none when it had no rows) on its host, and the counts of their rows."""

    files: list[LoadFile]
    counts: list[Count]
    host: str


@dataclass
class _AvroWriter(DataSourceArrowWriter):
    """Pickled to the executors; `commit` runs in another process of the driver."""

    url: str
    storage_options: dict[str, str]
    directory: str
    codec: str
    by: list[str]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        storage = open_storage(self.url, self.storage_options)
        files: list[LoadFile] = []
        counts: list[Count] = []
        for place, pieces in itertools.groupby(_pieces(iterator, self.by, counts), key=lambda piece: piece[0]):
            name = posixpath.join(place, f"part-{secrets.token_hex(12)}.avro")
            batches = (batch for _, batch in pieces)
            first = next(batches)
            with storage.open_output(self._attempt(name)) as file:
                rows = _records(itertools.chain([first], batches))
                counted: Any = CountedFile(file)
                fastavro.writer(counted, avro_schema(first.schema), rows, codec=self.codec)
            files.append(LoadFile(name, counted.size))
        return _TaskFiles(files, list(sum_counts(counts).values()), socket.gethostname())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        storage = open_storage(self.url, self.storage_options)
        storage.make_directory(self.directory)
        written = [message for message in messages if isinstance(message, _TaskFiles)]
        attempts = _beside(self.directory, "attempts")
        there = storage.tree_sizes(attempts)
        for message in written:
            check_sizes(
                "this load", lambda name: storage.url_of(f"{attempts}/{name}"), there, message.files, message.host
            )
            for file in message.files:
                storage.rename(f"{attempts}/{file.name}", f"{self.directory}/{file.name}")
        counts = [count for message in written for count in message.counts]
        storage.create(_beside(self.directory, _COUNTS), json.dumps(counts).encode())

    def _attempt(self, name: str) -> str:
        return _beside(self.directory, f"attempts/{name}")


def _pieces(
    batches: Iterable[pa.RecordBatch], by: list[str], counts: list[Count]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(directory, its rows) of batches that are sorted by the columns `by`; adds the counts of the rows to `counts`.

    The columns `by` are left out of the rows: they are the name of the directory.
    """
    for batch in batches:
        if batch.num_rows == 0:
            continue
        counts += count_positions(pa.Table.from_batches([batch]))
        if not by:
            yield "", batch
            continue
        grouped = pa.Table.from_batches([batch]).group_by(by, use_threads=False).aggregate([([], "count_all")])
        rest, start = batch.drop_columns(by), 0
        for row in grouped.to_pylist():
            values = {name: NO_VALUE if row[name] is None else row[name] for name in by}
            yield "/".join(f"{name}={value}" for name, value in values.items()), rest.slice(start, row["count_all"])
            start += row["count_all"]


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Rows for fastavro. Times and dates stay numbers: Python has no datetime beyond the year 9999, and Avro has."""
    for batch in batches:
        schema = pa.schema([field.with_type(without_times(field.type)) for field in batch.schema])
        yield from pa.Table.from_batches([batch]).cast(schema).to_pylist()


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The record `KafkaRecord` with a field per column. Raises ConfigError for a type that Avro does not have."""
    return {"type": "record", "name": "KafkaRecord", "fields": [_field(field, field.name) for field in schema]}


def _field(field: pa.Field, path: str) -> dict[str, Any]:
    return {"name": field.name, "type": ["null", _type(field.type, path)], "default": None}


def _type(type: pa.DataType, path: str) -> Any:
    """`path` names the column; a struct becomes a record of this name, which must be unique in an Avro schema."""
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        item = "Header" if path == "headers" else f"{path}_item"
        return {"type": "array", "items": ["null", _type(type.value_type, item)]}
    if pa.types.is_map(type):
        if not pa.types.is_string(type.key_type):
            raise ConfigError(f"avro output: the keys of map '{path}' must be strings, not {type.key_type}")
        return {"type": "map", "values": ["null", _type(type.item_type, f"{path}_value")]}
    if pa.types.is_struct(type):
        name = path.replace(".", "_")
        fields = [_field(type.field(index), f"{name}_{type.field(index).name}") for index in range(type.num_fields)]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_decimal(type):
        return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
    if pa.types.is_timestamp(type):
        return {"type": "long", "logicalType": "timestamp-micros" if type.tz is not None else "local-timestamp-micros"}
    if type in _SIMPLE:
        return _SIMPLE[type]
    raise ConfigError(f"avro output has no type for column '{path}' ({type}); use format=parquet")


_SIMPLE: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()), "int"),
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    **dict.fromkeys((pa.string(), pa.large_string()), "string"),
    **dict.fromkeys((pa.binary(), pa.large_binary()), "bytes"),
    pa.date32(): {"type": "int", "logicalType": "date"},
}
