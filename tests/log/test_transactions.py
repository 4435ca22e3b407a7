"""Transactions in one log: what is open, what was aborted, and what is refused."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.errors import ErrorCode
from broker.log.aborted_index import AbortedIndex
from broker.log.inspection import check_partition
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.segment import segment_path
from broker.records.aborted_entries import AbortedEntry, decode_aborted
from broker.records.builder import BatchBuilder
from broker.records.control import ControlType
from tests.support.batches import NOW, append, append_as_coordinator, append_marker, batch, open_log
from tests.support.log_transactions import ALICE, BOB, CAROL, Producers, committed_records, index_files, refused

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


class TestOpenTransactions:
    def test_without_one_everything_is_stable(self, log: Log) -> None:
        append(log, batch(b"x"))
        append(log, batch(b"x", producer_id=ALICE, producer_epoch=0, sequence=0))
        assert log.first_unstable_offset is None

    @pytest.mark.parametrize("how", ControlType)
    def test_one_lasts_from_its_first_batch_to_its_marker(
        self, log: Log, producers: Producers, how: ControlType
    ) -> None:
        append(log, batch(b"x"))
        producers.send(ALICE)
        producers.send(ALICE)
        assert log.first_unstable_offset == 1
        assert producers.end(ALICE, how) == 3
        assert log.first_unstable_offset is None
        assert log.log_end_offset == 4

    def test_the_oldest_of_several_counts(self, log: Log, producers: Producers) -> None:
        for producer in (ALICE, BOB, CAROL):
            producers.send(producer)
        producers.commit(BOB)
        assert log.first_unstable_offset == 0
        producers.commit(ALICE)
        assert log.first_unstable_offset == 2
        producers.send(ALICE)
        producers.commit(CAROL)
        assert log.first_unstable_offset == 5

    def test_a_marker_without_a_transaction_leaves_nothing_but_its_epochs(
        self, log: Log, directory: Path, producers: Producers
    ) -> None:
        append_marker(log, ALICE, 4, ABORT, 7)
        assert (log.first_unstable_offset, log.aborted.transactions_between(0, 9), index_files(directory)) == (
            None,
            [],
            [],
        )
        entry = log.producers.get(ALICE)
        assert entry is not None
        assert (entry.epoch, entry.coordinator_epoch) == (4, 7)

    def test_an_open_one_keeps_its_producer_from_expiring(self, directory: Path) -> None:
        clock = ManualClock(NOW)
        log = open_log(directory, clock=clock)
        producers = Producers(log)
        producers.send(ALICE)
        clock.advance(10)
        assert log.producers.expire(clock.now_ms(), 5) == 0
        producers.commit(ALICE)
        clock.advance(10)
        assert log.producers.expire(clock.now_ms(), 5) == 1

    def test_deleted_records_are_no_part_of_it_any_more(self, log: Log, producers: Producers) -> None:
        """Kafka's `maybeIncrementFirstUnstableOffset`: it never lies before the log's start."""
        for _ in range(3):
            producers.send(ALICE)
        log.delete_records(2)
        assert log.first_unstable_offset == 2
        producers.abort(ALICE)
        assert log.first_unstable_offset is None


class TestFencing:
    def test_a_marker_of_an_older_epoch_is_refused(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE, epoch=3)
        assert refused(lambda: producers.end(ALICE, COMMIT, epoch=2)) is ErrorCode.invalid_producer_epoch
        assert (log.first_unstable_offset, log.log_end_offset) == (0, 1)

    def test_a_marker_of_a_newer_epoch_fences_the_producer(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE, epoch=3)
        producers.end(ALICE, ABORT, epoch=4)
        assert log.first_unstable_offset is None
        assert refused(lambda: producers.send(ALICE, epoch=3)) is ErrorCode.invalid_producer_epoch
        producers.send(ALICE, epoch=4)

    def test_a_marker_of_an_older_coordinator_is_refused(self, producers: Producers) -> None:
        producers.send(ALICE)
        producers.end(ALICE, COMMIT, coordinator=5)
        late = lambda: producers.end(ALICE, ABORT, coordinator=4)  # noqa: E731
        assert refused(late) is ErrorCode.transaction_coordinator_fenced
        producers.end(ALICE, ABORT, coordinator=5)

    def test_after_a_marker_with_a_new_epoch_the_sequence_begins_at_zero(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE)
        producers.end(ALICE, COMMIT, epoch=1)
        wrong = batch(b"x", producer_id=ALICE, producer_epoch=1, sequence=1, transactional=True)
        assert refused(lambda: append(log, wrong)) is ErrorCode.out_of_order_sequence_number

    def test_after_a_marker_with_the_same_epoch_the_sequence_goes_on(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE)
        producers.commit(ALICE)
        producers.send(ALICE)
        assert (log.log_end_offset, log.first_unstable_offset) == (3, 2)


class TestWhatIsTaken:
    def test_no_plain_batch_in_the_middle_of_a_transaction(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE)
        assert refused(lambda: producers.send(ALICE, transactional=False)) is ErrorCode.invalid_txn_state
        assert log.log_end_offset == 1

    def test_a_plain_batch_outside_of_one(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE, transactional=False)
        assert log.first_unstable_offset is None
        producers.send(ALICE)
        assert log.first_unstable_offset == 1

    def test_a_new_epoch_goes_on_with_the_transaction(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE, epoch=0)
        producers.send(ALICE, epoch=1)
        assert log.first_unstable_offset == 0
        producers.end(ALICE, ABORT, epoch=1)
        assert log.aborted.transactions_between(0, 9) == [(ALICE, 0)]

    def test_no_transaction_without_a_producer(self, log: Log) -> None:
        data = batch(b"x", transactional=True)
        assert refused(lambda: append(log, data)) is ErrorCode.invalid_record

    def test_a_duplicate_opens_nothing(self, log: Log, producers: Producers) -> None:
        data = batch(b"x", producer_id=ALICE, producer_epoch=0, sequence=0, transactional=True)
        append(log, data)
        producers.commit(ALICE)
        assert append(log, data).duplicate
        assert log.first_unstable_offset is None


class TestCoordinatorsBatches:
    """Offsets committed in a transaction: a producer id, no sequence."""

    @staticmethod
    def offsets(producer: int, epoch: int = 0) -> bytes:
        builder = BatchBuilder(max_bytes=1000, producer_id=producer, producer_epoch=epoch, transactional=True)
        builder.append(NOW, b"key", b"value")
        return builder.build()

    def test_clients_send_no_such_batch(self, log: Log) -> None:
        assert refused(lambda: append(log, self.offsets(ALICE))) is ErrorCode.invalid_record

    def test_they_open_transactions(self, log: Log, producers: Producers) -> None:
        append_as_coordinator(log, self.offsets(ALICE))
        append_as_coordinator(log, self.offsets(ALICE))
        assert log.first_unstable_offset == 0
        producers.abort(ALICE)
        assert log.aborted.transactions_between(0, 9) == [(ALICE, 0)]

    def test_several_producers_share_an_append(self, log: Log, producers: Producers) -> None:
        append_as_coordinator(log, self.offsets(ALICE) + batch(b"x") + self.offsets(BOB))
        assert log.log_end_offset == 3
        producers.commit(ALICE)
        assert log.first_unstable_offset == 2

    def test_an_older_epoch_is_fenced(self, log: Log) -> None:
        append_as_coordinator(log, self.offsets(ALICE, 2))
        late = lambda: append_as_coordinator(log, self.offsets(ALICE, 1))  # noqa: E731
        assert refused(late) is ErrorCode.invalid_producer_epoch


class TestAbortedTransactions:
    def test_a_log_without_any_has_no_file(self, directory: Path, producers: Producers) -> None:
        producers.send(ALICE)
        producers.commit(ALICE)
        producers.log.roll()
        producers.log.close()
        assert index_files(directory) == []

    def test_the_file_is_kafkas(self, directory: Path, producers: Producers) -> None:
        producers.send(BOB)
        producers.send(ALICE)
        producers.abort(ALICE)
        producers.abort(BOB)
        [name] = index_files(directory)
        assert name == "0" * 20 + ".txnindex"
        data = (directory / name).read_bytes()
        assert data[:34].hex() == "0000" + f"{ALICE:016x}{1:016x}{2:016x}{0:016x}"
        assert decode_aborted(data) == [AbortedEntry(ALICE, 1, 2, 0), AbortedEntry(BOB, 0, 3, 4)]

    def test_those_that_touch_a_range(self, log: Log, producers: Producers) -> None:
        producers.send(ALICE)  # 0
        producers.send(BOB)  # 1
        producers.abort(BOB)  # 2
        producers.send(BOB)  # 3
        producers.abort(ALICE)  # 4
        producers.abort(BOB)  # 5
        assert log.aborted.transactions_between(0, 1) == [(ALICE, 0)]
        assert log.aborted.transactions_between(1, 2) == [(BOB, 1), (ALICE, 0)]
        assert log.aborted.transactions_between(3, 4) == [(ALICE, 0), (BOB, 3)]
        assert log.aborted.transactions_between(4, 9) == [(ALICE, 0), (BOB, 3)]
        assert log.aborted.transactions_between(6, 9) == []

    def test_the_marker_may_stand_in_a_later_segment(self, directory: Path, log: Log, producers: Producers) -> None:
        producers.send(ALICE)
        for _ in range(3):
            log.roll()
            append(log, batch(b"x"))
        producers.abort(ALICE)
        assert index_files(directory) == [f"{3:020d}.txnindex"]
        assert log.aborted.transactions_between(0, 1) == [(ALICE, 0)]
        assert [offset for offset, _ in committed_records(log)] == [1, 2, 3]

    def test_a_fetch_names_only_those_near_what_it_brings(self, directory: Path) -> None:
        log = open_log(directory, LogConfig(index_interval_bytes=200))
        producers = Producers(log)
        for _ in range(100):
            producers.send(ALICE)
            producers.abort(ALICE)
        piece = log.read(0, 400)
        assert piece is not None
        assert 0 < len(log.aborted_in(0, piece, 200)) < 10
        assert committed_records(log) == []

    def test_retention_takes_the_file_with_the_segment(self, directory: Path) -> None:
        log = open_log(directory, LogConfig(retention_bytes=0))
        producers = Producers(log)
        producers.send(ALICE)
        producers.abort(ALICE)
        log.roll()
        producers.send(BOB)
        producers.abort(BOB)
        log.apply_retention()
        assert index_files(directory) == [f"{0:020d}.txnindex.deleted", f"{2:020d}.txnindex"]
        assert log.aborted.transactions_between(0, 9) == [(BOB, 2)]

    def test_they_are_read_from_the_file_again(self, directory: Path, log: Log, producers: Producers) -> None:
        producers.send(ALICE)
        producers.abort(ALICE)
        log.release()
        assert log.aborted.transactions_between(0, 9) == [(ALICE, 0)]
        log.close()
        reopened = open_log(directory)
        assert reopened.aborted.transactions_between(0, 9) == [(ALICE, 0)]
        Producers(reopened).abort(ALICE)
        assert len(reopened.aborted.between(0, 9)) == 1

    @pytest.mark.parametrize("damage", [None, b"short", b"\1" * 34, bytes(34) * 2])
    def test_a_broken_file_is_made_anew(
        self, directory: Path, log: Log, producers: Producers, damage: bytes | None
    ) -> None:
        producers.send(BOB)
        log.roll()
        producers.send(ALICE)
        producers.abort(BOB)
        log.roll()
        producers.abort(ALICE)
        log.close()
        path = segment_path(directory, 1, ".txnindex")
        sound = path.read_bytes()
        reopened = open_log(directory)
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        assert reopened.aborted.transactions_between(0, 9) == [(BOB, 0), (ALICE, 1)]
        assert path.read_bytes() == sound

    def test_one_that_cannot_be_noted_is_not_aborted(
        self, directory: Path, log: Log, producers: Producers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        producers.send(ALICE)
        size = log.size

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        with monkeypatch.context() as patched:
            patched.setattr(AbortedIndex, "note", full)
            assert refused(lambda: producers.abort(ALICE)) is ErrorCode.kafka_storage_error
        assert (log.size, log.log_end_offset, log.first_unstable_offset) == (size, 1, 0)
        assert producers.abort(ALICE) == 1
        assert log.aborted.transactions_between(0, 9) == [(ALICE, 0)]
        log.close()
        assert check_partition(directory) == []
