"""broker/records/columns.py, encoding: batch limits and refusals. Contents are compared in test_columns_parity.py."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.errors import BrokerError, ConfigError
from broker.records import column_encoder
from broker.records.batch import HEADER_SIZE, parse_header, verify_batch
from broker.records.columns import HEADERS_TYPE, decode_columns, encode_columns
from broker.records.compression import Codec
from tests.support.record_batches import NOW, follow

pytestmark = pytest.mark.usefixtures("implementation")

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
@pytest.mark.parametrize("most_bytes", [50_000, 1 << 30])
def test_every_batch_begins_at_offset_0_and_sequences_go_on(
    codec: Codec, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_encoder, "_MOST_BYTES", most_bytes)
    batches = encode_columns(None, VALUES, NOW, codec=codec, producer_id=3, producer_epoch=0, base_sequence=2**31 - 100)
    headers = [parse_header(batch) for batch in batches]
    assert len(headers) > 5
    assert {header.base_offset for header in headers} == {0}
    assert headers[0].base_sequence == 2**31 - 100
    for header, following in itertools.pairwise(headers):
        assert following.base_sequence == (header.last_sequence + 1) % 2**31


def test_much_is_written_in_parts_that_go_on_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = decode_columns(follow(encode_columns(KEYS, VALUES, NOW, base_sequence=5)))
    monkeypatch.setattr(column_encoder, "_MOST_BYTES", 50_000)
    batches = encode_columns(KEYS, VALUES, NOW, base_sequence=5)
    parts = decode_columns(follow(batches))
    assert (parts.key, parts.value, parts.offset) == (whole.key, whole.value, whole.offset)
    assert parse_header(batches[-1]).last_sequence == 3004


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
