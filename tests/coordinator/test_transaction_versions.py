"""Random histories of one transactional id whose producers use version 1 or 2 of transactions, one after the other.

Each client knows what it was answered, repeats a request whose answer was lost, and asks for nothing else meanwhile.
Checked: no two clients are the current producer; a client that is told of a commit has committed; and each end of
version 2 has markers of an epoch in which nobody has written before.
"""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.coordinator.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    encode_transaction,
)
from broker.coordinator.transaction_state import MAX_EPOCH, ProducerIdAndEpoch, Transaction
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import BUMPS_EPOCH

TIMEOUT = 1_000
SELDOM = st.sampled_from([False, False, False, True])
OK, AGAIN = ErrorCode.none, ErrorCode.concurrent_transactions
ONGOING = TransactionState.ONGOING


@dataclasses.dataclass(eq=False)
class Client:
    """One producer. `unanswered` is the decision whose answer it waits for."""

    version: int
    identity: ProducerIdAndEpoch
    is_fenced: bool = False
    wrote: bool = False
    unanswered: bool | None = None


class TwoVersions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.next_id = 100
        self.transaction = Transaction.new("id", 7, TIMEOUT, self.now)
        self.log: list[TransactionMetadata] = []
        self.clients: list[Client] = []
        self.decided: dict[ProducerIdAndEpoch, bool] = {}
        """Of the producer that has written it: how its last transaction ended."""
        self.written: set[ProducerIdAndEpoch] = set()
        """Producers of which some partition may have records."""

    @property
    def current(self) -> TransactionMetadata:
        return self.transaction.current

    def store(self, *, fails: bool = False) -> bool:
        """End the append; whether the change is stored."""
        before, pending = self.current, self.transaction.pending
        if pending is None:
            return True
        self.transaction.stored(ErrorCode.kafka_storage_error if fails else OK)
        if fails:
            return False
        self.log.append(pending)
        if before.state is ONGOING and self.transaction.is_prepared:
            self.note_decision(before, pending)
        return True

    def note_decision(self, before: TransactionMetadata, after: TransactionMetadata) -> None:
        producer = ProducerIdAndEpoch(before.producer_id, before.producer_epoch)
        self.decided[producer] = after.state is TransactionState.PREPARE_COMMIT
        if after.client_version >= BUMPS_EPOCH:
            assert ProducerIdAndEpoch(after.producer_id, after.producer_epoch) not in self.written
            assert after.producer_epoch == before.producer_epoch + 1

    @initialize(epoch=st.sampled_from([-1, MAX_EPOCH - 5, MAX_EPOCH - 3]))
    def the_id_is_old(self, epoch: int) -> None:
        self.transaction.pending = self.current._replace(producer_epoch=epoch)
        self.store()

    # --- clients

    @rule(version=st.sampled_from([0, BUMPS_EPOCH]), dies=SELDOM)
    def a_client_begins(self, version: int, dies: bool) -> None:
        """It may die between the abort of what its predecessor left and its own beginning."""
        if self.transaction.abort_for_successor(None, self.now):
            self.store()
            if dies:
                return
        self.markers_are_written()
        self.next_id += 1
        assert self.transaction.init_producer_id(TIMEOUT, None, self.next_id, self.now) is OK
        self.store()
        self.clients.append(Client(version, ProducerIdAndEpoch(self.current.producer_id, self.current.producer_epoch)))

    def ready(self, data: st.DataObject) -> Client | None:
        able = [one for one in self.clients if not one.is_fenced and one.unanswered is None]
        return data.draw(st.sampled_from(able)) if able else None

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), number=st.integers(0, 3), fails=SELDOM)
    def a_client_writes(self, data: st.DataObject, number: int, fails: bool) -> None:
        client = self.ready(data)
        if client is None:
            return
        partitions = {TopicPartition("t", number)}
        code = self.transaction.add_partitions(client.identity, partitions, self.now, client.version)
        if code is OK:
            if self.store(fails=fails):
                client.wrote = True
                self.written.add(client.identity)
        elif code is not AGAIN:
            client.is_fenced = client.version == 0

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), commit=st.booleans(), is_lost=SELDOM, fails=SELDOM)
    def a_client_ends(self, data: st.DataObject, commit: bool, is_lost: bool, fails: bool) -> None:
        client = self.ready(data)
        if client is None or (commit or client.version == 0) > client.wrote:
            return
        client.unanswered = commit
        self.ask_to_end(client, is_lost=is_lost, fails=fails)

    @precondition(lambda self: any(one.unanswered is not None for one in self.clients))
    @rule(data=st.data(), is_lost=SELDOM, fails=SELDOM)
    def a_client_asks_again(self, data: st.DataObject, is_lost: bool, fails: bool) -> None:
        client = data.draw(st.sampled_from([one for one in self.clients if one.unanswered is not None]))
        self.ask_to_end(client, is_lost=is_lost, fails=fails)

    def ask_to_end(self, client: Client, *, is_lost: bool, fails: bool) -> None:
        commit, asked = client.unanswered is True, client.identity
        if client.version >= BUMPS_EPOCH:
            self.next_id += 1
            code = self.transaction.end_and_bump(asked, commit=commit, new_producer_id=self.next_id, now_ms=self.now)
        else:
            code = self.transaction.end(asked, commit=commit, now_ms=self.now)
        if not self.store(fails=fails) or is_lost or code is AGAIN:
            return
        client.unanswered = None
        if code is not OK:
            client.is_fenced = True
            return
        if client.wrote:
            assert self.decided[asked] is commit
        client.wrote = False
        if client.version >= BUMPS_EPOCH:
            client.identity = self.transaction.next_producer

    # --- the coordinator

    @precondition(lambda self: self.transaction.is_prepared)
    @rule()
    def markers_are_written(self) -> None:
        if self.transaction.is_prepared:
            self.transaction.complete(self.now)
            self.store()

    @rule()
    def a_transaction_times_out(self) -> None:
        self.now += 2 * TIMEOUT
        if self.transaction.time_out(self.now):
            self.store()

    @rule(behind=st.sampled_from([0, 0, 1]))
    def the_coordinator_moves(self, behind: int) -> None:
        """The record of a completion is written lazily, and may be lost."""
        if behind and len(self.log) > 1 and self.log[-1].state.name.startswith("COMPLETE"):
            self.log.pop()
        self.transaction = Transaction("id", decode_transaction(encode_transaction(self.log[-1])))

    # --- what always holds

    @invariant()
    def one_client_at_most_is_the_producer(self) -> None:
        current = (self.current.producer_id, self.current.producer_epoch)
        holding = [one for one in self.clients if one.identity == current and not one.is_fenced]
        assert len(holding) <= 1
        assert all(one.identity.epoch < MAX_EPOCH for one in self.clients)

    @invariant()
    def only_its_producer_is_in_an_open_transaction(self) -> None:
        if self.current.state is ONGOING:
            assert (self.current.producer_id, self.current.producer_epoch) in {one.identity for one in self.clients}


TestTwoVersions = TwoVersions.TestCase
TestTwoVersions.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
