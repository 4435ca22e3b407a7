"""broker/records/control.py"""

from __future__ import annotations

import contextlib

import pytest
from aiokafka.record import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords as KafkaPythonRecords

from broker.errors import CorruptBatch
from broker.records.batch import build_batch, parse_header, verify_batch, walk_batches
from broker.records.control import (
    AbortedTransactions,
    ControlType,
    EndMarker,
    end_transaction_marker,
    read_control_type,
    read_end_marker,
)
from tests.support.record_batches import NOW, Row, build, follow

ALICE, BOB = 11, 12


def data(producer: int, *, transactional: bool = True) -> bytes:
    return build([Row(NOW, None, b"x")], producer_id=producer, producer_epoch=0, transactional=transactional)


def marker(producer: int, control_type: ControlType) -> bytes:
    return end_transaction_marker(producer, 0, control_type, coordinator_epoch=3, timestamp=NOW)


def dropped_offsets(batches: list[bytes], aborted: list[tuple[int, int]]) -> list[int]:
    transactions = AbortedTransactions(aborted)
    chunk = follow(batches)
    return [h.base_offset for position, h in walk_batches(chunk) if transactions.drops(chunk, position, h)]


@pytest.mark.parametrize("control_type", ControlType)
def test_a_marker_is_one_for_other_clients_too(control_type: ControlType) -> None:
    batch = marker(ALICE, control_type)
    header = parse_header(batch)
    verify_batch(batch, 0, header)
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, True, ALICE)
    assert read_control_type(batch, 0, header) == control_type
    for parser in (AiokafkaRecords, KafkaPythonRecords):
        parsed = parser(batch).next_batch()
        assert parsed.is_control_batch
        (record,) = list(parsed)
        assert (record.timestamp, bytes(record.key)) == (NOW, bytes([0, 0, 0, control_type]))
        assert bytes(record.value) == bytes([0, 0, 0, 0, 0, 3])


def test_nothing_is_dropped_when_nothing_was_aborted() -> None:
    assert dropped_offsets([data(ALICE), marker(ALICE, ControlType.COMMIT)], []) == []


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    log = [data(ALICE), data(ALICE), marker(ALICE, ControlType.ABORT), data(ALICE), marker(ALICE, ControlType.COMMIT)]
    assert dropped_offsets(log, [(ALICE, 0)]) == [0, 1]


def test_an_aborted_transaction_begins_at_its_first_offset() -> None:
    log = [data(ALICE), marker(ALICE, ControlType.COMMIT), data(ALICE), marker(ALICE, ControlType.ABORT)]
    assert dropped_offsets(log, [(ALICE, 2)]) == [2]


def test_interleaved_producers_are_told_apart() -> None:
    log = [
        data(ALICE),
        data(BOB),
        marker(BOB, ControlType.COMMIT),
        data(ALICE),
        marker(ALICE, ControlType.ABORT),
        data(BOB),
    ]
    assert dropped_offsets(log, [(ALICE, 0)]) == [0, 3]


def test_one_producer_may_abort_twice() -> None:
    log = [data(ALICE), marker(ALICE, ControlType.ABORT), data(ALICE), marker(ALICE, ControlType.ABORT), data(ALICE)]
    assert dropped_offsets(log, [(ALICE, 2), (ALICE, 0)]) == [0, 2]


def test_records_outside_transactions_stay() -> None:
    log = [data(ALICE), data(ALICE, transactional=False), marker(ALICE, ControlType.ABORT)]
    assert dropped_offsets(log, [(ALICE, 0)]) == [0]


@pytest.mark.parametrize("section", [b"", b"\x10\0\0\0\x02\0", b"\x10\0\0\0\x7f\0\0\0\0", b"\x10\0\0\0\x08\0"])
def test_a_malformed_marker_is_corrupt(section: bytes) -> None:
    batch = build_batch(section, 1, producer_id=ALICE, transactional=True, control=True)
    with pytest.raises(CorruptBatch):
        read_control_type(batch, 0, parse_header(batch))


@pytest.mark.parametrize("control_type", ControlType)
def test_a_marker_tells_how_the_transaction_ended_and_who_ended_it(control_type: ControlType) -> None:
    batch = marker(ALICE, control_type)
    assert read_end_marker(batch, 0, parse_header(batch)) == EndMarker(ALICE, 0, control_type, 3)


def test_other_control_batches_are_no_end_marker() -> None:
    leader_change = build_batch(b"\x14\0\0\0\x08\0\0\0\2\0\0", 1, producer_id=ALICE, control=True)
    assert read_end_marker(leader_change, 0, parse_header(leader_change)) is None
    emptied = build_batch(b"", 0, producer_id=ALICE, transactional=True, control=True, last_offset_delta=0)
    assert read_end_marker(emptied, 0, parse_header(emptied)) is None


@given(st.binary(max_size=40))
def test_hostile_markers_raise_corrupt_batch_only(section: bytes) -> None:
    batch = build_batch(section, 1, producer_id=ALICE, transactional=True, control=True)
    with contextlib.suppress(CorruptBatch):
        read_end_marker(batch, 0, parse_header(batch))
