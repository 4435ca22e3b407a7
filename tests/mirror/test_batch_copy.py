"""Batches as the mirror produces them: the records stay what they are, and the bytes too where they can."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.client.produce_request import Stamp
from broker.mirror.batch_copy import BatchCopy, copy_batches
from broker.records.batch import (
    HEADER_SIZE,
    build_batch,
    parse_header,
    patch_log_append_time,
    rebuild_batch,
    verify_batch,
)
from broker.records.compression import Codec
from broker.records.control import ControlType, end_transaction_marker
from broker.records.record import Record, decode_records, encode_record
from tests.support.record_batches import NOW, Row, build, follow, rows

BIG = b"x" * (40 << 10)


class Sender:
    """Stamps batches as a producer does, and checks that each may be sent."""

    def __init__(self) -> None:
        self.sequence = 0
        self.copies: list[BatchCopy] = []

    def stamp(self) -> Stamp:
        return Stamp(77, 3, self.sequence)

    def copy(
        self, log: bytes, low: int = 0, aborted: Sequence[tuple[int, int]] = (), max_bytes: int = 1 << 20
    ) -> list[BatchCopy]:
        buffer = memoryview(bytearray(log))
        for copy in copy_batches(buffer, low=low, aborted=aborted, stamp=self.stamp, max_bytes=max_bytes):
            header = parse_header(copy.batch)
            verify_batch(copy.batch, 0, header)
            assert len(copy.batch) == header.size
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == self.stamp()
            assert header.is_transactional
            assert not header.is_control
            assert not header.is_log_append_time
            assert header.base_offset == 0
            assert header.last_offset_delta + 1 == header.record_count == sum(count for _, count in copy.runs)
            self.sequence += header.record_count
            self.copies.append(copy)
        return self.copies


def copied_records(copies: Sequence[BatchCopy]) -> list[Record]:
    """The records, with their offsets on the source and the timestamp type of the source's."""
    found: list[Record] = []
    for copy in copies:
        offsets = [first + index for first, count in copy.runs for index in range(count)]
        records = decode_records(copy.batch)
        found += (record._replace(offset=at) for at, record in zip(offsets, records, strict=True))
    return found


def sparse(kept: Sequence[int], length: int) -> bytes:
    """A batch of `length` offsets of which compaction has kept some."""
    records = b"".join(encode_record(at, at, b"k%d" % at, b"v", ()) for at in kept)
    return build_batch(
        records, len(kept), base_timestamp=NOW, max_timestamp=NOW + kept[-1], last_offset_delta=length - 1
    )


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches of any codec and size, some transactional, with markers between them, some with log append time."""
    batches: list[bytes] = []
    for _ in range(draw(st.integers(1, 8))):
        producer = draw(st.sampled_from([-1, 1, 2]))
        if producer > 0 and draw(st.booleans()):
            batches.append(end_transaction_marker(producer, 0, draw(st.sampled_from(ControlType)), 0, NOW))
        big = [Row(NOW, b"big", BIG)] if draw(st.integers(0, 3)) == 0 else []
        options = {"producer_id": producer, "producer_epoch": 0, "transactional": producer > 0}
        batch = bytearray(build(draw(rows) + big, codec=draw(st.sampled_from(Codec)), **options))
        if draw(st.integers(0, 3)) == 0:
            patch_log_append_time(batch, 0, parse_header(batch), NOW + 5)
        batches.append(bytes(batch))
    return follow(batches, draw(st.sampled_from([0, 1 << 40])), gap=draw(st.integers(0, 2)))


@settings(max_examples=60, deadline=None)
@given(logs(), st.data())
def test_records_are_equal_whatever_the_log_is_like(log: bytes, data: st.DataObject) -> None:
    end = parse_header(log).base_offset
    low = end + data.draw(st.integers(0, 50))
    aborted = [(producer, end) for producer in (1, 2) if data.draw(st.booleans())]
    expected = list(decode_records(log, low=low, aborted=aborted))
    copied = copied_records(Sender().copy(log, low, aborted))
    assert copied == [record._replace(timestamp_type=0) for record in expected]


def test_large_batches_keep_their_bytes() -> None:
    made = [build([Row(NOW, None, BIG), Row(NOW + 1, b"k", None)], codec=codec) for codec in (Codec.NONE, Codec.LZ4)]
    sender = Sender()
    copies = sender.copy(follow([made[0], made[0]], base_offset=100))
    assert [copy.runs for copy in copies] == [[(100, 2)], [(102, 2)]]
    assert [copy.batch[HEADER_SIZE:] for copy in copies] == [made[0][HEADER_SIZE:]] * 2


def test_a_compressed_batch_is_not_compressed_again() -> None:
    values = [Row(NOW, None, b"%d" % (number * 7919)) for number in range(3000)]
    made = build(values, codec=Codec.LZ4)
    assert 4096 < len(made) < 32768
    copies = Sender().copy(follow([made] * 3))
    assert [copy.batch[HEADER_SIZE:] for copy in copies] == [made[HEADER_SIZE:]] * 3


def test_small_batches_become_one() -> None:
    log = follow([build([Row(NOW + number, b"k", b"%d" % number)]) for number in range(50)])
    (copy,) = Sender().copy(log)
    assert copy.runs == [(0, 50)]
    assert [record.value for record in decode_records(copy.batch)] == [b"%d" % number for number in range(50)]


def test_a_batch_that_the_target_does_not_take_is_cut() -> None:
    made = [Row(NOW, b"%d" % number, BIG) for number in range(10)]
    copies = Sender().copy(follow([build(made), build(made[:1])], base_offset=7), max_bytes=100_000)
    assert [copy.runs for copy in copies] == [[(7, 2)], [(9, 2)], [(11, 2)], [(13, 2)], [(15, 2)], [(17, 1)]]
    assert max(len(copy.batch) for copy in copies) <= 100_000


def test_codecs_stay_apart() -> None:
    log = follow([build([Row(NOW, None, b"v")], codec=codec) for codec in Codec for _ in range(2)])
    assert [parse_header(copy.batch).codec for copy in Sender().copy(log)] == list(Codec)


def test_the_offsets_that_compaction_left_are_told() -> None:
    log = follow([sparse([1, 2, 5], 8), sparse([0, 7], 8)], base_offset=40)
    (copy,) = Sender().copy(log)
    assert copy.runs == [(41, 2), (45, 1), (48, 1), (55, 1)]
    assert [record.timestamp - NOW for record in decode_records(copy.batch)] == [1, 2, 5, 0, 7]


def test_a_tombstone_with_a_delete_horizon_keeps_its_timestamp() -> None:
    """KIP-534: compaction puts the horizon where the base timestamp was, and the records are relative to it."""
    made = bytearray(build([Row(NOW - 500, b"k", None), Row(NOW - 400, b"l", BIG)]))
    header = parse_header(made)
    made = bytearray(rebuild_batch(header, made[HEADER_SIZE:], 2, max_timestamp=NOW - 400, delete_horizon_ms=NOW - 500))
    (copy,) = Sender().copy(bytes(made))
    assert parse_header(made).delete_horizon_ms == NOW - 500
    assert parse_header(copy.batch).delete_horizon_ms is None
    assert [record.timestamp for record in decode_records(copy.batch)] == [NOW - 500, NOW - 400]
