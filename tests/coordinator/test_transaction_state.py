"""The rules of one transactional id, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.coordinator.transaction_records import TransactionMetadata, TransactionState
from broker.coordinator.transaction_state import MAX_EPOCH, ProducerIdAndEpoch, Transaction
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID, NEXT_ID = 7, 8
TIMEOUT = 60_000
NOW = 1_000_000

Empty, Ongoing = TransactionState.EMPTY, TransactionState.ONGOING
PrepareCommit, PrepareAbort = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
CompleteCommit, CompleteAbort = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT


class Driver:
    """A transaction whose records are stored at once, unless a test holds them back."""

    def __init__(self, state: TransactionState = Empty, epoch: int = 0, **more: object) -> None:
        partitions = frozenset({P0}) if state in (Ongoing, PrepareCommit, PrepareAbort) else frozenset()
        current = TransactionMetadata(ID, epoch, TIMEOUT, state, NOW, partitions, NOW, **more)  # type: ignore[arg-type]
        self.transaction = Transaction("id", current)
        self.now = NOW

    @property
    def current(self) -> TransactionMetadata:
        return self.transaction.current

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.current.producer_id, self.current.producer_epoch)

    def store(self, code: ErrorCode) -> ErrorCode:
        if self.transaction.pending is not None:
            self.transaction.stored(ErrorCode.none)
        return code

    def init(self, claimed: ProducerIdAndEpoch | None = None) -> ErrorCode:
        if self.transaction.abort_for_successor(claimed, self.now):
            self.store(ErrorCode.none)
        return self.store(self.transaction.init_producer_id(TIMEOUT, claimed, NEXT_ID, self.now))

    def add(self, *partitions: TopicPartition, producer: ProducerIdAndEpoch | None = None) -> ErrorCode:
        code = self.transaction.add_partitions(producer or self.producer, set(partitions), self.now)
        return self.store(code)

    def end(self, *, commit: bool = True, producer: ProducerIdAndEpoch | None = None) -> ErrorCode:
        return self.store(self.transaction.end(producer or self.producer, commit=commit, now_ms=self.now))

    def bump(self, producer: ProducerIdAndEpoch, *, commit: bool = True) -> ErrorCode:
        code = self.transaction.end_and_bump(producer, commit=commit, new_producer_id=NEXT_ID, now_ms=self.now)
        return self.store(code)

    def complete(self) -> None:
        self.transaction.complete(self.now)
        self.store(ErrorCode.none)


# --- InitProducerId


def test_the_first_producer_has_epoch_0() -> None:
    transaction = Transaction.new("id", ID, TIMEOUT, NOW)
    assert transaction.current == TransactionMetadata(ID, -1, TIMEOUT, Empty, NOW)
    assert transaction.init_producer_id(TIMEOUT, None, ID, NOW) is ErrorCode.none
    transaction.stored(ErrorCode.none)
    assert (transaction.current.producer_id, transaction.current.producer_epoch) == (ID, 0)
    assert transaction.current.state is Empty


@pytest.mark.parametrize("state", [Empty, CompleteCommit, CompleteAbort])
def test_each_new_producer_gets_the_next_epoch(state: TransactionState) -> None:
    driver = Driver(state, epoch=4)
    assert driver.init() is ErrorCode.none
    assert (driver.current.state, driver.current.producer_epoch) == (Empty, 5)


@pytest.mark.parametrize("state", [PrepareCommit, PrepareAbort])
def test_new_producer_waits_until_what_was_decided_is_done(state: TransactionState) -> None:
    driver = Driver(state)
    assert driver.init() is ErrorCode.concurrent_transactions
    assert driver.current.state is state


def test_new_producer_aborts_what_the_older_one_left_open_and_fences_it() -> None:
    driver = Driver(Ongoing, epoch=4)
    zombie = driver.producer
    assert driver.init() is ErrorCode.concurrent_transactions
    assert (driver.current.state, driver.current.producer_epoch) == (PrepareAbort, 5)
    assert driver.end(producer=zombie) is ErrorCode.producer_fenced
    driver.complete()
    assert driver.init() is ErrorCode.none
    assert driver.current.producer_epoch == 6
    assert driver.add(P0, producer=zombie) is ErrorCode.producer_fenced


def test_last_epoch_is_kept_to_fence_with_and_a_new_id_follows() -> None:
    driver = Driver(Ongoing, epoch=MAX_EPOCH - 1)
    assert driver.init() is ErrorCode.concurrent_transactions
    assert (driver.current.producer_id, driver.current.producer_epoch) == (ID, MAX_EPOCH)
    driver.complete()
    assert driver.init() is ErrorCode.none
    assert driver.producer == (NEXT_ID, 0)


def test_producer_that_names_itself_is_bumped_and_sent_again_gets_the_same_answer() -> None:
    driver = Driver(CompleteAbort, epoch=4)
    before = driver.producer
    for _ in range(3):
        assert driver.init(before) is ErrorCode.none
        assert driver.producer == (ID, 5)


def test_producer_that_names_itself_gets_a_new_id_and_sent_again_the_same_one() -> None:
    driver = Driver(CompleteAbort, epoch=MAX_EPOCH - 1)
    before = driver.producer
    for _ in range(3):
        assert driver.init(before) is ErrorCode.none
        assert driver.producer == (NEXT_ID, 0)


def test_producer_whose_id_was_forgotten_begins_again() -> None:
    transaction = Transaction.new("id", ID, TIMEOUT, NOW)
    assert transaction.init_producer_id(TIMEOUT, ProducerIdAndEpoch(5, 3), None, NOW) is ErrorCode.none
    assert transaction.pending == TransactionMetadata(ID, 0, TIMEOUT, Empty, NOW)


@pytest.mark.parametrize(
    ("last_epoch", "claimed", "code"),
    [
        (MAX_EPOCH - 1, (6, MAX_EPOCH - 1), ErrorCode.none),
        (MAX_EPOCH, (6, MAX_EPOCH), ErrorCode.none),
        (MAX_EPOCH - 2, (6, MAX_EPOCH - 2), ErrorCode.producer_fenced),
        (MAX_EPOCH - 1, (6, MAX_EPOCH), ErrorCode.producer_fenced),
        (MAX_EPOCH - 1, (99, MAX_EPOCH - 1), ErrorCode.producer_fenced),
    ],
)
def test_only_the_last_epoch_of_the_id_before_may_repeat_its_request(
    last_epoch: int, claimed: tuple[int, int], code: ErrorCode
) -> None:
    driver = Driver(Empty, epoch=0, last_producer_epoch=last_epoch, previous_producer_id=6)
    before = driver.current
    assert driver.init(ProducerIdAndEpoch(*claimed)) is code
    assert driver.current._replace(start_ms=before.start_ms) == before


@pytest.mark.parametrize("state", [Empty, Ongoing, CompleteCommit])
@pytest.mark.parametrize("claimed", [(ID, 3), (ID, 5), (99, 4)])
def test_producer_that_was_replaced_cannot_take_over_again(state: TransactionState, claimed: tuple[int, int]) -> None:
    driver = Driver(state, epoch=4)
    before = driver.current
    assert driver.init(ProducerIdAndEpoch(*claimed)) is ErrorCode.producer_fenced
    assert driver.current == before


# --- AddPartitionsToTxn


@pytest.mark.parametrize("state", [Empty, CompleteCommit, CompleteAbort])
def test_first_partition_begins_the_transaction(state: TransactionState) -> None:
    driver = Driver(state)
    driver.now += 5
    assert driver.add(P0, P1) is ErrorCode.none
    assert (driver.current.state, driver.current.start_ms) == (Ongoing, NOW + 5)
    assert driver.current.partitions == {P0, P1}


def test_more_partitions_join_and_known_ones_are_not_stored_again() -> None:
    driver = Driver(Ongoing)
    driver.now += 5
    assert driver.add(P1) is ErrorCode.none
    assert driver.current.partitions == {P0, P1}
    assert driver.current.start_ms == NOW
    driver.transaction.add_partitions(driver.producer, {P1}, NOW)
    assert driver.transaction.pending is None


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        ((99, 4), ErrorCode.invalid_producer_id_mapping),
        ((ID, 3), ErrorCode.producer_fenced),
        ((ID, 5), ErrorCode.producer_fenced),
    ],
)
def test_only_the_producer_itself_may_add_or_verify(producer: tuple[int, int], code: ErrorCode) -> None:
    driver = Driver(Ongoing, epoch=4)
    claimed = ProducerIdAndEpoch(*producer)
    assert driver.add(P1, producer=claimed) is code
    assert driver.transaction.verify(claimed, P0) is code


@pytest.mark.parametrize("state", [PrepareCommit, PrepareAbort])
def test_nothing_is_added_while_markers_are_written(state: TransactionState) -> None:
    driver = Driver(state)
    assert driver.add(P1) is ErrorCode.concurrent_transactions
    assert driver.transaction.verify(driver.producer, P0) is ErrorCode.concurrent_transactions


def test_partition_is_verified_when_it_was_added_and_the_transaction_is_open() -> None:
    driver = Driver(Ongoing)
    assert driver.transaction.verify(driver.producer, P0) is ErrorCode.none
    assert driver.transaction.verify(driver.producer, P1) is ErrorCode.transaction_abortable
    driver.end()
    driver.complete()
    assert driver.transaction.verify(driver.producer, P0) is ErrorCode.transaction_abortable


# --- EndTxn


@pytest.mark.parametrize(
    ("commit", "prepared", "complete"), [(True, PrepareCommit, CompleteCommit), (False, PrepareAbort, CompleteAbort)]
)
def test_decision_goes_through_its_two_states_and_is_repeated_harmlessly(
    commit: bool, prepared: TransactionState, complete: TransactionState
) -> None:
    driver = Driver(Ongoing)
    assert driver.end(commit=commit) is ErrorCode.none
    assert driver.current.state is prepared
    assert driver.current.partitions == {P0}
    assert driver.end(commit=commit) is ErrorCode.concurrent_transactions
    assert driver.end(commit=not commit) is ErrorCode.invalid_txn_state
    driver.complete()
    assert driver.current.state is complete
    assert not driver.current.partitions
    assert driver.end(commit=commit) is ErrorCode.none
    assert driver.end(commit=not commit) is ErrorCode.invalid_txn_state
    assert driver.current.state is complete


@pytest.mark.parametrize("commit", [True, False])
def test_there_is_nothing_to_end_before_a_partition_is_added(commit: bool) -> None:
    assert Driver(Empty).end(commit=commit) is ErrorCode.invalid_txn_state


def test_only_the_producer_itself_may_end() -> None:
    driver = Driver(Ongoing, epoch=4)
    assert driver.end(producer=ProducerIdAndEpoch(99, 4)) is ErrorCode.invalid_producer_id_mapping
    assert driver.end(producer=ProducerIdAndEpoch(ID, 3)) is ErrorCode.producer_fenced
    assert driver.end(producer=ProducerIdAndEpoch(ID, 5)) is ErrorCode.producer_fenced
    assert driver.current.state is Ongoing


# --- EndTxn of version 2 (KIP-890)

FENCED, UNKNOWN_ID, AGAIN = (
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.concurrent_transactions,
)


@pytest.mark.parametrize(
    ("commit", "prepared", "complete"), [(True, PrepareCommit, CompleteCommit), (False, PrepareAbort, CompleteAbort)]
)
def test_a_decision_of_version_2_has_the_next_epoch_and_is_repeated_by_the_one_before(
    commit: bool, prepared: TransactionState, complete: TransactionState
) -> None:
    driver = Driver(Ongoing, epoch=4, client_version=2)
    producer = driver.producer
    assert driver.bump(producer, commit=commit) is ErrorCode.none
    assert (driver.current.state, driver.current.client_version) == (prepared, 2)
    assert driver.producer == driver.transaction.next_producer == (ID, 5)
    assert driver.bump(producer, commit=commit) is AGAIN
    assert driver.bump(producer, commit=not commit) is ErrorCode.invalid_txn_state
    assert driver.bump(driver.producer, commit=False) is AGAIN  # of the next transaction
    driver.complete()
    assert driver.bump(producer, commit=commit) is ErrorCode.none
    assert driver.bump(producer, commit=not commit) is ErrorCode.invalid_txn_state
    assert (driver.current.state, driver.producer) == (complete, (ID, 5))
    assert driver.bump(ProducerIdAndEpoch(ID, 3), commit=commit) is FENCED
    assert driver.bump(ProducerIdAndEpoch(ID, 6), commit=commit) is FENCED
    assert driver.bump(ProducerIdAndEpoch(99, 5), commit=commit) is UNKNOWN_ID


@pytest.mark.parametrize("state", [Empty, CompleteCommit, CompleteAbort])
def test_nothing_can_be_aborted_which_bumps_the_epoch_and_not_committed(state: TransactionState) -> None:
    driver = Driver(state, epoch=4, client_version=2)
    driver.now += 5
    producer = driver.producer
    assert driver.bump(producer) is ErrorCode.invalid_txn_state
    assert driver.bump(producer, commit=False) is ErrorCode.none
    assert (driver.current.state, driver.producer, driver.current.start_ms) == (PrepareAbort, (ID, 5), NOW + 5)
    driver.complete()
    assert driver.add(P0, producer=producer) is FENCED  # what was under way when it was aborted
    assert driver.add(P0) is ErrorCode.none


def test_the_last_epoch_is_followed_by_a_new_id_which_its_producer_may_ask_for_again() -> None:
    driver = Driver(Ongoing, epoch=MAX_EPOCH - 1, client_version=2)
    producer, successor = driver.producer, ProducerIdAndEpoch(NEXT_ID, 0)
    assert driver.bump(producer) is ErrorCode.none
    assert (driver.producer, driver.transaction.next_producer) == ((ID, MAX_EPOCH), successor)
    assert driver.bump(producer) is AGAIN
    assert driver.bump(successor, commit=False) is AGAIN
    assert driver.add(P0, producer=successor) is AGAIN
    driver.complete()
    assert driver.producer == driver.transaction.next_producer == successor
    assert driver.bump(producer) is ErrorCode.none
    assert driver.init(producer) is ErrorCode.none
    assert driver.producer == successor
    assert driver.add(P0, producer=successor) is ErrorCode.none
    assert driver.bump(producer) is UNKNOWN_ID
    assert driver.bump(successor) is ErrorCode.none
    assert driver.producer == (NEXT_ID, 1)


def test_an_epoch_that_no_client_has_ends_nothing() -> None:
    driver = Driver(Ongoing, epoch=MAX_EPOCH, client_version=2)
    assert driver.bump(driver.producer, commit=False) is FENCED


def test_a_decision_of_version_1_is_not_repeated_by_the_epoch_before() -> None:
    driver = Driver(CompleteAbort, epoch=5)
    assert driver.bump(ProducerIdAndEpoch(ID, 4), commit=False) is FENCED  # else it would be its own successor


@pytest.mark.parametrize("commit", [True, False])
def test_a_client_may_go_back_to_version_1(commit: bool) -> None:
    driver = Driver(Ongoing, epoch=4, client_version=2)
    assert driver.end(commit=commit) is ErrorCode.none
    assert (driver.current.producer_epoch, driver.current.client_version) == (4, 0)


def test_who_adds_in_version_2_is_asked_to_bump() -> None:
    driver = Driver(CompleteCommit, epoch=4)
    driver.transaction.add_partitions(driver.producer, {P0}, NOW, 2)
    driver.store(ErrorCode.none)
    assert (driver.current.state, driver.current.client_version) == (Ongoing, 2)


def test_after_a_time_out_a_producer_of_version_2_goes_on_when_it_has_aborted() -> None:
    driver = Driver(Ongoing, epoch=4, client_version=2)
    producer = driver.producer
    assert driver.transaction.time_out(NOW + TIMEOUT + 1)
    driver.store(ErrorCode.none)
    assert driver.producer == (ID, 5)  # one bump, not two (KAFKA-19367)
    driver.complete()
    assert driver.bump(producer) is ErrorCode.invalid_txn_state
    assert driver.bump(producer, commit=False) is ErrorCode.none
    assert driver.producer == (ID, 5)
    assert driver.init(producer) is ErrorCode.none
    assert driver.producer == (ID, 5)


def test_after_a_time_out_in_the_last_epoch_it_does_not() -> None:
    driver = Driver(Ongoing, epoch=MAX_EPOCH - 1, client_version=2)
    producer = driver.producer
    assert driver.transaction.time_out(NOW + TIMEOUT + 1)
    driver.store(ErrorCode.none)
    assert driver.producer == (ID, MAX_EPOCH)
    driver.complete()
    assert driver.bump(producer, commit=False) is FENCED
    assert driver.init(producer) is FENCED
    assert driver.init() is ErrorCode.none
    assert driver.producer == (NEXT_ID, 0)


def test_new_id_follows_the_last_epoch_of_a_transaction_that_another_broker_decided() -> None:
    driver = Driver(PrepareCommit, epoch=MAX_EPOCH, next_producer_id=NEXT_ID, client_version=2)
    driver.complete()
    assert driver.producer == (NEXT_ID, 0)
    assert driver.current.previous_producer_id == ID
    assert driver.add(P0) is ErrorCode.none
    assert driver.current.client_version == 0


# --- without a client


def test_transaction_ends_when_its_time_is_over_and_its_producer_is_fenced() -> None:
    driver = Driver(Ongoing, epoch=4)
    producer = driver.producer
    assert not driver.transaction.time_out(NOW + TIMEOUT)
    assert driver.transaction.time_out(NOW + TIMEOUT + 1)
    driver.store(ErrorCode.none)
    assert (driver.current.state, driver.current.producer_epoch) == (PrepareAbort, 5)
    driver.complete()
    assert driver.end(producer=producer) is ErrorCode.producer_fenced


@pytest.mark.parametrize("state", [Empty, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort])
def test_only_an_open_transaction_times_out(state: TransactionState) -> None:
    assert not Driver(state).transaction.time_out(NOW + 10 * TIMEOUT)


@pytest.mark.parametrize("state", list(TransactionState)[:6])
def test_only_what_rests_expires(state: TransactionState) -> None:
    transaction = Driver(state).transaction
    assert not transaction.expire(NOW + 99, 100)
    assert transaction.expire(NOW + 100, 100) is (state in (Empty, CompleteCommit, CompleteAbort))


# --- storing


def test_nothing_else_is_taken_while_a_record_is_being_stored() -> None:
    driver = Driver(Ongoing)
    driver.transaction.end(driver.producer, commit=True, now_ms=NOW)
    before = driver.transaction.pending
    assert driver.transaction.end(driver.producer, commit=False, now_ms=NOW) is ErrorCode.concurrent_transactions
    assert driver.transaction.add_partitions(driver.producer, {P1}, NOW) is ErrorCode.concurrent_transactions
    assert driver.transaction.init_producer_id(TIMEOUT, None, NEXT_ID, NOW) is ErrorCode.concurrent_transactions
    assert not driver.transaction.abort_for_successor(None, NOW)
    assert not driver.transaction.time_out(NOW + 10 * TIMEOUT)
    assert driver.transaction.pending is before


def test_what_cannot_be_stored_has_not_happened() -> None:
    driver = Driver(Ongoing)
    before = driver.current
    driver.transaction.end(driver.producer, commit=True, now_ms=NOW)
    driver.transaction.stored(ErrorCode.kafka_storage_error)
    assert driver.current == before
    assert driver.end(commit=False) is ErrorCode.none


# --- what is stored

OPEN = TransactionMetadata(ID, 3, TIMEOUT, Ongoing, NOW, frozenset({P0}), NOW)
REST = TransactionMetadata(ID, 3, TIMEOUT, CompleteCommit, NOW, start_ms=NOW, last_producer_epoch=2)
SELF = ProducerIdAndEpoch(ID, 3)
LATER = NOW + 90_000
STORED = {
    "a new producer": (
        REST._replace(partitions=frozenset({P0})),
        lambda t: t.init_producer_id(5_000, None, None, LATER),
        TransactionMetadata(ID, 4, 5_000, Empty, LATER),
    ),
    "the same producer again": (
        REST,
        lambda t: t.init_producer_id(5_000, SELF, None, LATER),
        TransactionMetadata(ID, 4, 5_000, Empty, LATER, last_producer_epoch=3),
    ),
    "its request a second time": (
        REST,
        lambda t: t.init_producer_id(5_000, ProducerIdAndEpoch(ID, 2), None, LATER),
        TransactionMetadata(ID, 3, 5_000, Empty, LATER, last_producer_epoch=2),
    ),
    "a producer after the last epoch": (
        REST._replace(producer_epoch=MAX_EPOCH - 1),
        lambda t: t.init_producer_id(5_000, ProducerIdAndEpoch(ID, MAX_EPOCH - 1), NEXT_ID, LATER),
        TransactionMetadata(
            NEXT_ID, 0, 5_000, Empty, LATER, last_producer_epoch=MAX_EPOCH - 1, previous_producer_id=ID
        ),
    ),
    "the first partition": (
        REST._replace(client_version=2),
        lambda t: t.add_partitions(SELF, {P0}, LATER),
        REST._replace(
            state=Ongoing, partitions=frozenset({P0}), start_ms=LATER, last_update_ms=LATER, client_version=0
        ),
    ),
    "another partition": (
        OPEN,
        lambda t: t.add_partitions(SELF, {P0, P1}, LATER),
        OPEN._replace(partitions=frozenset({P0, P1}), last_update_ms=LATER),
    ),
    "a partition that is there": (OPEN, lambda t: t.add_partitions(SELF, {P0}, LATER), None),
    "a commit": (
        OPEN,
        lambda t: t.end(SELF, commit=True, now_ms=LATER),
        OPEN._replace(state=PrepareCommit, last_update_ms=LATER),
    ),
    "an abort": (
        OPEN,
        lambda t: t.end(SELF, commit=False, now_ms=LATER),
        OPEN._replace(state=PrepareAbort, last_update_ms=LATER),
    ),
    "the markers": (
        OPEN._replace(state=PrepareAbort),
        lambda t: t.complete(LATER),
        OPEN._replace(state=CompleteAbort, partitions=frozenset(), last_update_ms=LATER),
    ),
    "the markers of the last epoch": (
        OPEN._replace(state=PrepareCommit, next_producer_id=NEXT_ID),
        lambda t: t.complete(LATER),
        OPEN._replace(
            producer_id=NEXT_ID,
            producer_epoch=0,
            state=CompleteCommit,
            partitions=frozenset(),
            last_update_ms=LATER,
            previous_producer_id=ID,
            next_producer_id=-1,
        ),
    ),
    "a commit of version 2": (
        OPEN._replace(client_version=2),
        lambda t: t.end_and_bump(SELF, commit=True, new_producer_id=None, now_ms=LATER),
        OPEN._replace(
            state=PrepareCommit, producer_epoch=4, last_producer_epoch=3, last_update_ms=LATER, client_version=2
        ),
    ),
    "an abort of version 2 in the last epoch": (
        OPEN._replace(producer_epoch=MAX_EPOCH - 1, client_version=2),
        lambda t: t.end_and_bump(
            ProducerIdAndEpoch(ID, MAX_EPOCH - 1), commit=False, new_producer_id=NEXT_ID, now_ms=LATER
        ),
        OPEN._replace(
            state=PrepareAbort,
            producer_epoch=MAX_EPOCH,
            last_producer_epoch=MAX_EPOCH - 1,
            next_producer_id=NEXT_ID,
            last_update_ms=LATER,
            client_version=2,
        ),
    ),
    "a successor of version 2": (
        OPEN._replace(client_version=2),
        lambda t: t.abort_for_successor(None, LATER),
        OPEN._replace(
            state=PrepareAbort, producer_epoch=4, last_producer_epoch=3, last_update_ms=LATER, client_version=2
        ),
    ),
    "a successor": (
        OPEN._replace(last_producer_epoch=2),
        lambda t: t.abort_for_successor(None, LATER),
        OPEN._replace(state=PrepareAbort, producer_epoch=4, last_update_ms=LATER),
    ),
    "a time-out at the last epoch": (
        OPEN._replace(producer_epoch=MAX_EPOCH),
        lambda t: t.time_out(LATER),
        OPEN._replace(state=PrepareAbort, producer_epoch=MAX_EPOCH, last_update_ms=LATER),
    ),
    "the end of the time-out": (OPEN, lambda t: t.time_out(NOW + TIMEOUT), None),
    "an id that is not used": (
        REST,
        lambda t: t.expire(LATER, LATER - NOW),
        REST._replace(state=TransactionState.DEAD, last_update_ms=LATER),
    ),
    "an id that was used a moment later": (REST, lambda t: t.expire(LATER, LATER - NOW + 1), None),
}


@pytest.mark.parametrize(("current", "event", "pending"), STORED.values(), ids=STORED)
def test_each_event_stores_this_record(
    current: TransactionMetadata,
    event: Callable[[Transaction], object],
    pending: TransactionMetadata | None,
) -> None:
    transaction = Transaction("id", current)
    event(transaction)
    assert transaction.pending == pending
    assert transaction.current == current
