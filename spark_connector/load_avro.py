"""Avro output of a load, without Spark's external Avro jar: every task writes its own file with fastavro.

Called by load_output.py. Spark's output committer has no part in it, so a task writes into `attempts/` beside the data
directory, under a name of this attempt alone; the driver moves into the data directory just those files whose names
came back with the tasks' results. What an attempt that failed, or came second, has written stays in the staging area.
"""

from __future__ import annotations

import posixpath
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import fastavro
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.storage import Storage, open_storage

__all__ = ["write_avro"]

_RESULT = "file string, topic string, partition int, rows long, low long, high long"
_RESULT_ARROW = pa.schema(
    [("file", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("rows", "low", "high")]
)
_CODECS = ("snappy", "deflate", "null")

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


def write_avro(
    frame: DataFrame, output: Storage, directory: str, write_options: Mapping[str, str]
) -> tuple[dict[TopicPartition, tuple[int, int, int]], int]:
    """Write the frame to `directory` of `output`; gives (rows, lowest, highest offset) per partition, and all rows.

    The only write option is `compression`: snappy (default), deflate or null. Raises ConfigError for others.
    """
    codec = _codec(write_options)
    attempts = posixpath.join(posixpath.dirname(directory), "attempts")
    output.make_directory(directory)
    task = _AvroTask(output.url_of(attempts), output.options, frame.columns, codec)
    counts: dict[TopicPartition, tuple[int, int, int]] = {}
    files = set()
    for row in frame.mapInArrow(task, _RESULT).collect():
        tp = TopicPartition(row.topic, row.partition)
        rows, low, high = counts.get(tp, (0, row.low, row.high))
        counts[tp] = rows + row.rows, min(low, row.low), max(high, row.high)
        files.add(row.file)
    for name in sorted(files):
        output.rename(f"{attempts}/{name}", f"{directory}/{name}")
    return counts, sum(rows for rows, _, _ in counts.values())


def _codec(write_options: Mapping[str, str]) -> str:
    options = {name.lower(): value for name, value in write_options.items()}
    codec = options.pop("compression", "snappy").lower()
    if options or codec not in _CODECS:
        raise ConfigError(f"avro output takes the write option 'compression' only: one of {', '.join(_CODECS)}")
    return codec


class _AvroTask:
    """Runs on an executor: Arrow batches of one task in, one row per topic partition out."""

    def __init__(self, url: str, storage_options: Mapping[str, str], columns: list[str], codec: str) -> None:
        self._url = url
        self._storage_options = dict(storage_options)
        self._codec = codec
        self._schema = {
            "type": "record",
            "name": "KafkaRecord",
            "fields": [{"name": name, "type": ["null", _AVRO_TYPES[name]]} for name in columns],
        }

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        number = context.partitionId() if context else 0
        name = f"part-{number:05d}-{secrets.token_hex(8)}.avro"
        counts: dict[TopicPartition, list[int]] = defaultdict(list)
        with open_storage(self._url, self._storage_options).open_output(name) as file:
            fastavro.writer(file, self._schema, self._records(first, batches, counts), codec=self._codec)
        yield pa.RecordBatch.from_pylist(
            [
                {"file": name, **tp._asdict(), "rows": rows, "low": low, "high": high}
                for tp, (rows, low, high) in counts.items()
            ],
            schema=_RESULT_ARROW,
        )

    def _records(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], counts: dict[TopicPartition, list[int]]
    ) -> Iterator[dict[str, Any]]:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            _count(batch, counts)
            # As microseconds: fastavro would turn them back from datetime objects one by one.
            index = batch.schema.get_field_index("timestamp")
            micros = batch.column(index).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            yield from batch.set_column(index, "timestamp", micros).to_pylist()
            batch = next(rest, None)


def _count(batch: pa.RecordBatch, counts: dict[TopicPartition, list[int]]) -> None:
    """Add a batch's rows, and the span of its offsets, to the counts per partition."""
    grouped = pa.Table.from_batches([batch]).group_by(["topic", "partition"])
    summed = grouped.aggregate([("offset", "count"), ("offset", "min"), ("offset", "max")])
    for row in summed.to_pylist():
        tp = TopicPartition(row["topic"], row["partition"])
        rows, low, high = row["offset_count"], row["offset_min"], row["offset_max"]
        before = counts[tp] or [0, low, high]
        counts[tp] = [before[0] + rows, min(before[1], low), max(before[2], high)]
