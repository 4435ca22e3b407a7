"""Both coordinators of a broker, started over the logs and stopped together.

Owned by server.py. What a coordinator keeps lies in an internal topic of its own, which is made when a
client first needs it; from then on the partitions led here are loaded as they come. A long load does not
hold the broker up: whoever asks for what is not loaded yet is told so, and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.clock import Clock
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.topics import Topics
from broker.config.broker_config import BrokerConfig
from broker.coordinator.group_config import GroupConfig
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.log_record_store import LogRecordStore
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_markers import LogMarkerWriter
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition

__all__ = ["Coordinators"]

logger = logging.getLogger(__name__)

LOADED_SOON_S = 0.25
"""What is loaded within this time is there before the first request for it, which need not be made again."""

Load = Callable[[int], Awaitable[None]]


class Coordinators:
    """`start` once the topics are known, `close` before their logs are."""

    def __init__(self, config: BrokerConfig, topics: Topics, producer_ids: ProducerIds, clock: Clock) -> None:
        self._topics = topics
        self._loads: set[asyncio.Task[None]] = set()
        self._is_starting = True
        self.groups = GroupCoordinator(
            LogRecordStore(topics, GROUP_OFFSETS_TOPIC, clock),
            clock,
            _group_config(config),
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
        """Load what is stored of groups, then of transactions, whose markers change groups' offsets."""
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
            await asyncio.wait(self._loads, timeout=LOADED_SOON_S)

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
                await asyncio.wait([task], timeout=LOADED_SOON_S)

        return begin

    async def close(self) -> None:
        """Answer nobody any more, and see what is being stored end."""
        for task in self._loads:
            task.cancel()
        await self.transactions.close()
        await self.groups.close()


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_minutes=config.offsets_retention_minutes,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
