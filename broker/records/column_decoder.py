"""Record batches to Arrow columns.

Called by columns.py only. First the *sections* (record_sections.py: which batches count, and their plain bytes). Then
the C kernel fills Arrow buffers in one pass, without a Python object per record. Without it, the loop of record.py
reads the records and pyarrow makes arrays of them, block by block, so that few are Python objects at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from broker.errors import CorruptBatch
from broker.records import native
from broker.records.batch import Buffer, parse_header, verify_batch
from broker.records.native import Kernel
from broker.records.record import record_blocks
from broker.records.record_sections import DecodeOptions, Fact, Int64s, Sections, read_sections

HEADERS_TYPE: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")

_MOST_MILLIS: Final = (2**63 - 1) // 1000

_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "timestamp_type": pa.int32(),
    "headers": HEADERS_TYPE,
}
FIELDS: Final = frozenset(_TYPES)
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
    exhausted: bool
    """whether no batch of the range is left in the chunk"""

    def timestamp_us(self) -> pa.Array:
        """The timestamps as Spark takes them: timestamp[us, UTC]. Raises OverflowError where one does not fit."""
        millis = self._milliseconds()
        if len(millis) and (millis.min() < -_MOST_MILLIS or millis.max() > _MOST_MILLIS):
            raise OverflowError(f"timestamps of {millis.min()} to {millis.max()} ms do not fit into microseconds")
        micros = millis * 1000
        return pa.Array.from_buffers(TIMESTAMP_TYPE, len(micros), [None, pa.py_buffer(micros)], null_count=0)

    def rows_beyond_microseconds(self) -> list[int]:
        """The rows whose timestamps do not fit: they are more than 292,000 years from 1970."""
        millis = self._milliseconds()
        return [int(row) for row in np.flatnonzero((millis < -_MOST_MILLIS) | (millis > _MOST_MILLIS))]

    def _milliseconds(self) -> Int64s:
        # pyarrow's own `to_numpy` imports pandas, which costs a new worker a third of a second.
        array, buffer = self.timestamp, self.timestamp.buffers()[1]
        return np.frombuffer(buffer or b"", np.int64)[array.offset : array.offset + len(array)]


def decode(chunk: Buffer, options: DecodeOptions) -> Columns:
    """See `columns.decode_columns`."""
    if native.kernel is not None and native.crc_in_kernel():
        columns = _decode_chunk(native.kernel, chunk, options)
        if columns is not None:
            return columns
    sections = read_sections(chunk, options)
    if native.kernel is None or len(sections) == 0:
        return _decode_plainly(sections, options)
    return _decode_natively(native.kernel, sections, options)


def _decode_plainly(sections: Sections, options: DecodeOptions) -> Columns:
    """Without the kernel. Raises CorruptBatch."""
    wanted, rows = options.fields, 0
    made: dict[str, list[pa.Array]] = {name: [] for name in wanted}
    for part, start, end, count, base_offset, last_offset, base_time, append_time in sections.facts.tolist():
        plain = bytes(memoryview(sections.parts[part])[start:end])
        section = plain, base_offset, last_offset - base_offset, base_time, append_time
        for records in record_blocks(section, count, with_headers="headers" in wanted):
            if records[0].offset < options.low or records[-1].offset >= options.high:
                records = [record for record in records if options.low <= record.offset < options.high]
            rows += len(records)
            for name, arrays in made.items():
                values = [getattr(record, name) for record in records]
                if name == "headers":
                    values = [[{"key": key, "value": value} for key, value in pairs] or None for pairs in values]
                arrays.append(pa.array(values, _TYPES[name]))
    columns = {
        name: None if name not in wanted else pa.concat_arrays(made[name] or [pa.array([], kind)])
        for name, kind in _TYPES.items()
    }
    return Columns(**columns, num_rows=rows, next_offset=sections.next_offset, exhausted=sections.exhausted)


T = TypeVar("T")

_MOST_BYTES: Final = 2**31 - 1
"""The most that Arrow's 32-bit offsets can address."""

_SMALLEST_HEADER: Final = 2
"""Bytes of a header without key and value: one byte for each length."""

_MOST_WITH_HEADERS: Final = 8 << 20
"""Records of more bytes are walked first to count their headers. The room for those that could be in them, six times
their bytes, is not paged in where there are none, but it has to be there."""

_SLACK: Final = 64
"""Room after the last field, because the kernel copies short fields in blocks."""


def _reserve(size: int, wanted: bool) -> pa.Buffer | None:
    """A buffer as large as could be needed; None for a column that is not `wanted`.

    It comes from pyarrow's pool, whose memory is paged in already (numpy's is two to three times slower). Unused memory
    is given back.
    """
    return pa.allocate_buffer(size, resizable=True) if wanted else None


def _reserve_lists(rows: int, wanted: bool) -> tuple[pa.Buffer | None, pa.Buffer | None]:
    """Edges and validity of an array whose elements differ in length."""
    return _reserve(4 * (rows + 1), wanted), _reserve((rows + 7) // 8, wanted)


def _reserve_fields(rows: int, size: int, wanted: frozenset[str], value_size: int) -> tuple[pa.Buffer | None, ...]:
    """The kernel's buffers of all fields but headers, for keys of `size` bytes and values of `value_size`."""
    key = *_reserve_lists(rows, "key" in wanted), _reserve(size, "key" in wanted)
    value = *_reserve_lists(rows, "value" in wanted), _reserve(value_size, "value" in wanted)
    offset, timestamp = (_reserve(8 * rows, name in wanted) for name in ("offset", "timestamp"))
    return *key, *value, offset, timestamp, _reserve(4 * rows, "timestamp_type" in wanted)


def _reserve_headers(rows: int, most: int, size: int) -> tuple[pa.Buffer | None, ...]:
    """The kernel's buffers of at most so many headers, whose keys and whose values have `size` bytes; None without."""
    has = most > 0
    key = _reserve(4 * (most + 1), has), _reserve(size, has)
    return *_reserve_lists(rows, has), *key, *_reserve_lists(most, has), _reserve(size, has)


def _columns(
    found: Sequence[int],
    fields: Sequence[pa.Buffer | None],
    room: Sequence[pa.Buffer | None],
    wanted: frozenset[str],
    next_offset: int,
    exhausted: bool,
) -> Columns:
    """Of the buffers of `_reserve_fields` and `_reserve_headers`, as the kernel has filled them."""
    count, key_size, key_nulls, value_size, value_nulls, *of_headers = found
    return Columns(
        key=_binary(count, fields[:3], key_size, key_nulls),
        value=_binary(count, fields[3:6], value_size, value_nulls),
        offset=_numbers(pa.int64(), count, fields[6]),
        timestamp=_numbers(pa.int64(), count, fields[7]),
        timestamp_type=_numbers(pa.int32(), count, fields[8]),
        headers=_native_headers(count, of_headers, room) if "headers" in wanted else None,
        num_rows=count,
        next_offset=next_offset,
        exhausted=exhausted,
    )


def _decode_natively(kernel: Kernel, sections: Sections, options: DecodeOptions) -> Columns:
    """The records of at least one section. Raises CorruptBatch."""
    parts, facts, wanted = sections.parts, sections.facts, options.fields
    most_rows = int(sections.of(Fact.COUNT).sum())
    size = int((sections.of(Fact.END) - sections.of(Fact.START)).sum())
    most_headers = size // _SMALLEST_HEADER if "headers" in wanted else 0
    if most_headers and size > _MOST_WITH_HEADERS:
        most_headers = _call_kernel(kernel.count_headers, parts, facts)
    data_size = min(size, _MOST_BYTES) + _SLACK
    fields = _reserve_fields(most_rows, data_size, wanted, data_size)
    room = _reserve_headers(most_rows, most_headers, data_size)
    found = _call_kernel(kernel.decode, parts, facts, options.low, options.high, (*fields, *room))
    return _columns(found, fields, room, wanted, sections.next_offset, sections.exhausted)


def _decode_chunk(kernel: Kernel, chunk: Buffer, options: DecodeOptions) -> Columns | None:
    """The records of a chunk of uncompressed batches, in one pass over it; None for any other, which is left as it was.
    Raises CorruptBatch."""
    view, wanted = memoryview(chunk), options.fields
    most_headers = len(view) // _SMALLEST_HEADER if "headers" in wanted else 0
    most_bytes = _MOST_WITH_HEADERS if most_headers else _MOST_BYTES
    if options.aborted or len(view) > min(options.max_bytes, most_bytes):
        return None
    counted = kernel.plain_rows(view, options.low, options.high)
    if counted is None or not counted[0]:
        return None
    rows, last_offset = counted
    in_place = options.consume and not view.readonly and "value" in wanted
    size = len(view) + _SLACK
    buffers = list(_reserve_fields(rows, size, wanted, 0 if in_place else size))
    room = _reserve_headers(rows, most_headers, size)
    given = view, options.low, options.high, options.check_crcs, rows, in_place, (*buffers, *room)
    *found, data, bad = _call_kernel(kernel.decode_plain, *given)
    if bad >= 0:
        verify_batch(view, bad, parse_header(view, bad))
    if in_place:
        buffers[5] = pa.py_buffer(view).slice(data, found[3])
    return _columns(found, buffers, room, wanted, max(options.low, last_offset + 1), exhausted=True)


def _call_kernel(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of the kernel. Raises CorruptBatch instead of ValueError."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise CorruptBatch(str(error)) from None


def _numbers(kind: pa.DataType, count: int, buffer: pa.Buffer | None) -> pa.Array | None:
    return None if buffer is None else pa.Array.from_buffers(kind, count, [None, buffer], null_count=0)


def _binary(count: int, buffers: Sequence[pa.Buffer | None], size: int, nulls: int) -> pa.Array | None:
    edges, validity, data = buffers
    if edges is None or data is None:
        return None
    if nulls == count:
        return pa.nulls(count, pa.binary())
    if data.size != size:
        data.resize(size, shrink_to_fit=True)
    return pa.Array.from_buffers(pa.binary(), count, [validity if nulls else None, edges, data], null_count=nulls)


def _header_keys(keys: pa.Array) -> pa.Array:
    """Binary header keys as text. Invalid UTF-8 becomes replacement characters, as in Java."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def _native_headers(rows: int, found: Sequence[int], room: Sequence[pa.Buffer | None]) -> pa.Array:
    """The list column; null, not empty, where a record has no headers, as Spark's Kafka source gives it."""
    count, lists_null, key_size, value_size, value_nulls = found
    edges, validity, key_edges, key_data, value_edges, value_validity, value_data = room
    if edges is None or key_edges is None or value_edges is None or lists_null == rows:
        return pa.nulls(rows, HEADERS_TYPE)
    for one in (key_edges, value_edges):
        one.resize(4 * (count + 1), shrink_to_fit=True)
    key, value = (key_edges, None, key_data), (value_edges, value_validity, value_data)
    pairs = pa.StructArray.from_arrays(
        [_header_keys(_binary(count, key, key_size, 0)), _binary(count, value, value_size, value_nulls)],
        fields=list(HEADERS_TYPE.value_type),
    )
    return pa.Array.from_buffers(
        HEADERS_TYPE, rows, [validity if lists_null else None, edges], null_count=lists_null, children=[pairs]
    )
