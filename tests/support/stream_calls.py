"""A stream reader called as Spark 4.3 calls it, without Spark: what the tests of tests/spark_connector/read share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_connector.read.stream_reader import KafkaStreamReader

Document = dict[str, Any]
ReaderOf = Callable[..., KafkaStreamReader]
ALL = ReadAllAvailable()


def as_spark_does(document: Document) -> Document:
    """Through Spark's hands and back: JSON text, as in the offset log."""
    result: Document = json.loads(json.dumps(document))
    return result


def planned(reader: KafkaStreamReader, start: Document, end: Document) -> list[tuple[int, int, int]]:
    """(partition, from, until) of each task."""
    tasks = reader.partitions(as_spark_does(start), as_spark_does(end))
    return [(task.value.tp.partition, task.value.from_offset, task.value.until_offset) for task in tasks]


def values(reader: KafkaStreamReader, start: Document, end: Document) -> list[bytes]:
    """What the tasks of a batch read."""
    tasks = reader.partitions(start, end)
    return [value.as_py() for task in tasks for batch in reader.read(task) for value in batch["value"]]
