"""A running transaction coordinator in tests: a manual clock, stores and markers in memory, requests with few words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

from broker.clock import ManualClock
from broker.config.setting_groups import TransactionSettings
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_records import TransactionMetadata
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from tests.support.record_stores import MemoryRecordStore

PARTITIONS = 3
TIMEOUT = 60_000
P0, P1, P2 = (TopicPartition("t", number) for number in range(3))

T = TypeVar("T")


class MemoryMarkers:
    """A `MarkerWriter` that keeps what it is given; a partition in `failing` refuses with that code."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, EndMarker]] = []
        self.failing: dict[TopicPartition, ErrorCode] = {}
        self.flush: Awaitable[None] | None = None

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[None] | None:
        if tp in self.failing:
            raise BrokerError(self.failing[tp])
        self.written.append((tp, marker))
        return self.flush

    def of(self, tp: TopicPartition) -> list[bool]:
        """How the transactions of a partition ended, in order."""
        return [marker.control_type is ControlType.COMMIT for where, marker in self.written if where == tp]


class CountedIds:
    """Producer ids from 100 on; some of them only after a wait."""

    def __init__(self) -> None:
        self._next = count(100)
        self.at_hand = True

    def take(self) -> int | None:
        return next(self._next) if self.at_hand else None

    async def take_from_new_block(self) -> int:
        return next(self._next)


class Transactions:
    """A coordinator of all partitions and what stands around it."""

    def __init__(self, store: MemoryRecordStore | None = None, settings: TransactionSettings | None = None) -> None:
        self.store = store or MemoryRecordStore()
        self.clock = ManualClock()
        self.markers = MemoryMarkers()
        self.ids = CountedIds()
        self.settings = settings or TransactionSettings()
        self.coordinator = self._make()

    def use(self, store: MemoryRecordStore, markers: MemoryMarkers) -> None:
        """Have another coordinator, nothing of it loaded, which stores and writes there."""
        self.store, self.markers = store, markers
        self.coordinator = self._make()

    def _make(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.store, self.markers, self.ids, self.clock, self.settings, PARTITIONS, epoch_of=lambda partition: 5
        )

    async def load(self) -> None:
        for partition in range(PARTITIONS):
            await self.coordinator.load(partition)

    async def restart(self) -> None:
        """Another broker process over the same records."""
        await self.coordinator.close()
        self.coordinator = self._make()
        await self.load()

    def advance(self, ms: int) -> None:
        """Turn the clock forward, with what falls due on the way."""
        while ms > 0:
            step = min(ms, 1_000)
            self.clock.advance(step)
            self.coordinator._timer.run_due()
            ms -= step

    async def begin(self, name: str = "id") -> ProducerIdAndEpoch:
        """A producer that is ready for its first transaction."""
        reply = await self.coordinator.init_producer_id(name, TIMEOUT)
        assert reply.error is ErrorCode.none, reply
        return ProducerIdAndEpoch(reply.producer_id, reply.producer_epoch)

    async def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = "id") -> ErrorCode:
        return await ready(self.coordinator.add_partitions(name, producer, frozenset(partitions)))

    async def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True, name: str = "id") -> ErrorCode:
        return await ready(self.coordinator.end(name, producer, commit=commit))

    def stored(self, name: str = "id") -> TransactionMetadata:
        """What DescribeTransactions tells of an id."""
        found = self.coordinator.describe(name)
        assert isinstance(found, TransactionMetadata), found
        return found


async def ready(answer: T | Awaitable[T]) -> T:
    """An answer that is there already, or comes."""
    return await answer if isinstance(answer, Awaitable) else answer


@asynccontextmanager
async def running_transactions(transactions: Transactions | None = None) -> AsyncIterator[Transactions]:
    """Load, hand over, close."""
    transactions = transactions or Transactions()
    await transactions.load()
    try:
        yield transactions
    finally:
        await transactions.coordinator.close()


@asynccontextmanager
async def open_transaction(
    *partitions: TopicPartition, of: Transactions | None = None
) -> AsyncIterator[tuple[Transactions, ProducerIdAndEpoch]]:
    """A producer that has added the partitions to its first transaction."""
    async with running_transactions(of) as transactions:
        producer = await transactions.begin()
        assert await transactions.add(producer, *partitions) is ErrorCode.none
        yield transactions, producer
