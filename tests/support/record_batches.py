"""Records and batches for the codec's tests: hypothesis strategies, and two independent parsers as oracles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import aiokafka.record
import kafka.record
import pyarrow as pa
from hypothesis import strategies as st

from broker.records.batch import parse_header, patch_base_offset
from broker.records.builder import BatchBuilder
from broker.records.column_decoder import HEADERS_TYPE
from broker.records.record import Header, Record

PARSERS: list[Callable[[bytes], Any]] = [aiokafka.record.MemoryRecords, kafka.record.MemoryRecords]

NOW = 1_760_000_000_000


class Row(NamedTuple):
    """What a producer gives."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    def __repr__(self) -> str:
        """Long fields cut, for a failing example should fit on a screen."""
        key, value = (f"{len(field)} bytes" if field and len(field) > 60 else field for field in self[1:3])
        return f"Row({self.timestamp}, {key!r}, {value!r}, {len(self.headers)} headers)"


def _bytes_around(*sizes: int) -> st.SearchStrategy[bytes]:
    """Short ones, and lengths at which a varint grows."""
    edges = [st.binary(min_size=1, max_size=1).map(lambda byte, size=size: byte * size) for size in sizes]  # type: ignore[misc]
    return st.one_of(st.binary(max_size=12), *edges)


_fields = st.none() | _bytes_around(63, 64, 8191, 8192)
_timestamps = st.one_of(
    st.integers(NOW - 70, NOW + 9000), st.integers(0, 1 << 41), st.integers(-1, 1 << 60), st.just(NOW)
)
_header = st.tuples(st.text(max_size=5), st.none() | _bytes_around(70))
_headers = st.just(()) | st.lists(_header, max_size=4).map(tuple)

rows = st.lists(st.builds(Row, _timestamps, _fields, _fields, _headers), min_size=1, max_size=40)
"""Rows as awkward as Kafka allows: nulls, empties, long fields, times that go backwards, headers."""


def build(rows: Sequence[Row], **options: Any) -> bytes:
    """One batch of all rows, base offset 0."""
    builder = BatchBuilder(max_bytes=1 << 30, **options)
    for row in rows:
        assert builder.append(*row)
    return builder.build()


def follow(batches: Sequence[bytes], base_offset: int = 0, gap: int = 0) -> bytes:
    """The batches behind each other as a log keeps them, `gap` offsets missing between any two."""
    joined = bytearray()
    for batch in batches:
        position = len(joined)
        joined += batch
        patch_base_offset(joined, position, base_offset, leader_epoch=0)
        base_offset = parse_header(joined, position).next_offset + gap
    return bytes(joined)


def parse(parser: Callable[[bytes], Any], chunk: bytes) -> list[Record]:
    """The records of `chunk` as another client's parser reads them."""
    batches = parser(chunk)
    records = []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        for record in batch:
            headers = tuple((key, None if value is None else bytes(value)) for key, value in record.headers)
            records.append(
                Record(record.offset, record.timestamp, record.key, record.value, headers, record.timestamp_type)
            )
    return records


def columns_of(rows: Sequence[Row]) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """key, value, timestamp, headers as Arrow arrays."""
    pairs = [[{"key": key, "value": value} for key, value in row.headers] or None for row in rows]
    return (
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.timestamp for row in rows], pa.int64()),
        pa.array(pairs, HEADERS_TYPE),
    )
