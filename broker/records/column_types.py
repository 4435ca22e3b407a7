"""The Arrow columns that a run of records is decoded to, and their types. Callers import them from columns.py."""

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
"""An offset after every record."""

_MOST_MILLIS: Final = (2**63 - 1) // 1000

FIELDS: Final = frozenset({"key", "value", "offset", "timestamp", "timestamp_type", "headers"})
"""The columns of `Columns` that a caller can ask for."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Records as Arrow arrays of equal length; a column that was not requested is None."""

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
    """length of the columns, even if none was requested"""
    next_offset: int
    """where to continue: after the last batch read, even if its records were skipped"""

    def timestamp_us(self) -> pa.Array:
        """The timestamps as Spark takes them: timestamp[us, UTC].

        Raises CorruptBatch for a timestamp that does not fit, more than 292,000 years from 1970.
        """
        # pyarrow's own multiply and `to_numpy` import pandas, which costs a new worker a third of a second.
        array, buffer = self.timestamp, self.timestamp.buffers()[1]
        millis = np.frombuffer(buffer or b"", np.int64)[array.offset : array.offset + len(array)]
        if len(millis) and (millis.min() < -_MOST_MILLIS or millis.max() > _MOST_MILLIS):
            raise CorruptBatch(f"a timestamp is out of range: {millis.min()} to {millis.max()} ms")
        micros = millis * 1000
        return pa.Array.from_buffers(TIMESTAMP_TYPE, len(micros), [None, pa.py_buffer(micros)], null_count=0)


def header_keys(keys: pa.Array) -> pa.Array:
    """Binary header keys as text. Invalid UTF-8 becomes replacement characters, as in Java."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
