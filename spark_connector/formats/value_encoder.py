"""What every value encoder takes and returns: columns of rows in, the bytes of a key or value per row out.

The mirror of value_decoder.py. An encoder works on whole columns: no Python object per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa


class Encoded(NamedTuple):
    """`values` (binary) has an element per row, null where the row is null or bad; `bad` maps bad rows to reasons."""

    values: pa.Array
    bad: Mapping[int, str] = {}


class ValueEncoder(Protocol):
    """Encodes the keys or the values of a write. Used by one task at a time; not picklable.

    It is made for the schema and for the type of the rows (`pa.StructType`), on the driver, too: its constructor raises
    ConfigError for a schema that these columns cannot fill.
    """

    def encode(self, rows: pa.StructArray) -> Encoded:
        """Encode `rows`, of the type that the encoder was made for; no row is null. No row makes it raise: one that
        the schema refuses is bad, and its reason names the field."""


def as_list(column: pa.MapArray) -> pa.ListArray:
    """The entries of maps as structs `key` and `value`. Arrow's own cast loses fields of type null in slices."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    kind = pa.list_(entries.type)
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=[entries])
