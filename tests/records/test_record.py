"""broker/records/record.py: reading. Writing is covered with the builder."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from broker.errors import CorruptBatch
from broker.records.batch import build_batch, parse_header
from broker.records.compression import Codec
from broker.records.control import ControlType, end_transaction_marker
from broker.records.record import Record, decode_batch, decode_records, encode_record, size_bound
from broker.records.varint import encode_varint
from tests.support.record_batches import NOW, Row, build, follow, rows

V = encode_varint


def batch_of(*records: bytes, count: int | None = None, last_offset_delta: int = 10) -> bytes:
    return build_batch(
        b"".join(records),
        len(records) if count is None else count,
        base_timestamp=NOW,
        last_offset_delta=last_offset_delta,
    )


def framed(body: bytes) -> bytes:
    return V(len(body)) + body


@given(rows)
def test_the_bound_of_a_records_size_is_that_of_other_clients(rows: Sequence[Row]) -> None:
    for row in rows:
        bound = size_bound(row.key, row.value, row.headers)
        assert bound == DefaultRecordBatchBuilder.estimate_size_in_bytes(row.key, row.value, row.headers)
        assert bound >= len(build([row]))


def test_records_carry_offsets_of_their_batch() -> None:
    chunk = follow(
        [build([Row(NOW, b"a", b"1"), Row(NOW, b"b", b"2")]), build([Row(NOW, b"c", b"3")])], base_offset=7, gap=5
    )
    assert [(record.offset, record.key) for record in decode_records(chunk)] == [(7, b"a"), (8, b"b"), (14, b"c")]
    assert [record.key for record in decode_records(chunk, low=8)] == [b"b", b"c"]
    assert [record.key for record in decode_records(chunk, low=9)] == [b"c"]


def test_offsets_that_compaction_removed_stay_missing() -> None:
    chunk = batch_of(encode_record(0, 2, b"a", None), encode_record(0, 9, b"b", None))
    assert [(record.offset, record.key) for record in decode_records(chunk)] == [(2, b"a"), (9, b"b")]


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
    transaction = {"producer_id": 4, "producer_epoch": 0, "transactional": True}
    chunk = follow(
        [
            build([Row(NOW, None, b"aborted")], **transaction),
            end_transaction_marker(4, 0, ControlType.ABORT, 0, NOW),
            build([Row(NOW, None, b"kept")], **transaction),
            end_transaction_marker(4, 0, ControlType.COMMIT, 0, NOW),
        ]
    )
    assert [record.value for record in decode_records(chunk)] == [b"aborted", b"kept"]
    assert [record.value for record in decode_records(chunk, aborted=[(4, 0)])] == [b"kept"]


def test_a_damaged_batch_is_found_by_its_crc_unless_told_not_to_look() -> None:
    damaged = bytearray(build([Row(NOW, None, b"value")]))
    damaged[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        list(decode_records(damaged))
    assert [record.value for record in decode_records(damaged, check_crcs=False)] == [b"valud"]


def test_a_header_key_that_is_no_utf8_is_read_with_replacements() -> None:
    body = b"\0\0\0" + V(-1) + V(-1) + V(1) + V(2) + b"\xffk" + V(-1)
    assert list(decode_records(batch_of(framed(body)))) == [Record(0, NOW, None, None, (("\ufffdk", None),))]


MALFORMED = {
    "fewer records than the header says": batch_of(encode_record(0, 0, None, b""), count=2),
    "more bytes than records": batch_of(encode_record(0, 0, None, b"") + b"\0"),
    "negative record length": batch_of(V(-7) + bytes(20)),
    "record longer than the batch": batch_of(V(60) + b"\0\0\0\x01\x01\0"),
    "record shorter than its fields": batch_of(V(5) + b"\0\0\0\x01\x01\0"),
    "record longer than its fields": batch_of(framed(b"\0\0\0\x01\x01\0\0")),
    "negative key length": batch_of(framed(b"\0\0\0" + V(-2) + V(-1) + b"\0")),
    "negative value length": batch_of(framed(b"\0\0\0" + V(-1) + V(-3) + b"\0")),
    "key longer than the batch": batch_of(framed(b"\0\0\0" + V(100) + b"k" + V(-1) + b"\0")),
    "huge value length": batch_of(framed(b"\0\0\0" + V(-1) + V(1 << 62) + b"\0")),
    "negative header count": batch_of(framed(b"\0\0\0\x01\x01" + V(-1))),
    "more headers than bytes": batch_of(framed(b"\0\0\0\x01\x01" + V(1 << 40))),
    "null header key": batch_of(framed(b"\0\0\0\x01\x01" + V(1) + V(-1) + V(-1))),
    "the same offset twice": batch_of(encode_record(0, 1, None, b""), encode_record(0, 1, None, b"")),
    "offset before the batch": batch_of(framed(b"\0\0" + V(-1) + b"\x01\x01\0")),
    "offset behind the batch": batch_of(encode_record(0, 11, None, b"")),
    "varint of eleven bytes": batch_of(framed(b"\0" + b"\xff" * 10 + b"\x01\0\x01\x01\0")),
    "no bytes at all": batch_of(b"", count=1),
    "compressed garbage": build_batch(b"garbage", 1, codec=Codec.ZSTD),
}


@pytest.mark.parametrize("chunk", MALFORMED.values(), ids=MALFORMED)
def test_malformed_records_are_corrupt(chunk: bytes) -> None:
    with pytest.raises(CorruptBatch):
        list(decode_records(chunk))


@settings(max_examples=300)
@given(rows, st.data())
def test_hostile_bytes_raise_nothing_but_corrupt_batch(rows: Sequence[Row], data: st.DataObject) -> None:
    chunk = bytearray(build(rows[:5]))
    for _ in range(data.draw(st.integers(1, 3))):
        chunk[data.draw(st.integers(61, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    try:
        records = decode_batch(chunk, 0, parse_header(chunk))
    except CorruptBatch:
        return
    assert len(records) == len(rows[:5])
