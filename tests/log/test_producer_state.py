"""The rules of idempotent producers, and their snapshot file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.log.producer_snapshot import (
    decode_snapshot,
    drop_snapshots,
    encode_snapshot,
    load_snapshot,
    save_snapshot,
    snapshot_offsets,
)
from broker.log.producer_state import NO_OFFSET, AppendedBatch, ProducerEntry, ProducerStates
from broker.records.batch import BatchHeader, build_batch, parse_header
from broker.records.crc32c import crc32c
from tests.support.batches import NOW

INT_MAX = 2**31 - 1


def header(
    sequence: int,
    *,
    count: int = 1,
    epoch: int = 0,
    producer: int = 5,
    transactional: bool = False,
    control: bool = False,
) -> BatchHeader:
    return parse_header(
        build_batch(
            b"",
            count,
            max_timestamp=NOW,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            control=control,
        )
    )


def states(*headers: BatchHeader) -> ProducerStates:
    """The state after these batches, appended from offset 0 on."""
    result, offset = ProducerStates(), 0
    for one in headers:
        result.record(one, offset, NOW)
        offset += one.last_offset_delta + 1
    return result


def refused(state: ProducerStates, batch: BatchHeader, complaint: str = "") -> ErrorCode:
    with pytest.raises(BrokerError, match=complaint or "producer 5 ") as caught:
        state.check(batch)
    return caught.value.code


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerStates().check(header(17)) is None


def test_the_next_sequence_is_taken() -> None:
    assert states(header(0, count=3)).check(header(3)) is None


@pytest.mark.parametrize("sequence", [0, 2, 4, 9])
def test_any_other_sequence_is_out_of_order(sequence: int) -> None:
    complaint = f": producer 5 sent sequence {sequence}, expected 3$"
    assert refused(states(header(0, count=3)), header(sequence), complaint) is ErrorCode.out_of_order_sequence_number


def test_the_last_five_batches_are_known_again() -> None:
    state = states(*(header(sequence) for sequence in range(7)))
    for sequence in range(2, 7):
        assert state.check(header(sequence)) == AppendedBatch(sequence, sequence, 0, NOW)


def test_a_duplicate_gets_the_offsets_of_the_first_one() -> None:
    state = states(header(0, count=10), header(10, count=3))
    duplicate = state.check(header(10, count=3))
    assert duplicate == AppendedBatch(last_sequence=12, last_offset=12, offset_delta=2, timestamp=NOW)
    assert (duplicate.first_sequence, duplicate.base_offset) == (10, 10)


def test_an_older_duplicate_is_out_of_order() -> None:
    state = states(*(header(sequence) for sequence in range(7)))
    assert refused(state, header(1)) is ErrorCode.out_of_order_sequence_number


def test_a_batch_with_another_length_is_no_duplicate() -> None:
    assert refused(states(header(0, count=3)), header(0, count=2)) is ErrorCode.out_of_order_sequence_number


def test_an_older_epoch_is_fenced() -> None:
    state = states(header(0, epoch=3))
    complaint = ": producer 5 has epoch 3 by now, not 2$"
    assert refused(state, header(1, epoch=2), complaint) is ErrorCode.invalid_producer_epoch


def test_a_new_epoch_begins_at_zero() -> None:
    state = states(header(0), header(1))
    assert refused(state, header(2, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert state.check(header(0, epoch=1)) is None


def test_a_new_epoch_forgets_the_old_ones_batches() -> None:
    state = states(header(0), header(1), header(0, epoch=1))
    assert refused(state, header(1)) is ErrorCode.invalid_producer_epoch
    assert state.check(header(1, epoch=1)) is None


def test_of_an_epoch_that_only_a_marker_told_the_first_sequence_is_zero() -> None:
    state = states(header(0), header(1))
    state.end_transaction(5, 1, 0, NOW)
    assert refused(state, header(2)) is ErrorCode.invalid_producer_epoch
    assert refused(state, header(2, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert state.check(header(0, epoch=1)) is None


def test_sequences_wrap() -> None:
    state = states(header(INT_MAX - 1, count=3))
    duplicate = state.check(header(INT_MAX - 1, count=3))
    assert duplicate is not None
    assert (duplicate.first_sequence, duplicate.last_sequence) == (INT_MAX - 1, 0)
    assert state.check(header(1)) is None


def test_producers_do_not_see_each_other() -> None:
    state = states(header(0, producer=1), header(0, producer=2))
    assert state.check(header(1, producer=1)) is None
    assert len(state) == 2


def test_a_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    state = states(header(0), header(1, transactional=True), header(2, transactional=True))
    entry = state.get(5)
    assert entry is not None
    assert entry.transaction_first_offset == 1
    assert state.first_unstable_offset == 1
    assert state.end_transaction(5, 0, 2, NOW) == 1
    assert entry.transaction_first_offset == -1
    assert state.first_unstable_offset is None
    assert state.check(header(3)) is None


def test_of_several_open_transactions_the_oldest_counts_in_whatever_order_they_are_loaded() -> None:
    begins = {1: 30, 2: NO_OFFSET, 3: 10, 4: 20}
    state = ProducerStates(ProducerEntry(id, 0, transaction_first_offset=begin) for id, begin in begins.items())
    assert state.first_unstable_offset == 10
    assert [state.first_unstable_without(producer) for producer in (1, 3, 4)] == [10, 20, 10]
    assert state.end_transaction(3, 0, 0, NOW) == 10
    assert (state.first_unstable_offset, state.first_unstable_without(4)) == (20, 30)
    assert state.end_transaction(1, 0, 0, NOW) == 30
    assert (state.first_unstable_offset, state.first_unstable_without(4)) == (20, None)
    assert state.end_transaction(2, 0, 0, NOW) == NO_OFFSET
    assert state.end_transaction(4, 0, 0, NOW) == 20
    assert state.first_unstable_offset is None


def test_a_marker_sets_the_epochs_and_is_remembered_until_the_next_epoch() -> None:
    state = states(header(0, transactional=True))
    state.end_transaction(5, 1, 8, NOW + 7, offset=1)
    entry = state.get(5)
    assert entry == ProducerEntry(5, 1, coordinator_epoch=8, last_seen_ms=NOW + 7, last_marker_offset=1)
    state.end_transaction(5, 1, 8, NOW, offset=2)
    assert entry.last_marker_offset == 2
    state.record(header(0, epoch=2), 3, NOW)
    assert (entry.epoch, entry.last_marker_offset) == (2, NO_OFFSET)


def test_a_marker_of_an_older_epoch_or_coordinator_is_refused() -> None:
    state = states(header(0, epoch=3))
    state.end_transaction(5, 3, 8, NOW)
    state.check_marker(5, 3, 8)
    state.check_marker(6, 0, 0)
    with pytest.raises(BrokerError, match=": producer 5 has epoch 3 by now, not 2$") as caught:
        state.check_marker(5, 2, 8)
    assert caught.value.code is ErrorCode.invalid_producer_epoch
    complaint = ": a marker of producer 5 from a coordinator of epoch 7; there was one of epoch 8$"
    with pytest.raises(BrokerError, match=complaint) as caught:
        state.check_marker(5, 3, 7)
    assert caught.value.code is ErrorCode.transaction_coordinator_fenced


def test_a_late_marker_of_version_2_does_not_end_the_transaction_that_has_begun_since() -> None:
    state = states(header(0, epoch=3, transactional=True))
    state.check_marker(5, 3, 8)  # of version 1, whose transactions share an epoch
    state.check_marker(5, 4, 8, 2)
    state.end_transaction(5, 4, 8, NOW)
    state.check_marker(5, 4, 8, 2)  # sent again
    state.record(header(0, epoch=4, transactional=True), 2, NOW)
    with pytest.raises(BrokerError, match=": a late marker: producer 5 has begun a transaction of epoch 4 since") as it:
        state.check_marker(5, 4, 8, 2)
    assert it.value.code is ErrorCode.invalid_producer_epoch
    state.check_marker(5, 5, 8, 2)


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    state = states(header(0), header(1, transactional=True))
    complaint = ": producer 5 sent a batch outside of its transaction, which is open since offset 1$"
    assert refused(state, header(2), complaint) is ErrorCode.invalid_txn_state
    assert state.check(header(2, transactional=True)) is None


def test_idle_producers_are_forgotten() -> None:
    state = states(header(0, producer=1), header(0, producer=2), header(0, producer=3, transactional=True))
    state.record(header(1, producer=2), 3, NOW + 500)
    assert state.expire(NOW + 1000, 1000) == 1
    assert [entry.producer_id for entry in state] == [2, 3]


class TestSnapshot:
    """Kafka's format, and bytes that are not."""

    def test_one_entry_is_laid_out_as_kafkas(self) -> None:
        entry = struct.pack(">qhiqiqiq", 5, 1, 2, 2, 2, NOW, -1, -1)
        checked = struct.pack(">i", 1) + entry
        assert encode_snapshot(states(header(0, count=3, epoch=1))) == struct.pack(">hI", 1, crc32c(checked)) + checked

    def test_all_remembered_batches_come_back(self) -> None:
        before = states(*(header(sequence) for sequence in range(7)), header(0, producer=6, transactional=True))
        after = decode_snapshot(encode_snapshot(before), NOW)
        assert list(after) == list(before)

    def test_the_newest_batch_stands_last(self) -> None:
        """Kafka keeps the last entry of a producer that it reads."""
        data = encode_snapshot(states(header(0), header(1)))
        *_, last = struct.iter_unpack(">qhiqiqiq", data[10:])
        assert last[2] == 1

    def test_a_producer_known_by_a_marker_only_has_no_batch(self) -> None:
        before = ProducerStates()
        before.end_transaction(5, 0, 2, NOW)
        [entry] = decode_snapshot(encode_snapshot(before), NOW)
        assert not entry.batches

    def test_loading_counts_as_being_seen(self) -> None:
        [entry] = decode_snapshot(encode_snapshot(states(header(0))), NOW + 77)
        assert entry.last_seen_ms == NOW + 77

    def test_files_are_named_by_their_offset(self, tmp_path: Path) -> None:
        for offset in (100, 7, 3000):
            save_snapshot(tmp_path, offset, states(header(0)))
        assert snapshot_offsets(tmp_path) == [7, 100, 3000]
        drop_snapshots(tmp_path, low=50, high=1000)
        assert snapshot_offsets(tmp_path) == [100]

    def test_one_that_cannot_be_trusted_is_removed(self, tmp_path: Path) -> None:
        save_snapshot(tmp_path, 7, states(header(0)))
        [path] = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert load_snapshot(tmp_path, 7, NOW) is None
        assert snapshot_offsets(tmp_path) == []
        assert load_snapshot(tmp_path, 7, NOW) is None

    @given(st.binary(max_size=200))
    def test_hostile_bytes_raise_value_error_only(self, data: bytes) -> None:
        for candidate in (data, struct.pack(">hI", 1, crc32c(data)) + data):
            try:
                decode_snapshot(candidate, NOW)
            except ValueError:
                continue
