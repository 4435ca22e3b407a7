"""broker/records/batch.py"""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import CorruptBatch
from broker.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    build_batch,
    find_last_batch,
    is_transactional,
    parse_header,
    patch_base_offset,
    patch_for_transaction,
    patch_log_append_time,
    patch_max_timestamp,
    patch_producer,
    rebuild_batch,
    recompressed_batch,
    verify_batch,
    walk_batches,
)
from broker.records.compression import Codec
from broker.records.crc32c import crc32c
from broker.records.record import decode_records
from tests.support.record_batches import NOW, PARSERS, Row, build, follow, parse

ROWS = [Row(NOW, b"k", b"v"), Row(NOW + 5, None, b"w" * 100)]
BATCH = build(ROWS)
HOLLOW = build_batch(b"", 0, last_offset_delta=0)
"""Its records were compacted away: a header and nothing else."""


def test_the_header_tells_what_was_built() -> None:
    batch = build(ROWS, codec=Codec.LZ4, producer_id=7, producer_epoch=2, base_sequence=9, transactional=True)
    header = parse_header(batch)
    assert header.size == len(batch)
    assert (header.magic, header.codec, header.record_count) == (2, 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 9, 10)
    assert (header.is_transactional, header.is_control, header.is_log_append_time) == (True, False, False)
    verify_batch(batch, 0, header)


def test_every_field_stands_where_kafka_has_it() -> None:
    batch = build_batch(
        b"records",
        3,
        base_offset=1 << 40,
        leader_epoch=7,
        codec=Codec.ZSTD,
        base_timestamp=NOW,
        max_timestamp=NOW + 9,
        producer_id=5,
        producer_epoch=6,
        base_sequence=8,
        transactional=True,
        control=True,
        last_offset_delta=11,
    )
    assert parse_header(batch) == BatchHeader(
        1 << 40, 56, 7, 2, crc32c(batch[21:]), 4 + 0x10 + 0x20, 11, NOW, NOW + 9, 5, 6, 8, 3
    )
    assert batch[61:] == b"records"
    assert parse_header(build_batch(b"", 2)) == parse_header(HOLLOW)._replace(
        crc=crc32c(build_batch(b"", 2)[21:]), last_offset_delta=1, record_count=2
    )
    assert parse_header(HOLLOW) == BatchHeader(0, 49, -1, 2, crc32c(HOLLOW[21:]), 0, 0, -1, -1, -1, -1, -1, 0)


def test_a_header_is_read_from_any_position_where_it_is_whole() -> None:
    assert parse_header(b"xx" + BATCH[:61], 2) == parse_header(BATCH)
    with pytest.raises(CorruptBatch, match=": 60 bytes are too few"):
        parse_header(b"xx" + BATCH[:60], 2)


def test_compaction_keeps_offsets_producer_and_sequences_of_a_batch() -> None:
    header = parse_header(
        build_batch(
            b"abc",
            3,
            base_offset=10,
            leader_epoch=7,
            codec=Codec.LZ4,
            base_timestamp=NOW,
            max_timestamp=NOW + 9,
            producer_id=5,
            producer_epoch=6,
            base_sequence=8,
            transactional=True,
        )
    )
    fewer = rebuild_batch(header, b"a", 1, max_timestamp=NOW + 2)
    left = header._replace(length=50, crc=crc32c(fewer[21:]), max_timestamp=NOW + 2, record_count=1)
    assert parse_header(fewer) == left
    assert fewer[61:] == b"a"
    marked = rebuild_batch(header, b"a", 1, max_timestamp=NOW + 2, delete_horizon_ms=NOW + 100)
    found = parse_header(marked)
    assert found.delete_horizon_ms == NOW + 100
    assert found == left._replace(crc=crc32c(marked[21:]), attributes=0x53, base_timestamp=NOW + 100)
    emptied = rebuild_batch(found, b"", 0, max_timestamp=NOW + 2, delete_horizon_ms=NOW + 100)
    assert parse_header(emptied) == left._replace(
        length=49, crc=crc32c(emptied[21:]), attributes=0x10, base_timestamp=-1, record_count=0
    )


def test_only_codec_length_and_crc_change_when_a_batch_is_compressed_anew() -> None:
    batch = build_batch(b"abc", 2, base_offset=10, leader_epoch=7, codec=Codec.LZ4, producer_id=5, transactional=True)
    header = parse_header(batch)
    again = recompressed_batch(header, b"longer", Codec.GZIP)
    assert parse_header(again) == header._replace(length=55, crc=crc32c(again[21:]), attributes=0x11)
    assert again[61:] == b"longer"


def test_what_belongs_to_a_transaction_is_seen_in_the_bytes() -> None:
    batch = build_batch(b"", 0, producer_id=5, transactional=True, last_offset_delta=0)
    assert len(batch) == HEADER_SIZE
    assert is_transactional(batch) is True
    assert is_transactional(batch[:-1]) is False
    assert is_transactional(batch[:16] + b"\1" + batch[17:]) is False, "an older format has other bytes there"
    assert is_transactional(BATCH) is False


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(0, 200))
def test_the_last_whole_batch_is_found_by_lengths_alone(sizes: list[int], cut: int) -> None:
    log = b"".join(build([Row(NOW, None, b"v" * size)] * size) for size in sizes)
    chunk = memoryview(log)[: len(log) - cut] if cut < len(log) else memoryview(log)
    walked = [position for position, _ in walk_batches(chunk)]
    assert find_last_batch(chunk) == (walked[-1] if walked else 0, len(walked))


def test_a_length_that_no_batch_can_have_is_refused_without_walking() -> None:
    with pytest.raises(CorruptBatch, match=f"batch length 48 at byte {len(BATCH)}"):
        find_last_batch(BATCH + bytes(8) + (48).to_bytes(4, "big") + bytes(60))


def test_a_batch_without_records_is_a_whole_batch() -> None:
    verify_batch(HOLLOW, 0, parse_header(HOLLOW))
    assert [position for position, _ in walk_batches(HOLLOW * 3)] == [0, 61, 122]
    assert [position for position, _ in walk_batches(HOLLOW * 3, 61)] == [61, 122]
    assert find_last_batch(HOLLOW * 3) == (122, 3)
    assert find_last_batch(b"") == (0, 0)


def test_sequences_wrap_like_kafkas() -> None:
    header = parse_header(build(ROWS, base_sequence=2**31 - 1))
    assert header.last_sequence == 0


@pytest.mark.parametrize("cut", range(1, len(BATCH)))
def test_a_cut_batch_at_the_end_is_left_out(cut: int) -> None:
    chunk = follow([BATCH, BATCH], base_offset=40)[:-cut]
    assert [(position, header.base_offset) for position, header in walk_batches(chunk)] == [(0, 40)]


def test_a_length_no_batch_can_have_is_corrupt() -> None:
    chunk = bytearray(BATCH * 2)
    chunk[len(BATCH) + 8 : len(BATCH) + 12] = (HEADER_SIZE - 13).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match=f": batch length 48 at byte {len(BATCH)}$"):
        list(walk_batches(chunk))
    with pytest.raises(CorruptBatch, match=f": batch length 48 does not fit in {len(BATCH)} bytes$"):
        verify_batch(chunk, len(BATCH), parse_header(chunk, len(BATCH)), check_crc=False)


def test_a_batch_is_verified_where_it_stands_and_as_far_as_it_goes() -> None:
    header, chunk = parse_header(BATCH), b"xx" + BATCH
    verify_batch(chunk + b"more", 2, header)
    with pytest.raises(CorruptBatch, match=f": batch length {header.length} does not fit in {len(BATCH) - 1} bytes$"):
        verify_batch(chunk[:-1], 2, header)
    with pytest.raises(CorruptBatch, match="CRC of the batch at offset 0 does not match$"):
        verify_batch(chunk[:-1] + b"?", 2, header)


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


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_before_record_batches_are_named(magic: int) -> None:
    """A broker that was upgraded still has them; most are too short for a batch."""
    body = (
        struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW) if magic else b"") + struct.pack(">ii", -1, 3) + b"abc"
    )
    message = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    for look in (lambda data: list(walk_batches(data)), find_last_batch):
        with pytest.raises(CorruptBatch, match=rf"magic {magic} is not 2 \(record batches older than 0\.11\)"):
            look(message * 3)


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


def test_patches_reach_one_batch_of_several() -> None:
    chunk, second = bytearray(BATCH * 3), len(BATCH)
    before = parse_header(chunk, second)
    patch_base_offset(chunk, second, 9, leader_epoch=3)
    patch_producer(chunk, second, before, producer_id=5, epoch=1, sequence=77)
    patch_log_append_time(chunk, second, before, NOW + 999)
    after = parse_header(chunk, second)
    verify_batch(chunk, second, after)
    stamped = before._replace(
        base_offset=9,
        leader_epoch=3,
        crc=after.crc,
        attributes=0x08,
        max_timestamp=NOW + 999,
        producer_id=5,
        producer_epoch=1,
        base_sequence=77,
    )
    assert after == stamped
    patch_max_timestamp(chunk, second, after, NOW + 5)
    last = parse_header(chunk, second)
    verify_batch(chunk, second, last)
    assert last == stamped._replace(crc=last.crc, attributes=0, max_timestamp=NOW + 5)
    assert bytes(chunk) == BATCH + bytes(chunk[second : 2 * second]) + BATCH


def test_a_batch_that_is_put_into_a_transaction_keeps_all_else_but_its_delete_horizon() -> None:
    chunk, second = bytearray(BATCH * 2), len(BATCH)
    struct.pack_into(">h", chunk, second + 21, 0x48)  # log append time, and a delete horizon
    before = parse_header(chunk, second)
    patch_for_transaction(chunk, second, before, 5, 1, 77)
    after = parse_header(chunk, second)
    verify_batch(chunk, second, after)
    owner = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 77}
    assert after == before._replace(crc=after.crc, attributes=0x18, **owner)
    assert chunk[:second] == BATCH


def test_patches_write_checksums_of_all_32_bits() -> None:
    batch = bytearray(BATCH)
    seen = 0
    for number in range(20):
        patch_producer(batch, 0, parse_header(batch), producer_id=number, epoch=1, sequence=0)
        verify_batch(batch, 0, parse_header(batch))
        patch_log_append_time(batch, 0, parse_header(batch), NOW + number)
        verify_batch(batch, 0, parse_header(batch))
        seen |= parse_header(batch).crc
    assert seen == 2**32 - 1


def test_a_batch_may_hold_fewer_records_than_offsets() -> None:
    empty = build_batch(b"", 0, base_offset=10, last_offset_delta=4)
    assert parse_header(empty).next_offset == 15
    assert list(decode_records(empty)) == []
