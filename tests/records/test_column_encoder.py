"""broker/records/columns.py, encoding: batch limits and refusals. Contents are compared in test_columns_parity.py."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BrokerError, ConfigError
from broker.records import column_encoder
from broker.records.batch import HEADER_SIZE, parse_header, verify_batch
from broker.records.columns import HEADERS_TYPE, RecordColumns, decode_columns, encode_columns, encode_partitions
from broker.records.compression import Codec
from broker.records.record import decode_batch
from tests.support.record_batches import NOW, follow

pytestmark = pytest.mark.usefixtures("implementation")

binaries = st.none() | st.binary(max_size=60)
times = st.integers(0, 1 << 40)
pairs = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2)


def columns_of_rows(rows: list[tuple[Any, ...]]) -> RecordColumns:
    """(partition, key, value, time, headers) as columns."""
    headers = [[{"key": key, "value": value} for key, value in row[4]] for row in rows]
    key, value = (pa.array([row[index] for row in rows], pa.binary()) for index in (1, 2))
    return RecordColumns(key, value, pa.array([row[3] for row in rows], pa.int64()), pa.array(headers, HEADERS_TYPE))


def rows_of(batch: bytes) -> list[tuple[Any, ...]]:
    return [
        (one.key, one.value, one.timestamp, list(one.headers)) for one in decode_batch(batch, 0, parse_header(batch))
    ]


VALUES = pa.array([b"v" * (number % 200) for number in range(3000)], pa.binary())
KEYS = pa.array([b"key-%d" % number for number in range(3000)], pa.binary())


@pytest.mark.parametrize("limit", [HEADER_SIZE + 1, 300, 16384, 1 << 20])
def test_batches_keep_the_limit_and_use_most_of_it(limit: int) -> None:
    batches = encode_columns(KEYS, VALUES, NOW, max_bytes=limit)
    for batch in batches:
        header = parse_header(batch)
        verify_batch(batch, 0, header)
        assert len(batch) <= limit or header.record_count == 1
    if limit == 16384:
        assert min(map(len, batches[:-1])) > 0.95 * limit


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_every_batch_begins_at_offset_0_and_sequences_go_on(codec: Codec) -> None:
    batches = encode_columns(None, VALUES, NOW, codec=codec, producer_id=3, producer_epoch=0, base_sequence=2**31 - 100)
    headers = [parse_header(batch) for batch in batches]
    assert len(headers) > 5
    assert {header.base_offset for header in headers} == {0}
    assert headers[0].base_sequence == 2**31 - 100
    for header, following in itertools.pairwise(headers):
        assert following.base_sequence == (header.last_sequence + 1) % 2**31


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@given(data=st.data())
@settings(max_examples=30)
def test_each_partition_has_the_batches_that_its_rows_would_have_alone(codec: Codec, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.tuples(st.integers(0, count - 1), binaries, binaries, times, pairs), max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    limit = data.draw(st.integers(HEADER_SIZE + 1, 400))
    sequences = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))
    options: dict[str, Any] = {"codec": codec, "max_bytes": limit, "producer_id": 7, "transactional": True}
    found = encode_partitions(
        [columns_of_rows(rows[begin:end]) for begin, end in itertools.pairwise([0, *cuts, len(rows)])],
        np.array([row[0] for row in rows], np.int32),
        base_sequences=sequences,
        **options,
    )
    assert len(found) == count
    for partition, batches in enumerate(found):
        alone = [row for row in rows if row[0] == partition]
        got = [row for batch in batches for row in rows_of(batch)]
        assert got == [row[1:] for row in alone]
        sequence = sequences[partition]
        for batch in batches:
            header = parse_header(batch)
            verify_batch(batch, 0, header)
            assert header.base_sequence == sequence
            sequence = (sequence + header.record_count) % 2**31
            assert len(batch) <= limit or header.record_count == 1 or codec is not Codec.NONE
        if len(cuts) == 0 and count == 1:
            assert batches == encode_columns(*columns_of_rows(alone), base_sequence=sequences[0], **options)


def test_slices_of_larger_arrays_are_read_at_their_offset() -> None:
    headers = pa.array([[{"key": f"h{number}", "value": None}] for number in range(3000)], HEADERS_TYPE)
    timestamps = pa.array(np.arange(3000) + NOW)
    part = [column.slice(1000, 500) for column in (KEYS, VALUES, timestamps, headers)]
    columns = decode_columns(follow(encode_columns(*part)), headers=True)
    assert [columns.key, columns.value, columns.timestamp, columns.headers] == part


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([None, None, None], HEADERS_TYPE),
        pa.array([[], [], []], HEADERS_TYPE),
        pa.array([[], None, []], HEADERS_TYPE),
        pa.nulls(3, HEADERS_TYPE),
    ],
)
def test_empty_and_null_headers_are_none(headers: pa.Array) -> None:
    value = pa.array([b"a", b"b", b"c"], pa.binary())
    columns = decode_columns(b"".join(encode_columns(None, value, NOW, headers)), headers=True)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [None, None, None]


def test_headers_below_a_null_list_are_not_written() -> None:
    pairs = pa.array([{"key": "a", "value": b"1"}, {"key": "hidden", "value": b"2"}], HEADERS_TYPE.value_type)
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pairs, HEADERS_TYPE, mask=pa.array([False, True])
    )
    columns = decode_columns(b"".join(encode_columns(None, VALUES[:2], NOW, headers)), headers=True)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [[{"key": "a", "value": b"1"}], None]


def test_all_null_columns_are_written() -> None:
    nothing = pa.nulls(3, pa.binary())
    columns = decode_columns(b"".join(encode_columns(nothing, nothing, -1)))
    assert columns.key.to_pylist() == columns.value.to_pylist() == [None] * 3
    assert columns.timestamp.to_pylist() == [-1] * 3


@pytest.mark.parametrize("codec", Codec)
def test_no_rows_are_no_batches(codec: Codec) -> None:
    assert encode_columns(None, VALUES[:0], NOW, codec=codec) == []


THREE = VALUES[:3]
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "text": ((None, pa.array(["a", "b", "c"]), NOW), "column value is string: cast it to binary"),
    "key of text": ((pa.array(["a", "b", "c"]), THREE, NOW), "column key is string"),
    "fewer keys": ((KEYS[:2], THREE, NOW), "column key has 2 rows, column value 3"),
    "timestamps of Spark": ((None, THREE, pa.array([0, 0, 0], pa.timestamp("us"))), "cast it to int64"),
    "null timestamps": ((None, THREE, pa.array([1, None, 2])), "timestamp has nulls"),
    "timestamps too far apart": ((None, THREE, pa.array([-(2**62), 0, 2**62])), "too far apart"),
    "header without a key": (
        (None, THREE, NOW, pa.array([[{"key": None, "value": b""}], None, None], HEADERS_TYPE)),
        "header without a key",
    ),
    "unknown codec": ((None, THREE, NOW), "codec 9 is not known"),
}


@pytest.mark.parametrize(("columns", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_written_is_refused_with_a_reason(columns: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode_columns(*columns, codec=9 if "codec" in message else 0)


def test_a_record_of_a_gigabyte_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_encoder, "_LARGEST_RECORD", 1000)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        encode_columns(None, pa.array([b"v" * 1001], pa.binary()), NOW)
