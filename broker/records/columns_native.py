"""Columns through the kernel: the buffers it fills and what becomes of them.

Called by columns_decode.py and columns_encode.py where `native.kernel` is there. Buffers come from
pyarrow's pool, which hands out memory that is paged in already (numpy's is two to three times
slower), as large as could be needed; what was not needed is given back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import pyarrow as pa

from broker.errors import CorruptBatch
from broker.records.column_sections import DecodeOptions, Sections
from broker.records.column_types import HEADERS_TYPE, Columns, header_keys
from broker.records.native import Kernel

__all__ = ["decode_natively"]

P = ParamSpec("P")
T = TypeVar("T")

_MOST_BYTES: Final = 2**31 - 1
"""What Arrow's 32-bit offsets can address."""

_SLACK: Final = 64
"""The kernel copies short fields in blocks: room for the last one."""


class _Reserved:
    """Buffers of columns with up to `rows` rows and `size` bytes; None where a column is not `wanted`."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._size = min(size, _MOST_BYTES) + _SLACK

    def numbers(self, width: int, wanted: bool) -> pa.Buffer | None:
        return _reserve(self._rows * width) if wanted else None

    def edges(self, wanted: bool) -> pa.Buffer | None:
        return _reserve(4 * (self._rows + 1)) if wanted else None

    def validity(self, wanted: bool) -> pa.Buffer | None:
        return _reserve((self._rows + 7) // 8) if wanted else None

    def data(self, wanted: bool) -> pa.Buffer | None:
        return _reserve(self._size) if wanted else None

    def binary(self, wanted: bool) -> tuple[pa.Buffer | None, ...]:
        return self.edges(wanted), self.validity(wanted), self.data(wanted)


def _reserve(size: int) -> pa.Buffer:
    return pa.allocate_buffer(size, resizable=True)


def decode_natively(kernel: Kernel, sections: Sections, options: DecodeOptions) -> Columns:
    """The records of `sections`, of which there is one at least. Raises CorruptBatch."""
    parts, facts, wanted = sections.parts, sections.facts, options.fields
    most_rows = int(sections.record_count.sum())
    size = int((sections.end - sections.start).sum())
    most_headers = _asked(kernel.count_headers, parts, facts) if "headers" in wanted else 0
    rows, pairs = _Reserved(most_rows, size), _Reserved(most_headers, size)
    key, value = rows.binary("key" in wanted), rows.binary("value" in wanted)
    offset, timestamp = rows.numbers(8, "offset" in wanted), rows.numbers(8, "timestamp" in wanted)
    timestamp_type = rows.numbers(4, "timestamp_type" in wanted)
    has = most_headers > 0
    lists = rows.edges(has), rows.validity(has)
    header_key, header_value = (pairs.edges(has), pairs.data(has)), pairs.binary(has)
    buffers = (*key, *value, offset, timestamp, timestamp_type, *lists, *header_key, *header_value)
    found = _asked(kernel.decode, parts, facts, options.low, options.high, buffers)
    count, key_size, key_nulls, value_size, value_nulls, *of_headers = found
    headers = None
    if has:
        headers = _headers(count, of_headers, lists, (header_key[0], None, header_key[1]), header_value)
    elif "headers" in wanted:
        headers = pa.nulls(count, HEADERS_TYPE)
    return Columns(
        key=_binary(count, key, key_size, key_nulls),
        value=_binary(count, value, value_size, value_nulls),
        offset=_numbers(pa.int64(), count, offset),
        timestamp=_numbers(pa.int64(), count, timestamp),
        timestamp_type=_numbers(pa.int32(), count, timestamp_type),
        headers=headers,
        num_rows=count,
        next_offset=sections.next_offset,
    )


def _asked(function: Callable[P, T], *arguments: P.args, **nothing: P.kwargs) -> T:
    """What the kernel answers. Raises CorruptBatch."""
    try:
        return function(*arguments, **nothing)
    except ValueError as error:
        raise CorruptBatch(str(error)) from None


def _numbers(kind: pa.DataType, count: int, buffer: pa.Buffer | None) -> pa.Array | None:
    return None if buffer is None else pa.Array.from_buffers(kind, count, [None, buffer], null_count=0)


def _binary(count: int, buffers: tuple[pa.Buffer | None, ...], size: int, nulls: int) -> pa.Array | None:
    edges, validity, data = buffers
    if edges is None or data is None:
        return None
    if nulls == count:
        return pa.nulls(count, pa.binary())
    data.resize(size, shrink_to_fit=True)
    return pa.Array.from_buffers(pa.binary(), count, [validity if nulls else None, edges, data], null_count=nulls)


def _headers(
    rows: int,
    found: list[int],
    lists: tuple[pa.Buffer | None, ...],
    key: tuple[pa.Buffer | None, ...],
    value: tuple[pa.Buffer | None, ...],
) -> pa.Array:
    """The list column; null, not empty, where a record has no headers, as Spark's Kafka source gives it."""
    count, lists_null, key_size, value_size, value_nulls = found
    if lists_null == rows:
        return pa.nulls(rows, HEADERS_TYPE)
    pairs = pa.StructArray.from_arrays(
        [header_keys(_binary(count, key, key_size, 0)), _binary(count, value, value_size, value_nulls)],
        fields=list(HEADERS_TYPE.value_type),
    )
    edges, validity = lists
    return pa.Array.from_buffers(
        HEADERS_TYPE, rows, [validity if lists_null else None, edges], null_count=lists_null, children=[pairs]
    )
