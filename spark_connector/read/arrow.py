"""Decoded columns to the Arrow record batches that Spark takes: its Kafka schema to the letter.

Called by fetch.py. Spark checks the first batch of a task for equality of names, order, types and
nullability, and copies every batch over a socket, so batches are handed over in slices of moderate size.
Slicing copies nothing, and the constant columns of a partition are made once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE, TIMESTAMP_TYPE, Columns

__all__ = ["MAX_BYTES", "MAX_ROWS", "arrow_schema", "to_record_batches"]

MAX_ROWS = 10_000
"""Most rows of one record batch."""

MAX_BYTES = 4 << 20
"""Most bytes of keys and values in one record batch; a single larger row goes alone."""


@functools.cache
def arrow_schema(include_headers: bool) -> pa.Schema:
    """The schema of `source.spark_schema` as Arrow; every field nullable, as Spark's own source has it."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, ("headers", HEADERS_TYPE)] if include_headers else fields)


def to_record_batches(columns: Columns, tp: TopicPartition) -> Iterator[pa.RecordBatch]:
    """`columns` of the partition `tp`, with headers if they hold any, in slices that Spark digests well."""
    topic, partition = _constants(tp)
    schema = arrow_schema(columns.headers is not None)
    timestamp = columns.timestamp_us()
    for start, count in _slices(columns):
        arrays = [
            columns.key.slice(start, count),
            columns.value.slice(start, count),
            topic.slice(0, count),
            partition.slice(0, count),
            columns.offset.slice(start, count),
            timestamp.slice(start, count),
            columns.timestamp_type.slice(start, count),
        ]
        if columns.headers is not None:
            arrays.append(columns.headers.slice(start, count))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@functools.lru_cache(maxsize=64)
def _constants(tp: TopicPartition) -> tuple[pa.Array, pa.Array]:
    return pa.repeat(pa.scalar(tp.topic, pa.string()), MAX_ROWS), pa.repeat(
        pa.scalar(tp.partition, pa.int32()), MAX_ROWS
    )


def _slices(columns: Columns) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each batch, at least one row each."""
    rows = columns.num_rows
    ends = _end_bytes(columns.key) + _end_bytes(columns.value)
    start = 0
    while start < rows:
        begin = ends[start]
        fitting = int(np.searchsorted(ends, begin + MAX_BYTES, side="right")) - 1
        stop = min(max(fitting, start + 1), start + MAX_ROWS, rows)
        yield start, stop - start
        start = stop


def _end_bytes(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each value ends in the data buffer, behind where the first one begins: rows + 1 numbers."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
