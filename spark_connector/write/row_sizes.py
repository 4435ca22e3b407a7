"""Whether every row fits into a request, as Kafka's producer counts: key, value, headers and what surrounds them.

Called by rows_writer.py for the rows it is about to send; the sizes of a whole column at a time, and those of the few
rows that may be too large one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import BrokerError, ErrorCode
from broker.records.plain_bytes import Int64s
from broker.records.record import size_bound

__all__ = ["refuse_too_large"]

_MOST_OVERHEAD: Final = 100
"""Bytes that `size_bound` adds at most to a record without headers."""

_MOST_PER_HEADER: Final = 10


def refuse_too_large(rows: pa.Table, limit: int) -> None:
    """Raise BrokerError (message_too_large) when a row of `rows` is larger than `limit`, `max.request.size`.

    Columns as `to_rows` makes them, each in one chunk.
    """
    suspects = np.flatnonzero(_content_sizes(rows) > limit - _MOST_OVERHEAD)
    if not len(suspects):
        return
    found = rows.select([name for name in ("key", "value", "headers") if name in rows.schema.names]).take(suspects)
    largest = max(
        size_bound(row.get("key"), row["value"], [(one["key"], one["value"]) for one in row.get("headers") or ()])
        for row in found.to_pylist()
    )
    if largest > limit:
        raise BrokerError(
            ErrorCode.message_too_large,
            f"a row of {largest} bytes when serialized, with key and headers, exceeds kafka.max.request.size={limit}: "
            "raise it, and the topic's max.message.bytes",
        )


def _content_sizes(rows: pa.Table) -> Int64s:
    """Bytes of key, value and headers of each row, with what surrounds headers at most."""
    sizes = _lengths(rows["value"].chunk(0))
    names = rows.schema.names
    if "key" in names:
        sizes = sizes + _lengths(rows["key"].chunk(0))
    if "headers" in names:
        headers = rows["headers"].chunk(0)
        key, value = headers.flatten().flatten()
        before = np.concatenate(([0], np.cumsum(_lengths(key) + _lengths(value) + _MOST_PER_HEADER)))
        edges = np.concatenate(([0], np.cumsum(pc.list_value_length(headers).fill_null(0).to_numpy())))
        sizes = sizes + before[edges[1:]] - before[edges[:-1]]
    return sizes


def _lengths(column: pa.Array) -> Int64s:
    lengths: Int64s = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths
