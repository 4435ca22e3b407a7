"""The running transaction coordinator: storing, markers, time-outs, expiry, cancelled callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import chain

import pytest

from broker.config.setting_groups import TransactionSettings
from broker.coordinator import transaction_shard
from broker.coordinator.record_format import KeyValue
from broker.coordinator.sharded_coordinator import partition_for
from broker.coordinator.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    encode_transaction,
    encode_transaction_key,
)
from broker.coordinator.transaction_shard import MARKER_RETRY_S
from broker.coordinator.transaction_state import MAX_EPOCH, ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.log.producer_state import ProducerStates
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header
from broker.records.control import BUMPS_EPOCH, ControlType, EndMarker
from tests.support.coordinators import settle
from tests.support.raw_requests import batch
from tests.support.record_stores import GatedRecordStore, SyncingRecordStore
from tests.support.transactions import (
    P0,
    P1,
    P2,
    PARTITIONS,
    TIMEOUT,
    MemoryMarkers,
    Transactions,
    open_transaction,
    ready,
    running_transactions,
)

RETRY_MS = int(MARKER_RETRY_S * 1_000)


@pytest.mark.parametrize("commit", [True, False])
async def test_markers_go_to_every_partition_and_the_transaction_is_complete(commit: bool) -> None:
    async with running_transactions() as transactions:
        producer = await transactions.begin()
        assert await transactions.add(producer, P0, P1) is ErrorCode.none
        assert await transactions.add(producer, P2) is ErrorCode.none
        assert await transactions.end(producer, commit=commit) is ErrorCode.none
        assert {tp for tp, _ in transactions.markers.written} == {P0, P1, P2}
        for _, marker in transactions.markers.written:
            assert marker == EndMarker(*producer, ControlType(commit), 5)
        complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        assert transactions.stored().state is complete


async def test_what_takes_no_wait_is_answered_at_once() -> None:
    async with running_transactions() as transactions:
        producer = await transactions.begin()
        assert transactions.coordinator.add_partitions("id", producer, {P0}) is ErrorCode.none
        assert transactions.coordinator.end("id", producer, commit=True) is ErrorCode.none
        assert transactions.markers.of(P0) == [True]


async def test_whoever_knows_id_and_epoch_may_end_the_transaction() -> None:
    async with open_transaction(P0) as (transactions, producer):
        somebody_else = ProducerIdAndEpoch(producer.producer_id, producer.epoch)
        assert await transactions.end(somebody_else) is ErrorCode.none
        assert await transactions.end(producer) is ErrorCode.none  # sent again
        assert transactions.markers.of(P0) == [True]


async def test_decision_is_stored_before_any_marker_is_written() -> None:
    store = GatedRecordStore()
    async with open_transaction(P0, of=Transactions(store)) as (transactions, producer):
        store.gate.clear()
        ending = asyncio.ensure_future(transactions.end(producer))
        await store.until_waiting()
        assert not transactions.markers.written
        assert not ending.done()
        assert await transactions.add(producer, P1) is ErrorCode.concurrent_transactions
        store.gate.set()
        assert await ending is ErrorCode.none
        await settle()
        assert transactions.markers.of(P0) == [True]
        assert transactions.stored().state is TransactionState.COMPLETE_COMMIT


async def test_caller_that_goes_away_does_not_hold_the_decision_up() -> None:
    store = SyncingRecordStore()
    store.gate.set()
    async with open_transaction(P0, of=Transactions(store)) as (transactions, producer):
        store.gate.clear()
        ending = asyncio.ensure_future(transactions.end(producer))
        await settle()
        ending.cancel()
        store.gate.set()
        await settle()
        assert transactions.markers.of(P0) == [True]
        assert transactions.stored().state is TransactionState.COMPLETE_COMMIT


async def test_decision_that_cannot_be_stored_is_refused_and_may_be_taken_anew() -> None:
    async with open_transaction(P0) as (transactions, producer):
        transactions.store.fail_with = BrokerError(ErrorCode.kafka_storage_error)
        assert await transactions.end(producer) is ErrorCode.not_coordinator
        assert not transactions.markers.written
        transactions.store.fail_with = None
        assert await transactions.end(producer, commit=False) is ErrorCode.none
        assert transactions.markers.of(P0) == [False]


async def test_marker_that_cannot_be_written_is_tried_again_and_nothing_begins_before() -> None:
    async with open_transaction(P0, P1) as (transactions, producer):
        transactions.markers.failing[P1] = ErrorCode.kafka_storage_error
        assert await transactions.end(producer) is ErrorCode.none  # decided
        assert transactions.stored().state is TransactionState.PREPARE_COMMIT
        assert await transactions.add(producer, P0) is ErrorCode.concurrent_transactions
        transactions.advance(RETRY_MS)
        assert not transactions.markers.of(P1)
        transactions.markers.failing.clear()
        transactions.advance(RETRY_MS)
        assert transactions.markers.of(P1) == [True]
        assert await transactions.add(producer, P0) is ErrorCode.none


@pytest.mark.parametrize("failing", [P0, P1, P2])
async def test_partition_that_takes_no_marker_leaves_the_others_alone(failing: TopicPartition) -> None:
    async with open_transaction(P0, P1, P2) as (transactions, producer):
        transactions.markers.failing[failing] = ErrorCode.kafka_storage_error
        await transactions.end(producer)
        transactions.advance(5 * RETRY_MS)
        assert sorted(tp for tp, _ in transactions.markers.written) == sorted({P0, P1, P2} - {failing})
        transactions.markers.failing.clear()
        transactions.advance(RETRY_MS)
        assert sorted(tp for tp, _ in transactions.markers.written) == [P0, P1, P2]
        assert transactions.stored().state is TransactionState.COMPLETE_COMMIT


async def test_completion_is_stored_with_the_next_record() -> None:
    async with open_transaction(P0) as (transactions, producer):
        await transactions.end(producer)
        appends = transactions.store.appends
        assert stored_states(transactions)[-1] is TransactionState.PREPARE_COMMIT
        await transactions.add(producer, P0)
        assert transactions.store.appends == appends + 1
        assert stored_states(transactions)[-2:] == [TransactionState.COMPLETE_COMMIT, TransactionState.ONGOING]


async def test_completion_is_stored_when_the_broker_stops() -> None:
    async with open_transaction(P0) as (transactions, producer):
        await transactions.end(producer)
    assert stored_states(transactions)[-1] is TransactionState.COMPLETE_COMMIT


async def test_completion_that_cannot_be_stored_is_tried_again() -> None:
    async with open_transaction(P0) as (transactions, producer):
        await transactions.end(producer)
        transactions.store.fail_with = BrokerError(ErrorCode.kafka_storage_error)
        assert await transactions.add(producer, P0) is ErrorCode.not_coordinator
        transactions.store.fail_with = None
        transactions.advance(RETRY_MS)
    assert stored_states(transactions)[-1] is TransactionState.COMPLETE_COMMIT


async def test_completion_that_is_tried_again_does_not_come_behind_the_next_transaction() -> None:
    class RefusesCompletions(SyncingRecordStore):
        refuses = True

        def append(
            self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
        ) -> Awaitable[None] | None:
            states = [decode_transaction(value or b"").state for _, value in records]
            if self.refuses and TransactionState.COMPLETE_COMMIT in states:
                raise BrokerError(ErrorCode.kafka_storage_error)
            return super().append(partition, records, producer)

    store = RefusesCompletions()
    store.gate.set()
    async with open_transaction(P0, of=Transactions(store)) as (transactions, producer):
        await transactions.end(producer)
        await settle()
        store.refuses = False
        store.gate.clear()
        adding = asyncio.ensure_future(transactions.add(producer, P1))
        await settle()
        transactions.advance(RETRY_MS)
        store.gate.set()
        assert await adding is ErrorCode.none
        transactions.advance(RETRY_MS)
        await transactions.restart()
        stored = transactions.stored()
        assert (stored.state, stored.partitions) == (TransactionState.ONGOING, frozenset({P1}))


def stored_states(transactions: Transactions) -> list[TransactionState]:
    """The states of all records in the log."""
    return [decode_transaction(value or b"").state for (_, value) in chain(*transactions.store.records.values())]


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_producer_epoch])
async def test_partition_that_is_gone_holds_nobody_up(code: ErrorCode) -> None:
    async with open_transaction(P0, P1) as (transactions, producer):
        transactions.markers.failing[P0] = code
        assert await transactions.end(producer) is ErrorCode.none
        assert transactions.markers.of(P1) == [True]
        assert transactions.stored().state is TransactionState.COMPLETE_COMMIT


class OnePartition(MemoryMarkers):
    """Refuses what a partition refuses that has records of a producer's open transaction. `is_away`: answers later."""

    def __init__(self, producer: ProducerIdAndEpoch, *, is_away: bool) -> None:
        super().__init__()
        records = batch(b"x", producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True)
        self._producers = ProducerStates()
        self._producers.record(parse_header(records), 0, 0)
        self._is_away = is_away

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[None] | None:
        if self._is_away:
            return self._append_later(tp, marker)
        self._append(tp, marker)
        return None

    async def _append_later(self, tp: TopicPartition, marker: EndMarker) -> None:
        self._append(tp, marker)

    def _append(self, tp: TopicPartition, marker: EndMarker) -> None:
        epochs = marker.producer_epoch, marker.coordinator_epoch
        self._producers.check_marker(marker.producer_id, *epochs, marker.transaction_version)
        self._producers.end_transaction(marker.producer_id, *epochs, 0)
        self.written.append((tp, marker))


@pytest.mark.parametrize(("commit", "is_away"), [(True, True), (True, False), (False, True)])
async def test_a_decision_of_an_earlier_release_about_a_transaction_of_version_2_is_carried_out(
    commit: bool, is_away: bool
) -> None:
    """That release decided in the epoch of the records, and died before it had written its markers."""
    transactions = Transactions()
    async with running_transactions(transactions):
        producer = await transactions.begin()
        assert await ready(transactions.coordinator.add_partitions("id", producer, {P0}, BUMPS_EPOCH)) is ErrorCode.none
        decision = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        decided = encode_transaction(transactions.stored()._replace(state=decision))
        transactions.store.append(partition_for("id", PARTITIONS), [(encode_transaction_key("id"), decided)])
        transactions.markers = OnePartition(producer, is_away=is_away)
        await transactions.restart()
        await settle()
        assert transactions.markers.of(P0) == [commit]
        assert not transactions.stored().partitions
        assert await transactions.add(producer, P1) is ErrorCode.none


async def test_a_fenced_coordinator_completes_nothing() -> None:
    async with open_transaction(P0, P1) as (transactions, producer):
        transactions.markers.failing[P0] = ErrorCode.transaction_coordinator_fenced
        assert await transactions.end(producer) is ErrorCode.none
        await settle()
        assert transactions.stored().state is TransactionState.PREPARE_COMMIT


async def test_markers_that_must_be_synced_are_waited_for() -> None:
    async with open_transaction(P0) as (transactions, producer):
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transactions.markers.flush = synced
        assert await transactions.end(producer) is ErrorCode.none
        await settle()
        assert transactions.stored().state is TransactionState.PREPARE_COMMIT
        synced.set_result(None)
        await settle()
        assert transactions.stored().state is TransactionState.COMPLETE_COMMIT


async def test_the_next_transaction_begins_when_the_markers_of_the_last_one_are_written() -> None:
    async with open_transaction(P0) as (transactions, producer):
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transactions.markers.flush = written
        await transactions.end(producer)
        adding = [asyncio.ensure_future(transactions.add(producer, tp)) for tp in (P0, P1)]
        fenced = await transactions.add(ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1), P0)
        assert fenced is ErrorCode.producer_fenced
        assert not adding[0].done()
        written.set_result(None)
        assert await asyncio.gather(*adding) == [ErrorCode.none] * 2
        assert transactions.stored().partitions == {P0, P1}


async def test_what_two_leaders_add_at_once_is_stored_one_after_the_other() -> None:
    store = GatedRecordStore()
    async with running_transactions(Transactions(store)) as transactions:
        producer = await transactions.begin()
        store.gate.clear()
        adding = [asyncio.ensure_future(transactions.add(producer, tp)) for tp in (P0, P1, P2)]
        await settle()
        assert not any(one.done() for one in adding)
        store.gate.set()
        assert await asyncio.gather(*adding) == [ErrorCode.none] * 3
        assert transactions.stored().partitions == {P0, P1, P2}


@pytest.mark.parametrize("commit", [True, False])
async def test_the_end_of_version_2_has_markers_and_an_answer_with_the_next_epoch(commit: bool) -> None:
    async with running_transactions() as transactions:
        producer = await transactions.begin()
        coordinator = transactions.coordinator
        assert await ready(coordinator.add_partitions("id", producer, {P0, P1}, 2)) is ErrorCode.none
        reply = await coordinator.end_and_bump("id", producer, commit=commit)
        assert reply == (ErrorCode.none, producer.producer_id, producer.epoch + 1)
        marker = EndMarker(producer.producer_id, producer.epoch + 1, ControlType(commit), 5, 2)
        assert sorted(transactions.markers.written) == [(P0, marker), (P1, marker)]
        await transactions.restart()
        assert await transactions.coordinator.end_and_bump("id", producer, commit=commit) == reply
        refused = await transactions.coordinator.end_and_bump("id", producer, commit=not commit)
        assert refused == (ErrorCode.invalid_txn_state, -1, -1)
        assert len(transactions.markers.written) in (2, 4)  # again, if the record of the completion was lost


@pytest.mark.parametrize("at_hand", [True, False])
async def test_the_end_of_the_last_epoch_gives_a_new_producer_id(at_hand: bool) -> None:
    async with running_transactions() as transactions:
        producer = await transactions.begin()
        transactions.ids.at_hand = at_hand
        transaction = transactions.coordinator._find("id")[1]  # type: ignore[index]
        producer = producer._replace(epoch=MAX_EPOCH - 1)
        transaction.current = transaction.current._replace(producer_epoch=producer.epoch)
        transactions.markers.failing[P0] = ErrorCode.not_leader_or_follower
        assert await ready(transactions.coordinator.add_partitions("id", producer, {P0}, 2)) is ErrorCode.none
        reply = await transactions.coordinator.end_and_bump("id", producer, commit=True)
        assert (reply.error, reply.producer_epoch) == (ErrorCode.none, 0)
        assert reply.producer_id > producer.producer_id
        assert transactions.stored().producer_id == producer.producer_id  # the marker is of the old one
        successor = ProducerIdAndEpoch(reply.producer_id, 0)
        await transactions.restart()  # the new one survives
        adding = asyncio.ensure_future(ready(transactions.coordinator.add_partitions("id", successor, {P1}, 2)))
        await settle()
        del transactions.markers.failing[P0]
        transactions.advance(1_000)
        assert await adding is ErrorCode.none
        assert transactions.markers.written == [
            (P0, EndMarker(producer.producer_id, MAX_EPOCH, ControlType.COMMIT, 5, 2))
        ]
        assert transactions.stored().producer_id == reply.producer_id


# --- producers


async def test_new_producer_ends_what_the_older_one_left_open() -> None:
    async with open_transaction(P0) as (transactions, zombie):
        successor = await transactions.begin()
        assert transactions.markers.of(P0) == [False]
        assert successor == (zombie.producer_id, zombie.epoch + 2)
        assert await transactions.end(zombie) is ErrorCode.producer_fenced
        assert await transactions.add(zombie, P1) is ErrorCode.producer_fenced
        assert transactions.coordinator.verify("id", zombie, P0) is ErrorCode.producer_fenced
        assert await transactions.add(successor, P1) is ErrorCode.none


async def test_new_producer_asks_again_while_the_markers_of_the_older_one_cannot_be_written() -> None:
    async with open_transaction(P0) as (transactions, zombie):
        transactions.markers.failing[P0] = ErrorCode.kafka_storage_error
        for _ in range(2):
            reply = await transactions.coordinator.init_producer_id("id", TIMEOUT)
            assert reply.error is ErrorCode.concurrent_transactions
        transactions.markers.failing.clear()
        transactions.advance(RETRY_MS)
        assert (await transactions.begin()).epoch == zombie.epoch + 2


async def test_two_that_begin_at_once_get_different_epochs() -> None:
    async with running_transactions() as transactions:
        transactions.ids.at_hand = False
        first, second = await asyncio.gather(transactions.begin(), transactions.begin())
        assert {first.epoch, second.epoch} == {0, 1}
        assert first.producer_id == second.producer_id


@pytest.mark.parametrize(
    ("name", "timeout_ms", "code"),
    [
        ("", TIMEOUT, ErrorCode.invalid_request),
        ("id", 900_001, ErrorCode.invalid_transaction_timeout),
        ("id", 0, ErrorCode.invalid_transaction_timeout),
    ],
)
async def test_bad_requests_of_new_producers_are_refused(name: str, timeout_ms: int, code: ErrorCode) -> None:
    async with running_transactions() as transactions:
        reply = await transactions.coordinator.init_producer_id(name, timeout_ms)
        assert reply == (code, -1, -1)


async def test_id_that_nobody_initialised_is_not_known() -> None:
    async with running_transactions() as transactions:
        stranger = ProducerIdAndEpoch(1, 0)
        assert await transactions.add(stranger, P0) is ErrorCode.invalid_producer_id_mapping
        assert await transactions.end(stranger) is ErrorCode.invalid_producer_id_mapping
        assert transactions.coordinator.verify("id", stranger, P0) is ErrorCode.invalid_producer_id_mapping


async def test_partitions_that_are_not_coordinated_here_say_so() -> None:
    transactions = Transactions()
    stranger = ProducerIdAndEpoch(1, 0)
    assert await transactions.end(stranger) is ErrorCode.not_coordinator
    await transactions.load()
    await transactions.coordinator.close()
    assert await transactions.end(stranger) is ErrorCode.coordinator_not_available


# --- time


async def test_transaction_that_takes_too_long_is_aborted() -> None:
    async with open_transaction(P0) as (transactions, producer):
        transactions.advance(TIMEOUT)
        assert transactions.stored().state is TransactionState.ONGOING
        transactions.advance(10_000)
        assert transactions.markers.of(P0) == [False]
        assert await transactions.end(producer) is ErrorCode.producer_fenced


async def test_time_goes_on_while_the_broker_is_down() -> None:
    async with open_transaction(P0) as (transactions, _):
        transactions.clock.advance(TIMEOUT)
        await transactions.restart()
        transactions.advance(10_001)
        assert transactions.markers.of(P0) == [False]


async def test_many_ids_are_forgotten_with_few_appends() -> None:
    settings = TransactionSettings(
        transactional_id_expiration_ms=100_000, transaction_remove_expired_transaction_cleanup_interval_ms=200_000
    )
    async with running_transactions(Transactions(settings=settings)) as transactions:
        for number in range(50):
            await transactions.begin(f"id-{number}")
        appends = transactions.store.appends
        transactions.advance(200_000)
        await settle()
        assert transactions.coordinator.list() == (ErrorCode.none, [])
        assert transactions.store.appends - appends <= PARTITIONS


async def test_ids_that_nobody_uses_are_forgotten() -> None:
    settings = TransactionSettings(
        transactional_id_expiration_ms=100_000, transaction_remove_expired_transaction_cleanup_interval_ms=10_000
    )
    async with running_transactions(Transactions(settings=settings)) as transactions:
        first = await transactions.begin()
        busy = await transactions.begin("busy")
        transactions.advance(60_000)
        await transactions.add(busy, P0, name="busy")
        transactions.advance(50_000)
        await settle()
        assert transactions.coordinator.describe("id") is ErrorCode.transactional_id_not_found
        await transactions.restart()
        assert transactions.coordinator.describe("id") is ErrorCode.transactional_id_not_found
        assert transactions.stored("busy").state is TransactionState.ONGOING
        again = await transactions.begin()
        assert again.epoch == 0
        assert again.producer_id != first.producer_id


# --- administration


async def test_list_filters_by_state_producer_and_duration() -> None:
    async with running_transactions() as transactions:
        producers = {}
        for name in ("open", "empty", "done"):
            producers[name] = await transactions.begin(name)
            if name != "empty":
                await transactions.add(producers[name], P0, name=name)
        await transactions.end(producers["done"], name="done")
        transactions.advance(5_000)
        listed = transactions.coordinator.list

        def names(found: tuple[ErrorCode, list[tuple[str, TransactionMetadata]]]) -> set[str]:
            assert found[0] is ErrorCode.none
            return {transactional_id for transactional_id, _ in found[1]}

        assert names(listed()) == {"open", "empty", "done"}
        assert names(listed({TransactionState.ONGOING})) == {"open"}
        assert names(listed((), {producers["done"].producer_id})) == {"done"}
        assert names(listed({TransactionState.ONGOING}, (), 4_000)) == {"open"}
        assert names(listed({TransactionState.ONGOING}, (), 5_000)) == set()


async def test_a_change_that_is_slow_to_be_stored_stays_pending_and_its_client_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record may be committed later (P7): until that is known, nothing else is decided."""
    monkeypatch.setattr(transaction_shard, "STORE_TIMEOUT_S", 0.0)
    store = SyncingRecordStore()
    store.gate.set()
    async with running_transactions(Transactions(store)) as transactions:
        producer = await transactions.begin()
        while await transactions.add(producer, P0) is not ErrorCode.none:
            await settle()
        store.gate.clear()
        assert await transactions.end(producer) is ErrorCode.coordinator_not_available
        assert await transactions.end(producer, commit=False) is ErrorCode.concurrent_transactions
        assert not transactions.markers.written
        store.gate.set()
        await settle()
        assert transactions.markers.of(P0) == [True]
        assert await transactions.end(producer) is ErrorCode.none


async def test_the_first_tries_to_write_a_marker_follow_each_other_soon() -> None:
    async with open_transaction(P0) as (transactions, producer):
        transactions.markers.failing[P0] = ErrorCode.not_leader_or_follower
        await transactions.end(producer)
        transactions.advance(20)
        transactions.markers.failing.clear()
        transactions.advance(39)
        assert not transactions.markers.of(P0)
        transactions.advance(1)
        assert transactions.markers.of(P0) == [True]
