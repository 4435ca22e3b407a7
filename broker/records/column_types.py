"""What the column codec gives: Arrow arrays of one run of records, and their types.

Built by columns_decode.py and columns_reference.py; `columns.py` hands it to callers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from broker.errors import CorruptBatch

__all__ = ["FIELDS", "HEADERS_TYPE", "NO_LIMIT", "TIMESTAMP_TYPE", "Columns", "header_keys"]

HEADERS_TYPE: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")

NO_LIMIT: Final = 2**63 - 1
"""An offset behind every record."""

_MOST_MILLIS: Final = (2**63 - 1) // 1000

FIELDS: Final = frozenset({"key", "value", "offset", "timestamp", "timestamp_type", "headers"})
"""What can be asked for: the columns of `Columns`."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Records as Arrow arrays of equal length. A column that was not asked for is None."""

    key: pa.Array
    """binary; null where a record has none"""
    value: pa.Array
    """binary; null for tombstones"""
    offset: pa.Array
    """int64"""
    timestamp: pa.Array
    """int64, ms"""
    timestamp_type: pa.Array
    """int32: 0 create time, 1 log append time"""
    headers: pa.Array | None
    """HEADERS_TYPE, null where a record has none"""
    num_rows: int
    """Length of the columns, known even if none was asked for"""
    next_offset: int
    """Where to go on: behind the last batch read, be it a control, aborted or unwanted one"""

    def timestamp_us(self) -> pa.Array:
        """The timestamps as Spark takes them, timestamp[us, UTC].

        Raises CorruptBatch for one that does not fit, more than 292,000 years from 1970.
        """
        # pyarrow would import pandas to multiply by a number, or for `to_numpy`: a third of a second of a new worker.
        array, buffer = self.timestamp, self.timestamp.buffers()[1]
        millis = np.frombuffer(buffer or b"", np.int64)[array.offset : array.offset + len(array)]
        if len(millis) and (millis.min() < -_MOST_MILLIS or millis.max() > _MOST_MILLIS):
            raise CorruptBatch(f"a timestamp is out of range: {millis.min()} to {millis.max()} ms")
        micros = millis * 1000
        return pa.Array.from_buffers(TIMESTAMP_TYPE, len(micros), [None, pa.py_buffer(micros)], null_count=0)


def header_keys(keys: pa.Array) -> pa.Array:
    """The binary keys of headers as text; those that are no UTF-8 with replacement characters, as Java reads them."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
