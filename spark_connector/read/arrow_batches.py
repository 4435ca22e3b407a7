"""Decoded columns to the Arrow record batches that Spark expects: exactly its Kafka schema.

Called by fetch.py. Spark checks that the first batch of a task has equal names, order, types and nullability, and
copies every batch over a socket, so batches have moderate sizes. Slicing copies nothing, and the constant columns of a
partition are made once. A RowFilter removes rows before that; a RecordDecoder makes typed values of what Kafka holds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE, TIMESTAMP_TYPE, Columns
from spark_connector.errors import ConnectorError

if TYPE_CHECKING:
    from spark_connector.formats.record_decoder import RecordDecoder  # fastavro behind it
    from spark_connector.read.row_filter import RowFilter  # pyarrow.compute behind it

MAX_ROWS = 10_000
"""Most rows of one record batch."""

MAX_BYTES = 1 << 20
"""Most bytes of keys, values and headers in one record batch; a larger row gets a batch of its own. The JVM copies each
value three times, and a batch of this size stays in the cache of its core meanwhile."""

DECODED_ROWS = 40_000
DECODED_BYTES = 4 << 20
"""The same where a decoder makes typed values of them, which has its price for each batch, in Python and in the JVM.
The first batch of a partition has MAX_ROWS at most. What it takes when it is decoded tells how many rows the next ones
may have: no fewer than that, and no more than fit into DECODED_BYTES again, because the JVM holds a batch whole."""

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
_DECODED = {
    **{name: name for name in ("key", "value", "offset", "timestamp", "headers")},
    "timestampType": "timestamp_type",
}
"""Spark's column → field of the column decoder, for columns that Kafka's record batches hold."""

Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]


@functools.cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """`schema.spark_schema` as Arrow; every field is nullable, as in Spark's own source."""
    return pa.schema([(name, _TYPES[name]) for name in columns])


class BatchMaker:
    """Makes batches of the rows that pass `rows`, or of all, with the source columns `columns`, or what `decoder` makes
    of them."""

    def __init__(
        self, columns: Sequence[str], rows: RowFilter | None = None, decoder: RecordDecoder | None = None
    ) -> None:
        self._rows = rows
        self._decoder = decoder
        self._columns = tuple(columns if decoder is None else decoder.needs)
        self.fields = frozenset(_DECODED[name] for name in self._columns if name in _DECODED)
        """The fields that the column decoder must decode."""
        if rows is not None:
            self.fields |= rows.fields
        if "timestamp" in self._columns:
            self.fields |= {"offset"}  # to name the record of a timestamp that does not fit
        self._most_rows = MAX_ROWS

    def batches(self, columns: Columns, tp: TopicPartition) -> Iterator[pa.RecordBatch]:
        """`columns` of the partition `tp` in non-empty slices of at most MAX_ROWS rows and about MAX_BYTES bytes, or
        DECODED_ROWS and DECODED_BYTES."""
        if self._rows is not None:
            columns = self._rows.apply(columns)
        whole = {name: _array(columns, name, tp) for name in self._columns if name in _DECODED}
        schema = arrow_schema(self._columns)
        most_bytes = MAX_BYTES if self._decoder is None else DECODED_BYTES
        constants = _constants(tp, MAX_ROWS if self._decoder is None else DECODED_ROWS)
        ends, start = _content_ends(columns), 0
        while start < columns.num_rows:
            fitting = int(np.searchsorted(ends, ends[start] + most_bytes, side="right")) - 1
            count = min(max(fitting - start, 1), self._most_rows, columns.num_rows - start)
            arrays = [
                whole[name].slice(start, count) if name in whole else constants[name].slice(0, count)
                for name in self._columns
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            if self._decoder is not None:
                batch = self._decoder.decode(batch)
                fitting = batch.num_rows * DECODED_BYTES // max(batch.nbytes, 1)
                self._most_rows = min(max(fitting, MAX_ROWS), DECODED_ROWS)
            if batch.num_rows:
                yield batch
            start += count


def _array(columns: Columns, name: str, tp: TopicPartition) -> pa.Array:
    if name == "timestamp":
        try:
            return columns.timestamp_us()
        except OverflowError:
            raise _out_of_range(columns, tp) from None
    array = getattr(columns, _DECODED[name])
    assert array is not None, f"column {name} was not decoded"
    return array


def _out_of_range(columns: Columns, tp: TopicPartition) -> ConnectorError:
    """For a time of a record that Spark's type cannot hold. Spark's own source fails then, too."""
    row = columns.rows_beyond_microseconds()[0]
    return ConnectorError(
        "PYKAFKA_TIMESTAMP_OUT_OF_RANGE",
        f"The record at offset {columns.offset[row]} of topic '{tp.topic}', partition {tp.partition}, has the "
        f"timestamp {columns.timestamp[row]} ms, more than 292,000 years from 1970: Spark's timestamps cannot "
        "hold it. Leave out the column timestamp (option columns) or the record (option filterTimestampUntil).",
    )


@functools.lru_cache(maxsize=16)
def _constants(tp: TopicPartition, rows: int) -> dict[str, pa.Array]:
    # From buffers: with a scalar or a list pyarrow imports pandas, which takes every new worker a third of a second.
    name = tp.topic.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * len(name)
    return {
        "topic": pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(name * rows)),
        "partition": pa.Array.from_buffers(
            pa.int32(), rows, [None, pa.py_buffer(np.full(rows, tp.partition, np.int32))]
        ),
    }


def _content_ends(columns: Columns) -> Int64s:
    """As `_end_bytes`, of keys, values and headers together."""
    ends = np.zeros(columns.num_rows + 1, np.int64)
    for array in (columns.key, columns.value):
        if array is not None:
            ends += _end_bytes(array)
    if columns.headers is not None and columns.headers.null_count < columns.num_rows:
        ends += _end_bytes_of_headers(columns.headers)
    return ends


def _end_bytes(array: pa.Array) -> Int64s:
    """The offset buffer: where the first value begins, then where each value ends; rows + 1 numbers."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _end_bytes_of_headers(headers: pa.Array) -> Int64s:
    """The same for keys and values of all headers together."""
    ends = np.frombuffer(headers.buffers()[1], np.int32)[headers.offset : headers.offset + len(headers) + 1]
    return sum((_end_bytes(headers.values.field(name))[ends] for name in ("key", "value")), np.zeros(1, np.int64))
