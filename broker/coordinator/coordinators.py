"""The group coordinator and the transaction coordinator of a broker. Owned by server.py.

Each keeps its records in an internal topic, which is created when a client first needs it. From then on a partition is
loaded when this broker becomes its leader. A long load does not delay the start of the broker: until
it ends, clients get COORDINATOR_LOAD_IN_PROGRESS and retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.clock import Clock
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.topics import Topics
from broker.config.broker_config import BrokerConfig
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.record_store import LogRecordStore
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_markers import LogMarkerWriter
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition

__all__ = ["Coordinators"]

logger = logging.getLogger(__name__)

LOAD_WAIT_S = 0.25
"""How long to wait for a load: if it ends within this time, no client has to retry its first request."""

Load = Callable[[int], Awaitable[None]]


class Coordinators:
    """Call `start` once the topics are known, and `close` before the logs are closed."""

    def __init__(self, config: BrokerConfig, topics: Topics, producer_ids: ProducerIds, clock: Clock) -> None:
        self._topics = topics
        self._loads: set[asyncio.Task[None]] = set()
        self._is_starting = True
        self.groups = GroupCoordinator(
            LogRecordStore(topics, GROUP_OFFSETS_TOPIC, clock),
            clock,
            config,
            self._partitions(GROUP_OFFSETS_TOPIC, config.offsets_topic_num_partitions),
        )
        self.markers = LogMarkerWriter(topics, self.groups.transaction_ended)
        self.transactions = TransactionCoordinator(
            LogRecordStore(topics, TRANSACTION_STATE_TOPIC, clock),
            self.markers,
            producer_ids,
            clock,
            config,
            self._partitions(TRANSACTION_STATE_TOPIC, config.transaction_state_log_num_partitions),
            epoch_of=lambda partition: (
                topics.partition(TopicPartition(TRANSACTION_STATE_TOPIC, partition)).leader_epoch
            ),
        )

    def _partitions(self, topic: str, configured: int) -> int:
        held = self._topics.metadata.topics.get(topic)
        return len(held.partitions) if held else configured

    async def start(self) -> None:
        """Load the groups, then the transactions, whose markers change the groups' offsets."""
        self._topics.add_deletion_listener(self.groups.forget_partitions)
        await self._topics.add_leadership_listener(
            GROUP_OFFSETS_TOPIC, self._in_background(self.groups.load, GROUP_OFFSETS_TOPIC), self.groups.unload
        )
        await self._topics.add_leadership_listener(
            TRANSACTION_STATE_TOPIC,
            self._in_background(self.transactions.load, TRANSACTION_STATE_TOPIC),
            self.transactions.unload,
        )
        self._is_starting = False
        if self._loads:
            await asyncio.wait(self._loads, timeout=LOAD_WAIT_S)

    def _in_background(self, load: Load, topic: str) -> Load:
        async def run(partition: int) -> None:
            try:
                await load(partition)
            except Exception:
                logger.exception("%s-%d cannot be loaded and is not served", topic, partition)

        async def begin(partition: int) -> None:
            task = asyncio.ensure_future(run(partition))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)
            if not self._is_starting:
                await asyncio.wait([task], timeout=LOAD_WAIT_S)

        return begin

    async def close(self) -> None:
        """Stop both coordinators. Returns when all appends have ended."""
        for task in self._loads:
            task.cancel()
        await self.transactions.close()
        await self.groups.close()
