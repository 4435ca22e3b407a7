"""Random histories of one transactional id: producers that come and go, zombies, lost answers, failing appends.

Checked after every step: a fenced producer changes nothing, a decision never changes, the markers of a transaction go
to all its partitions, and a replay of any prefix of the records gives a state from which the transaction can complete.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.coordinator.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    encode_transaction,
)
from broker.coordinator.transaction_state import MAX_EPOCH, ProducerIdAndEpoch, Transaction
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

TIMEOUT = 1_000
FOLLOWS = {
    TransactionState.EMPTY: "EMPTY ONGOING",
    TransactionState.ONGOING: "ONGOING PREPARE_COMMIT PREPARE_ABORT",
    TransactionState.PREPARE_COMMIT: "COMPLETE_COMMIT",
    TransactionState.PREPARE_ABORT: "COMPLETE_ABORT",
    TransactionState.COMPLETE_COMMIT: "EMPTY ONGOING",
    TransactionState.COMPLETE_ABORT: "EMPTY ONGOING",
}
"""What may stand behind a record."""


class TransactionHistory(RuleBasedStateMachine):
    """Producers that do anything in any order. `told` has every id and epoch that was given out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.next_id = 8
        self.transaction = Transaction.new("id", 7, TIMEOUT, self.now)
        # As the log has them: each kept with its encoding, which is what a replay sees.
        self.records: list[TransactionMetadata] = []
        self.told: list[ProducerIdAndEpoch] = []
        # Whose transaction was ended by somebody else.
        self.fenced: set[tuple[int, int]] = set()
        self.hold = False
        self.tells = False
        self.fences = False

    # --- storing

    def decide(self, code: ErrorCode, *, tells: bool = False, fences: bool = False) -> None:
        """Store what an event left pending, unless appends take their time."""
        if code is not ErrorCode.none:
            return
        self.tells = tells
        self.fences = fences
        if not self.hold:
            self.stored(ErrorCode.none)

    def stored(self, code: ErrorCode) -> None:
        pending, before = self.transaction.pending, self.transaction.current
        self.transaction.stored(code)
        self.hold = False
        if code is not ErrorCode.none:
            assert self.transaction.current is before
            return
        if pending is not None:
            self.records.append(pending)
        if self.fences:
            self.fenced.add((before.producer_id, before.producer_epoch))
        if self.tells:
            current = self.transaction.current
            self.told.append(ProducerIdAndEpoch(current.producer_id, current.producer_epoch))

    def fresh_id(self) -> int:
        self.next_id += 1
        return self.next_id

    @property
    def idle(self) -> bool:
        return self.transaction.pending is None

    @rule()
    def appends_take_their_time(self) -> None:
        self.hold = self.idle

    @precondition(lambda self: not self.idle)
    @rule(code=st.sampled_from([ErrorCode.none, ErrorCode.kafka_storage_error]))
    def an_append_ends(self, code: ErrorCode) -> None:
        self.stored(code)

    # --- clients

    @rule(data=st.data())
    def producer_begins(self, data: st.DataObject) -> None:
        claimed = data.draw(st.none() | st.sampled_from(self.told)) if self.told else None
        if self.transaction.abort_for_successor(claimed, self.now):
            self.decide(ErrorCode.none, fences=True)
        elif self.idle:
            code = self.transaction.init_producer_id(TIMEOUT, claimed, self.fresh_id(), self.now)
            self.decide(code, tells=True)

    @precondition(lambda self: self.told)
    @rule(data=st.data(), partitions=st.frozensets(st.integers(0, 4), min_size=1))
    def producer_adds(self, data: st.DataObject, partitions: frozenset[int]) -> None:
        producer = data.draw(st.sampled_from(self.told))
        wanted = {TopicPartition("t", number) for number in partitions}
        code = self.transaction.add_partitions(producer, wanted, self.now)
        assert code is not ErrorCode.none or self.is_current(producer)
        self.decide(code)
        if code is ErrorCode.none and self.idle:
            assert wanted <= self.transaction.current.partitions

    @precondition(lambda self: self.told)
    @rule(data=st.data(), commit=st.booleans())
    def producer_ends(self, data: st.DataObject, commit: bool) -> None:
        producer = data.draw(st.sampled_from(self.told))
        idle = self.idle
        code = self.transaction.end(producer, commit=commit, now_ms=self.now)
        assert not (idle and self.transaction.pending) or self.is_current(producer)
        self.decide(code)

    def is_current(self, producer: ProducerIdAndEpoch) -> bool:
        current = self.transaction.current
        return producer == (current.producer_id, current.producer_epoch) and producer not in self.fenced

    # --- the coordinator

    @precondition(lambda self: self.idle and self.transaction.is_prepared)
    @rule()
    def markers_are_written(self) -> None:
        self.transaction.complete(self.now)
        self.decide(ErrorCode.none)

    @rule(ms=st.sampled_from([1, 500, 2_000]))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        if self.transaction.time_out(self.now):
            assert self.now - self.transaction.current.start_ms > TIMEOUT
            self.decide(ErrorCode.none, fences=True)

    @precondition(lambda self: self.idle and self.transaction.current.state is TransactionState.EMPTY)
    @rule()
    def epochs_are_nearly_used_up(self) -> None:
        current = self.transaction.current
        self.transaction.pending = current._replace(producer_epoch=max(current.producer_epoch, MAX_EPOCH - 3))
        self.decide(ErrorCode.none, tells=True)

    @precondition(lambda self: self.records)
    @rule()
    def broker_restarts(self) -> None:
        self.transaction = Transaction("id", decode_transaction(encode_transaction(self.records[-1])))
        self.hold = False

    # --- what always holds

    @invariant()
    def records_follow_each_other(self) -> None:
        for before, after in zip(self.records[-2:], self.records[-1:], strict=False):
            assert after.state.name in FOLLOWS[before.state].split()
            if after.producer_id == before.producer_id:
                assert after.producer_epoch >= before.producer_epoch
            else:
                assert before.producer_epoch >= MAX_EPOCH - 1
                assert after.producer_epoch == 0
            if before.state is TransactionState.ONGOING:
                assert after.partitions >= before.partitions

    @invariant()
    def epochs_that_were_told_are_never_the_one_kept_for_fencing(self) -> None:
        assert all(0 <= producer.epoch < MAX_EPOCH for producer in self.told)

    @invariant()
    def memory_is_what_the_log_says(self) -> None:
        if self.records:
            replayed = decode_transaction(encode_transaction(self.records[-1]))
            stored = self.transaction.current
            assert stored[:7] == replayed[:7]

    @invariant()
    def every_prefix_of_the_log_comes_to_an_end(self) -> None:
        if not self.records:
            return
        replayed = Transaction("id", decode_transaction(encode_transaction(self.records[-1])))
        partitions = replayed.current.partitions
        if replayed.time_out(self.now + 10 * TIMEOUT):
            replayed.stored(ErrorCode.none)
            assert replayed.current.partitions == partitions
        if replayed.is_prepared:
            replayed.complete(self.now)
            replayed.stored(ErrorCode.none)
        assert replayed.init_producer_id(TIMEOUT, None, 999, self.now) is ErrorCode.none


TestTransactionHistory = TransactionHistory.TestCase
TestTransactionHistory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
