"""broker/records/columns.py, decoding: what it promises, case by case. Parity with the reference is next door."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from broker.errors import ConfigError, CorruptBatch
from broker.records.batch import build_batch, parse_header, patch_base_offset, patch_log_append_time
from broker.records.columns import HEADERS_TYPE, Columns, decode_columns
from broker.records.compression import Codec
from broker.records.control import ControlType, end_transaction_marker
from broker.records.record import encode_record
from tests.records.test_record import MALFORMED
from tests.support.record_batches import NOW, Row, build, follow

pytestmark = pytest.mark.usefixtures("implementation")

TRANSACTION = {"producer_id": 4, "producer_epoch": 0, "transactional": True}


def batch(*values: bytes, **options: object) -> bytes:
    return build([Row(NOW, None, value) for value in values], **options)


def values(columns: Columns) -> list[bytes]:
    return list(columns.value.to_pylist())


def test_columns_nobody_asked_for_are_not_made() -> None:
    chunk = build([Row(NOW, b"k", b"v", (("h", b"x"),))])
    columns = decode_columns(chunk, fields=("value", "headers"), headers=False)
    assert (columns.key, columns.offset, columns.timestamp, columns.timestamp_type) == (None, None, None, None)
    assert values(columns) == [b"v"]
    assert columns.headers is not None
    for low, rows in ((0, 1), (1, 0)):
        nothing = decode_columns(chunk, fields=(), low=low)
        assert (nothing.value, nothing.headers, nothing.num_rows, nothing.next_offset) == (None, None, rows, 1)


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ConfigError, match="topic: no such column, use some of headers, key"):
        decode_columns(b"", fields=["key", "topic"])


def test_types_are_those_of_sparks_kafka_source() -> None:
    columns = decode_columns(build([Row(NOW, b"k", b"v", (("h", b"x"),))]), headers=True)
    assert columns.key.type == columns.value.type == pa.binary()
    assert columns.offset.type == columns.timestamp.type == pa.int64()
    assert columns.timestamp_us().type == pa.timestamp("us", "UTC")
    assert columns.timestamp_us().cast(pa.int64()).to_pylist() == [NOW * 1000]
    assert columns.timestamp_type.type == pa.int32()
    assert columns.headers is not None
    assert str(columns.headers.type) == "list<element: struct<key: string, value: binary>>"


def test_headers_are_null_where_a_record_has_none() -> None:
    rows = [Row(NOW, None, b""), Row(NOW, None, b"", (("a", b"1"), ("b", None))), Row(NOW, None, b"")]
    columns = decode_columns(build(rows), headers=True)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [None, [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None]
    columns.headers.validate(full=True)


def test_headers_are_left_out_unless_asked_for() -> None:
    assert decode_columns(build([Row(NOW, None, b"v", (("a", b"1"),))])).headers is None


def test_headers_that_no_record_has_are_all_null() -> None:
    columns = decode_columns(batch(b"v", b"w"), headers=True)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [None, None]
    assert columns.headers.type == HEADERS_TYPE


def test_a_header_key_that_is_no_utf8_is_read_with_replacements() -> None:
    record = encode_record(0, 0, None, None, [("?k", b"v")]).replace(b"?", b"\xff")
    columns = decode_columns(build_batch(record, 1), headers=True)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [[{"key": "\ufffdk", "value": b"v"}]]


@pytest.mark.parametrize("chunk", [b"", b"\0" * 30, batch(b"v")[:-1]])
def test_nothing_whole_gives_no_rows_and_no_progress(chunk: bytes) -> None:
    columns = decode_columns(chunk, headers=True, low=42)
    assert (columns.num_rows, columns.next_offset) == (0, 42)
    assert columns.headers is not None
    assert columns.headers.type == HEADERS_TYPE


def test_a_cut_tail_is_left_for_the_next_fetch() -> None:
    chunk = follow([batch(b"a"), batch(b"b"), batch(b"c" * 50)])
    for cut in range(1, len(batch(b"c" * 50)) + 1):
        columns = decode_columns(chunk[:-cut])
        assert (values(columns), columns.next_offset) == ([b"a", b"b"], 2)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type) -> None:
    assert values(decode_columns(kind(batch(b"a", b"b")))) == [b"a", b"b"]


@pytest.mark.parametrize("codec", Codec)
def test_only_offsets_from_low_up_to_high_are_given(codec: Codec) -> None:
    chunk = follow([batch(b"0", b"1", codec=codec), batch(b"2", b"3", codec=codec), batch(b"4", b"5")])
    assert values(decode_columns(chunk, low=1, high=5)) == [b"1", b"2", b"3", b"4"]
    assert values(decode_columns(chunk, low=2, high=4)) == [b"2", b"3"]
    assert values(decode_columns(chunk, low=3)) == [b"3", b"4", b"5"]
    assert decode_columns(chunk, low=1, high=2).next_offset >= 2
    nothing = decode_columns(chunk, low=6)
    assert (nothing.num_rows, nothing.next_offset) == (0, 6)


def test_batches_outside_the_range_are_not_even_read() -> None:
    broken = bytearray(batch(b"x"))
    broken[-2] ^= 1
    chunk = follow([bytes(broken), batch(b"good"), bytes(broken)])
    assert values(decode_columns(chunk, low=1, high=2)) == [b"good"]


def test_offsets_that_compaction_removed_stay_missing() -> None:
    records = encode_record(0, 2, b"a", b"1"), encode_record(0, 9, b"b", b"2")
    chunk = bytearray(build_batch(b"".join(records), 2, last_offset_delta=11))
    patch_base_offset(chunk, 0, 100, 0)
    columns = decode_columns(chunk)
    assert (columns.offset.to_pylist(), columns.next_offset) == ([102, 109], 112)


def test_an_empty_batch_that_compaction_left_is_progress() -> None:
    chunk = follow([batch(b"a"), build_batch(b"", 0, last_offset_delta=6)])
    columns = decode_columns(chunk)
    assert (values(columns), columns.next_offset) == ([b"a"], 8)


def test_control_batches_are_progress_but_no_rows() -> None:
    chunk = follow([batch(b"a", **TRANSACTION), end_transaction_marker(4, 0, ControlType.COMMIT, 0, NOW)])
    columns = decode_columns(chunk)
    assert (values(columns), columns.next_offset) == ([b"a"], 2)
    only_marker = decode_columns(chunk, low=1)
    assert (only_marker.num_rows, only_marker.next_offset) == (0, 2)


def test_aborted_transactions_are_progress_but_no_rows() -> None:
    chunk = follow(
        [
            batch(b"aborted", **TRANSACTION),
            batch(b"other"),
            end_transaction_marker(4, 0, ControlType.ABORT, 0, NOW),
            batch(b"kept", **TRANSACTION),
            batch(b"aborted too", producer_id=5, producer_epoch=0, transactional=True),
        ]
    )
    columns = decode_columns(chunk, aborted=[(4, 0), (5, 4)])
    assert (values(columns), columns.offset.to_pylist(), columns.next_offset) == ([b"other", b"kept"], [1, 3], 5)


def test_a_transaction_that_was_aborted_before_low_is_over() -> None:
    """As when decoding goes on in the middle of a chunk, with the chunk's list of aborted transactions."""
    chunk = follow(
        [
            batch(b"aborted", **TRANSACTION),
            end_transaction_marker(4, 0, ControlType.ABORT, 0, NOW),
            batch(b"kept", **TRANSACTION),
        ]
    )
    assert values(decode_columns(chunk, low=2, aborted=[(4, 0)])) == [b"kept"]


def test_log_append_time_is_the_batchs_time() -> None:
    stamped = bytearray(batch(b"a", b"b"))
    patch_log_append_time(stamped, 0, parse_header(stamped), NOW + 777)
    columns = decode_columns(follow([batch(b"z"), bytes(stamped)]))
    assert columns.timestamp.to_pylist() == [NOW, NOW + 777, NOW + 777]
    assert columns.timestamp_type.to_pylist() == [0, 1, 1]


def test_decoding_stops_before_too_many_bytes_and_goes_on_from_there() -> None:
    chunk = follow([batch(bytes(1000), b"last of %d" % number, codec=Codec.ZSTD) for number in range(5)])
    found: list[bytes] = []
    low = rounds = 0
    while low < 10:
        columns = decode_columns(chunk, low=low, max_bytes=2500)
        found += values(columns)[1::2]
        assert columns.next_offset > low
        low, rounds = columns.next_offset, rounds + 1
    assert found == [b"last of %d" % number for number in range(5)]
    assert rounds == 3
    assert decode_columns(chunk, max_bytes=1).num_rows == 2


def test_a_decompression_bomb_is_corrupt() -> None:
    bomb = batch(bytes(1 << 20), codec=Codec.ZSTD)
    assert decode_columns(bomb).num_rows == 1
    with pytest.raises(CorruptBatch, match="grows beyond 1048576 bytes"):
        decode_columns(bomb, batch_limit=1 << 20)


def test_a_damaged_batch_is_found_by_its_crc_unless_told_not_to_look() -> None:
    damaged = bytearray(batch(b"value"))
    damaged[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_columns(damaged)
    assert values(decode_columns(damaged, check_crcs=False)) == [b"valud"]


@pytest.mark.parametrize("chunk", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("neighbours", [0, 60], ids=["alone", "among others"])
def test_malformed_records_are_corrupt(chunk: bytes, neighbours: int) -> None:
    good = [batch(b"good", b"good too")] * neighbours
    with pytest.raises(CorruptBatch):
        decode_columns(follow([*good, chunk, *good]), headers=True)


@pytest.mark.parametrize("offsets", [(5, 5), (5, 4), (-1, 0), (2**63 - 2, 2**63 - 1)])
def test_batches_out_of_order_are_corrupt(offsets: Sequence[int]) -> None:
    chunk = bytearray()
    for offset in offsets:
        one = bytearray(batch(b"a", b"b"))
        patch_base_offset(one, 0, offset, 0)
        chunk += one
    with pytest.raises(CorruptBatch, match="a batch of offsets"):
        decode_columns(chunk)


def test_timestamps_beyond_64_bits_are_corrupt() -> None:
    chunk = build_batch(encode_record(10, 0, None, None), 1, base_timestamp=2**63 - 5)
    with pytest.raises(CorruptBatch, match="64 bits"):
        decode_columns(chunk)


def test_timestamps_that_spark_cannot_hold_are_refused_by_name() -> None:
    columns = decode_columns(build([Row(2**62, None, None)]))
    assert columns.timestamp.to_pylist() == [2**62]
    assert columns.rows_beyond_microseconds() == [0]
    with pytest.raises(OverflowError, match=str(2**62)):
        columns.timestamp_us()


def test_a_length_that_no_batch_can_have_is_corrupt_but_behind_the_range() -> None:
    chunk = follow([batch(b"a"), batch(b"b")]) + bytes(61)
    with pytest.raises(CorruptBatch, match="length at byte"):
        decode_columns(chunk)
    assert values(decode_columns(chunk, high=1)) == [b"a"]
