"""The transaction coordinator: what the API handlers call, one method per request.

It routes a request to the shard of its transactional id's `__transaction_state` partition and applies the pure rules
(`transaction_state`), which are those of Kafka's `TransactionCoordinator`. Errors are in the answers; nothing is raised
for a bad request. An answer that has to wait for the log is an awaitable. A caller may be cancelled (its connection
closed) at any time without harm to the transaction. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol, TypeVar

from broker.clock import Clock
from broker.config.setting_groups import TransactionSettings
from broker.coordinator.record_store import RecordStore
from broker.coordinator.sharded_coordinator import ShardedCoordinator
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)
from broker.coordinator.transaction_shard import COMPLETION_WAIT_S, TransactionShard
from broker.coordinator.transaction_state import ProducerIdAndEpoch, Transaction
from broker.errors import ErrorCode
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition

T = TypeVar("T")


class ProducerIdSource(Protocol):
    """The source of new producer ids."""

    def take(self) -> int | None: ...
    async def take_from_new_block(self) -> int: ...


class ProducerReply(NamedTuple):
    """The producer's id and epoch, or an error."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class TransactionCoordinator(ShardedCoordinator[TransactionShard]):
    """All transactional ids whose partitions this broker leads."""

    def __init__(
        self,
        store: RecordStore,
        markers: MarkerWriter,
        producer_ids: ProducerIdSource,
        clock: Clock,
        settings: TransactionSettings,
        partitions: int,
        *,
        epoch_of: Callable[[int], int] = lambda partition: 0,
    ) -> None:
        """`epoch_of(partition)` is the leader epoch of a partition."""
        self._producer_ids = producer_ids
        self._clock = clock
        self._settings = settings
        super().__init__(
            lambda partition, timer: TransactionShard(
                partition, store, markers, clock, settings, timer, epoch_of(partition)
            ),
            clock,
            partitions,
            expiry_interval_ms=settings.transaction_remove_expired_transaction_cleanup_interval_ms,
            invalid_id=ErrorCode.invalid_request,
        )

    def _find(self, transactional_id: str) -> tuple[TransactionShard, Transaction] | ErrorCode:
        shard = self._shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        transaction = shard.transactions.get(transactional_id)
        return ErrorCode.invalid_producer_id_mapping if transaction is None else (shard, transaction)

    # --- producers -------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdAndEpoch | None = None
    ) -> ProducerReply:
        """InitProducerId with a transactional id. `claimed` is the producer's present id and epoch (KIP-360).

        Raises what `ProducerIdSource.take_from_new_block` raises.
        """
        new_producer_id = None
        while True:
            shard = self._shard_of(transactional_id)
            if isinstance(shard, ErrorCode):
                return ProducerReply(shard)
            if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
                return ProducerReply(ErrorCode.invalid_transaction_timeout)
            now_ms = self._clock.now_ms()
            transaction = shard.transactions.get(transactional_id)
            if transaction is not None and transaction.abort_for_successor(claimed, now_ms):
                code = await _awaited(shard.end(transaction, _unchanged))
                await shard.until_settled(transaction, asyncio.get_running_loop().time() + COMPLETION_WAIT_S)
                if code is not ErrorCode.none or transaction.is_prepared:
                    return ProducerReply(ErrorCode.concurrent_transactions)
            elif (transaction is None or transaction.is_epoch_exhausted) and new_producer_id is None:
                new_producer_id = await self._new_producer_id()
            else:
                break  # no await since the look-up: the transaction is current
        if transaction is None:
            assert new_producer_id is not None
            transaction = Transaction.new(transactional_id, new_producer_id, timeout_ms, now_ms)
            shard.transactions[transactional_id] = transaction
        code = transaction.init_producer_id(timeout_ms, claimed, new_producer_id, now_ms)
        if code is not ErrorCode.none:
            return ProducerReply(code)
        return await _awaited(shard.store(transaction, lambda code: _producer_reply(code, transaction)))

    async def _new_producer_id(self) -> int:
        ready = self._producer_ids.take()
        return await self._producer_ids.take_from_new_block() if ready is None else ready

    # --- transactions ----------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
        version: int = 0,
    ) -> ErrorCode | Awaitable[ErrorCode]:
        """AddPartitionsToTxn: all or none of `partitions`, for a client that uses this version of transactions. Waits a
        moment for the end of the last transaction, and for what another request adds."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return found
        shard, transaction = found
        code = transaction.add_partitions(producer, partitions, self._clock.now_ms(), version)
        if code is ErrorCode.concurrent_transactions:
            return self._add_after(shard, transaction, producer, partitions, version)
        return (
            code if transaction.pending is None or code is not ErrorCode.none else shard.store(transaction, _unchanged)
        )

    async def _add_after(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
        version: int,
    ) -> ErrorCode:
        deadline = asyncio.get_running_loop().time() + COMPLETION_WAIT_S
        while await shard.until_settled(transaction, deadline):
            if self._find(transaction.transactional_id) != (shard, transaction):
                break
            code = transaction.add_partitions(producer, partitions, self._clock.now_ms(), version)
            if code is ErrorCode.none and transaction.pending is not None:
                return await _awaited(shard.store(transaction, _unchanged))
            if code is not ErrorCode.concurrent_transactions:
                return code
        return ErrorCode.concurrent_transactions

    def add_offsets(
        self, transactional_id: str, producer: ProducerIdAndEpoch, offsets_partition: int
    ) -> ErrorCode | Awaitable[ErrorCode]:
        """AddOffsetsToTxn: add the group's partition of __consumer_offsets."""
        partitions = {TopicPartition(GROUP_OFFSETS_TOPIC, offsets_partition)}
        return self.add_partitions(transactional_id, producer, partitions)

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition) -> ErrorCode:
        """Check that the producer's transaction is open and has the partition (KIP-890), else TRANSACTION_ABORTABLE."""
        found = self._find(transactional_id)
        return found if isinstance(found, ErrorCode) else found[1].verify(producer, partition)

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | Awaitable[ErrorCode]:
        """EndTxn: commit or abort a transaction. The answer comes when the decision is stored."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return found
        shard, transaction = found
        code = transaction.end(producer, commit=commit, now_ms=self._clock.now_ms())
        if code is not ErrorCode.none or transaction.pending is None:
            return code
        return shard.end(transaction, _unchanged)

    async def end_and_bump(self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool) -> ProducerReply:
        """EndTxn of a client that uses version 2 of transactions: the answer has who it is from now on (KIP-890).

        Raises what `ProducerIdSource.take_from_new_block` raises.
        """
        new_producer_id = None
        while True:
            found = self._find(transactional_id)
            if isinstance(found, ErrorCode):
                return ProducerReply(found)
            shard, transaction = found
            if not transaction.is_epoch_exhausted or new_producer_id is not None:
                break  # no await since the look-up: the transaction is current
            new_producer_id = await self._new_producer_id()
        code = transaction.end_and_bump(
            producer, commit=commit, new_producer_id=new_producer_id, now_ms=self._clock.now_ms()
        )
        if code is ErrorCode.none and transaction.pending is not None:
            return await _awaited(shard.end(transaction, lambda code: _next_producer(code, transaction)))
        return _next_producer(code, transaction)

    # --- administration --------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionMetadata | ErrorCode:
        """DescribeTransactions of one id."""
        found = self._find(transactional_id)
        if found is ErrorCode.invalid_producer_id_mapping:
            return ErrorCode.transactional_id_not_found
        return found if isinstance(found, ErrorCode) else found[1].current

    def list(
        self,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
    ) -> tuple[ErrorCode, list[tuple[str, TransactionMetadata]]]:
        """ListTransactions: ids and states of the loaded partitions that pass all filters (KIP-664, KIP-994)."""
        now_ms = self._clock.now_ms()
        listed = [
            (transactional_id, current)
            for shard in self._shards.values()
            for transactional_id, current in shard.described()
            if (not states or current.state in states)
            and (not producer_ids or current.producer_id in producer_ids)
            and (longer_than_ms < 0 or now_ms - current.start_ms > longer_than_ms)
        ]
        return self._loading_error(), listed


def _unchanged(code: ErrorCode) -> ErrorCode:
    return code


async def _awaited(answer: T | Awaitable[T]) -> T:
    return await answer if isinstance(answer, Awaitable) else answer


def _next_producer(code: ErrorCode, transaction: Transaction) -> ProducerReply:
    return ProducerReply(code, *transaction.next_producer) if code is ErrorCode.none else ProducerReply(code)


def _producer_reply(code: ErrorCode, transaction: Transaction) -> ProducerReply:
    """The producer after its stored record took effect."""
    if code is not ErrorCode.none:
        return ProducerReply(code)
    current = transaction.current
    return ProducerReply(code, current.producer_id, current.producer_epoch)
