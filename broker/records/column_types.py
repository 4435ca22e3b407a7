"""What the column codec gives: Arrow arrays of one run of records, and their types.

Built by columns_decode.py and columns_reference.py; `columns.py` hands it to callers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import CorruptBatch

__all__ = ["FIELDS", "HEADERS_TYPE", "NO_LIMIT", "TIMESTAMP_TYPE", "Columns", "header_keys"]

HEADERS_TYPE: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")

NO_LIMIT: Final = 2**63 - 1
"""An offset behind every record."""

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
        try:
            return pc.multiply_checked(self.timestamp, 1000).view(TIMESTAMP_TYPE)
        except pa.ArrowInvalid as error:
            raise CorruptBatch(f"a timestamp is out of range: {error}") from error


def header_keys(keys: pa.Array) -> pa.Array:
    """The binary keys of headers as text; those that are no UTF-8 with replacement characters, as Java reads them."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
