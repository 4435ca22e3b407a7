"""broker/records/batch.py"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import CorruptBatch
from broker.records.batch import (
    HEADER_SIZE,
    build_batch,
    find_last_batch,
    parse_header,
    patch_base_offset,
    patch_log_append_time,
    patch_producer,
    verify_batch,
    walk_batches,
)
from broker.records.compression import Codec
from broker.records.record import decode_records
from tests.support.record_batches import NOW, PARSERS, Row, build, follow, parse

ROWS = [Row(NOW, b"k", b"v"), Row(NOW + 5, None, b"w" * 100)]
BATCH = build(ROWS)


def test_the_header_tells_what_was_built() -> None:
    batch = build(ROWS, codec=Codec.LZ4, producer_id=7, producer_epoch=2, base_sequence=9, transactional=True)
    header = parse_header(batch)
    assert header.size == len(batch)
    assert (header.magic, header.codec, header.record_count) == (2, 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 9, 10)
    assert (header.is_transactional, header.is_control, header.is_log_append_time) == (True, False, False)
    verify_batch(batch, 0, header)


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(0, 200))
def test_the_last_whole_batch_is_found_by_lengths_alone(sizes: list[int], cut: int) -> None:
    log = b"".join(build([Row(NOW, None, b"v" * size)] * size) for size in sizes)
    chunk = memoryview(log)[: len(log) - cut] if cut < len(log) else memoryview(log)
    walked = [position for position, _ in walk_batches(chunk)]
    assert find_last_batch(chunk) == (walked[-1] if walked else 0, len(walked))


def test_a_length_that_no_batch_can_have_is_refused_without_walking() -> None:
    with pytest.raises(CorruptBatch, match=f"batch length 48 at byte {len(BATCH)}"):
        find_last_batch(BATCH + bytes(8) + (48).to_bytes(4, "big") + bytes(60))


def test_sequences_wrap_like_kafkas() -> None:
    header = parse_header(build(ROWS, base_sequence=2**31 - 1))
    assert header.last_sequence == 0


@pytest.mark.parametrize("cut", range(1, len(BATCH)))
def test_a_cut_batch_at_the_end_is_left_out(cut: int) -> None:
    chunk = follow([BATCH, BATCH], base_offset=40)[:-cut]
    assert [(position, header.base_offset) for position, header in walk_batches(chunk)] == [(0, 40)]


def test_a_length_no_batch_can_have_is_corrupt() -> None:
    chunk = bytearray(BATCH)
    chunk[8:12] = (HEADER_SIZE - 13).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="batch length 48"):
        list(walk_batches(chunk))


@given(st.integers(16, len(BATCH) - 1), st.integers(1, 255))
def test_every_changed_byte_behind_the_leader_epoch_is_found(position: int, change: int) -> None:
    changed = bytearray(BATCH)
    changed[position] ^= change
    with pytest.raises(CorruptBatch):
        verify_batch(changed, 0, parse_header(changed))


def test_an_old_magic_is_named() -> None:
    old = bytearray(BATCH)
    old[16] = 1
    with pytest.raises(CorruptBatch, match="magic 1"):
        verify_batch(old, 0, parse_header(old))


def test_without_the_crc_the_rest_is_still_checked() -> None:
    batch = bytearray(BATCH)
    batch[20] ^= 1  # the CRC itself
    verify_batch(batch, 0, parse_header(batch), check_crc=False)
    batch[22] |= 5  # a codec that is none
    with pytest.raises(CorruptBatch, match="codec 5"):
        verify_batch(batch, 0, parse_header(batch), check_crc=False)


@pytest.mark.parametrize(("record_count", "last_offset_delta"), [(-1, 1), (2, -1)])
def test_a_negative_count_or_delta_is_corrupt(record_count: int, last_offset_delta: int) -> None:
    batch = bytearray(BATCH)
    struct.pack_into(">i", batch, 57, record_count)
    struct.pack_into(">i", batch, 23, last_offset_delta)
    with pytest.raises(CorruptBatch, match=f"record count {record_count}, last delta {last_offset_delta}"):
        verify_batch(batch, 0, parse_header(batch), check_crc=False)


def test_patching_the_offset_leaves_the_crc_valid() -> None:
    batch = bytearray(BATCH)
    patch_base_offset(batch, 0, 1 << 40, leader_epoch=12)
    header = parse_header(batch)
    verify_batch(batch, 0, header)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (1 << 40, 12, (1 << 40) + 2)


def test_patching_time_or_producer_renews_the_crc() -> None:
    batch = bytearray(BATCH)
    patch_log_append_time(batch, 0, parse_header(batch), NOW + 999)
    patch_producer(batch, 0, parse_header(batch), producer_id=5, epoch=1, sequence=77)
    header = parse_header(batch)
    verify_batch(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 77)
    assert [(record.timestamp, record.timestamp_type) for record in decode_records(batch)] == [(NOW + 999, 1)] * 2
    for parser in PARSERS:
        assert parse(parser, bytes(batch)) == list(decode_records(batch))


def test_a_batch_may_hold_fewer_records_than_offsets() -> None:
    empty = build_batch(b"", 0, base_offset=10, last_offset_delta=4)
    assert parse_header(empty).next_offset == 15
    assert list(decode_records(empty)) == []
