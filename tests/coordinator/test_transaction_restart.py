"""The transaction coordinator after a restart: open transactions go on, decisions are carried out."""

from __future__ import annotations

import contextlib

import pytest

from broker.coordinator.transaction_records import TransactionMetadata, TransactionState
from broker.errors import ErrorCode
from broker.records.control import ControlType
from tests.support.crashing import Crash, CrashPoint
from tests.support.transactions import P0, P1, TIMEOUT, Transactions, open_transaction, running_transactions


async def test_open_transaction_goes_on_after_a_restart() -> None:
    async with open_transaction(P0) as (transactions, producer):
        await transactions.restart()
        assert await transactions.add(producer, P1) is ErrorCode.none
        assert await transactions.end(producer) is ErrorCode.none
        assert transactions.markers.of(P0) == transactions.markers.of(P1) == [True]


@pytest.mark.parametrize("commit", [True, False])
async def test_what_was_decided_is_carried_out_after_a_restart(commit: bool) -> None:
    async with open_transaction(P0, P1) as (transactions, producer):
        transactions.markers.failing[P1] = ErrorCode.kafka_storage_error
        await transactions.end(producer, commit=commit)
        transactions.markers.failing.clear()
        await transactions.restart()
        assert transactions.markers.of(P1) == [commit]
        assert await transactions.end(producer, commit=commit) is ErrorCode.none
        assert await transactions.end(producer, commit=not commit) is ErrorCode.invalid_txn_state


async def test_any_prefix_of_the_log_leads_to_all_or_nothing() -> None:
    async with running_transactions() as transactions:
        producer = await transactions.begin()
        for commit in (True, False, True):
            await transactions.add(producer, P0)
            await transactions.add(producer, P1)
            await transactions.end(producer, commit=commit)
    partition = transactions.coordinator.partition_for("id")
    whole = transactions.store.records[partition]
    for length in range(len(whole) + 1):
        again = Transactions()
        if length:
            again.store.append(partition, whole[:length])
        async with running_transactions(again):
            wrote_before = again.markers.written[:]
            assert {tp for tp, _ in wrote_before} in (set(), {P0, P1})
            if length == 0:
                assert again.coordinator.describe("id") is ErrorCode.transactional_id_not_found
                continue
            current = again.stored()
            if current.state is TransactionState.ONGOING:
                again.advance(TIMEOUT + 20_000)
                assert {tp for tp, _ in again.markers.written} == current.partitions
                assert all(marker.control_type is ControlType.ABORT for _, marker in again.markers.written)
            assert await again.begin()


async def test_a_record_that_cannot_be_read_does_not_take_the_others_away(caplog: pytest.LogCaptureFixture) -> None:
    async with running_transactions() as transactions:
        await transactions.begin()
        partition = transactions.coordinator.partition_for("id")
        transactions.store.append(
            partition, [(b"\x00\x00\x00\x01x", b"\x00\x07"), (b"\x00", b"?"), (b"\x00\x09", b"?")]
        )
        await transactions.restart()
        assert transactions.stored().state is TransactionState.EMPTY
    assert "cannot be read" in caplog.text


# --- death at every step


async def commit_two_partitions(transactions: Transactions, *, commit: bool) -> ErrorCode:
    producer = await transactions.begin()
    await transactions.add(producer, P0, P1)
    return await transactions.end(producer, commit=commit)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("before", [True, False])
async def test_death_at_any_step_leaves_all_or_nothing(commit: bool, before: bool) -> None:
    step, died = 1, True
    while died:
        transactions = Transactions()
        crash = CrashPoint(step, before=before)
        store, markers = transactions.store, transactions.markers
        transactions.use(crash.guard(store, {"append"}), crash.guard(markers, {"write"}))
        await transactions.load()
        answer, died = None, True
        with contextlib.suppress(Crash):
            answer = await commit_two_partitions(transactions, commit=commit)
            await transactions.coordinator.close()
            died = False
        transactions.use(store, markers)
        await transactions.load()
        decided = transactions.coordinator.describe("id")
        if isinstance(decided, TransactionMetadata) and decided.state is TransactionState.ONGOING:
            assert not markers.written
            transactions.advance(TIMEOUT + 20_000)
            assert markers.of(P0) == markers.of(P1) == [False]
        else:
            assert set(markers.of(P0)) == set(markers.of(P1))
            assert set(markers.of(P0)) <= {commit}
        assert answer is None or set(markers.of(P0)) == {commit}
        assert died or markers.of(P0) == [commit]
        await transactions.coordinator.close()
        step += 1
    assert step > 6
