"""What a restart or a cut leaves of the transactions in one log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.log.log import Log
from broker.log.producer_snapshot import snapshot_offsets
from broker.log.segment import segment_path
from broker.records.aborted_entries import AbortedEntry
from broker.records.control import ControlType
from tests.support.batches import append, batch, open_log
from tests.support.log_transactions import ALICE, BOB, Producers, committed_records, index_files

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


class TestAfterARestart:
    """What was open is open, and what was aborted is known, whatever way the log was left."""

    @pytest.fixture(params=["clean", "unclean", "unclean, fsynced", "no snapshot"])
    def reopen(self, request: pytest.FixtureRequest, directory: Path) -> Callable[[Log], Log]:
        def again(log: Log) -> Log:
            if request.param in ("clean", "no snapshot"):
                log.close()
            if request.param == "no snapshot":
                for path in directory.glob("*.snapshot"):
                    path.unlink()
            if request.param == "unclean, fsynced":
                log.flush()
            clean = request.param in ("clean", "no snapshot")
            return open_log(directory, clean=clean, recovery_point=log.recovery_point)

        return again

    def test_an_open_transaction_is_open(self, log: Log, producers: Producers, reopen: Callable[[Log], Log]) -> None:
        producers.send(BOB)
        producers.end(BOB, COMMIT, coordinator=6)
        producers.send(ALICE)
        log.roll()
        producers.send(BOB)
        producers.log = log = reopen(log)
        assert log.first_unstable_offset == 2
        entry = log.producers.get(BOB)
        assert entry is not None
        assert entry.coordinator_epoch == 6
        producers.send(ALICE)
        producers.abort(ALICE)
        assert log.first_unstable_offset == 3
        assert log.aborted.transactions_between(0, 9) == [(ALICE, 2)]

    def test_ended_ones_are_ended(self, log: Log, producers: Producers, reopen: Callable[[Log], Log]) -> None:
        producers.send(ALICE)
        producers.send(BOB)
        log.roll()
        producers.abort(ALICE)
        producers.commit(BOB)
        before = log.aborted.between(0, 9)
        log = reopen(log)
        assert log.first_unstable_offset is None
        assert log.aborted.between(0, 9) == before == [AbortedEntry(ALICE, 0, 2, 1)]
        assert committed_records(log) == [(1, b"1")]


class TestTruncation:
    def test_a_marker_that_is_cut_off_opens_its_transaction_again(
        self, directory: Path, log: Log, producers: Producers
    ) -> None:
        producers.send(BOB)
        producers.abort(BOB)
        producers.send(ALICE)
        end = producers.abort(ALICE)
        log.truncate_to(end)
        assert log.first_unstable_offset == 2
        assert log.aborted.transactions_between(0, 9) == [(BOB, 0)]
        assert len(segment_path(directory, 0, ".txnindex").read_bytes()) == 34

    def test_a_transaction_that_is_cut_off_was_never_there(
        self, directory: Path, log: Log, producers: Producers
    ) -> None:
        append(log, batch(b"x"))
        producers.send(ALICE)
        log.roll()
        producers.abort(ALICE)
        log.truncate_to(1)
        assert log.first_unstable_offset is None
        assert log.aborted.transactions_between(0, 9) == []
        assert index_files(directory) == []

    def test_a_segment_that_is_emptied_loses_its_file(self, directory: Path, log: Log, producers: Producers) -> None:
        producers.send(ALICE)
        log.roll()
        log.flush()
        producers.abort(ALICE)
        log.truncate_to(1)
        assert index_files(directory) == []
        assert log.first_unstable_offset == 0
        assert snapshot_offsets(directory) == [1]
        producers.abort(ALICE)
        assert log.aborted.transactions_between(0, 9) == [(ALICE, 0)]
