"""The group coordinator and the transaction coordinator of a broker. Owned by server.py.

Each keeps its records in an internal topic, which is created when a client first needs it. From then on a partition is
loaded when this broker becomes its leader, and dropped when it stops leading it (P7). A load waits until this broker
knows which records are committed. Until it ends, clients get COORDINATOR_LOAD_IN_PROGRESS and retry. Nothing else waits
for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.producer_ids import ProducerIds
from broker.config.broker_config import BrokerConfig
from broker.config.group_config import GroupConfig
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.peer_requests import Connect
from broker.coordinator.read_index import ReadIndex
from broker.coordinator.record_store import LogRecordStore, Restored
from broker.coordinator.sharded_coordinator import ShardedCoordinator
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_markers import ClusterMarkerWriter, LogMarkerWriter
from broker.coordinator.transaction_verifier import TransactionVerifier
from broker.errors import BrokerError
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition

logger = logging.getLogger(__name__)

LOAD_WAIT_S = 0.25
"""How long the start of the broker waits for loads, and the deletion of a topic for its offsets. When they end within
this time, no client has to ask again."""

LOAD_RETRY_S = 30.0


class Coordinators:
    """Call `start` once the topics are known, and `close` before the logs are closed."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: MetadataCache,
        producer_ids: ProducerIds,
        clock: Clock,
        connect: Connect,
        restored: Restored | None = None,
        others: Mapping[str, ShardedCoordinator[Any]] | None = None,
        config_of_group: Callable[[str], GroupConfig] = lambda _: GroupConfig(),
        is_store_connected: Callable[[], bool] = lambda: True,
    ) -> None:
        """`connect` makes connections to other brokers. `restored`: offsets of groups that the log may lack. `others`:
        coordinators of a layer above, by their internal topics. `config_of_group`: the settings in force of a group.
        `is_store_connected`: whether ZooKeeper answers."""
        self._topics = topics
        self._tasks = BackgroundTasks()
        offsets = LogRecordStore(topics, GROUP_OFFSETS_TOPIC, clock, restored)
        self._read_index = ReadIndex(topics, config.broker_id, connect, is_store_connected)
        self.groups = GroupCoordinator(
            offsets,
            clock,
            config,
            config.offsets_topic_num_partitions,
            leads=lambda partition: self._read_index.leads(TopicPartition(GROUP_OFFSETS_TOPIC, partition)),
            topics=lambda: topics.metadata.topics,
            config_of=config_of_group,
        )
        self.markers = LogMarkerWriter(topics, self.groups.transaction_ended)
        self._cluster_markers = ClusterMarkerWriter(topics, config.broker_id, self.markers, connect)
        self.transactions = TransactionCoordinator(
            LogRecordStore(topics, TRANSACTION_STATE_TOPIC, clock),
            self._cluster_markers,
            producer_ids,
            clock,
            config,
            config.transaction_state_log_num_partitions,
            epoch_of=lambda partition: (
                topics.partition(TopicPartition(TRANSACTION_STATE_TOPIC, partition)).leader_epoch
            ),
        )
        self.verifier = TransactionVerifier(topics, config.broker_id, self.transactions, connect)
        self._by_topic: Mapping[str, ShardedCoordinator[Any]] = {
            GROUP_OFFSETS_TOPIC: self.groups,
            TRANSACTION_STATE_TOPIC: self.transactions,
            **(others or {}),
        }
        self._count_partitions(INTERNAL_TOPICS)
        topics.add_change_listener(self._count_partitions)
        topics.add_change_listener(self.groups.topics_changed)

    def _count_partitions(self, names: Collection[str]) -> None:
        """Take the number of partitions of the internal topics among `names`. It is fixed once they exist.

        The broker that created them may have had other settings than this one. With another number, an id would be in
        another partition here, and two brokers would coordinate it (P7).
        """
        for topic, coordinator in self._by_topic.items():
            found = self._topics.metadata.topics.get(topic) if topic in names else None
            if found is not None:
                coordinator.partitions = len(found.partitions)

    async def start(self) -> None:
        """Load what this broker leads, and follow the leadership of the internal topics from now on."""
        self._topics.add_deletion_listener(self._forget_partitions)
        for topic, coordinator in self._by_topic.items():
            self._topics.add_leadership_listener(
                topic, partial(self._elected, coordinator), partial(self._resigned, coordinator)
            )
        await self._tasks.wait(LOAD_WAIT_S)

    async def _forget_partitions(self, deleted: Collection[TopicPartition]) -> None:
        """Drop the offsets of deleted partitions. Slow followers must not delay the next change of the metadata."""
        forgetting = self._tasks.begin("forgetting offsets of deleted topics", self.groups.forget_partitions(deleted))
        await asyncio.wait([forgetting], timeout=LOAD_WAIT_S)

    def _elected(self, coordinator: ShardedCoordinator[Any], partition: Partition) -> None:
        self._count_partitions([partition.tp.topic])
        loading = coordinator.load(partition.tp.partition)
        loaded = self._loaded(coordinator, partition, partition.leader_epoch, loading)
        self._tasks.begin(f"loading {partition.tp}", loaded)

    async def _loaded(
        self, coordinator: ShardedCoordinator[Any], partition: Partition, epoch: int, loading: Awaitable[None]
    ) -> None:
        """Wait for a load. If it fails, as when the disk does not answer, try again while this broker leads."""
        number = partition.tp.partition
        while True:
            try:
                await loading
                return
            except Exception:
                logger.exception("%s cannot be loaded and is not served; trying again", partition.tp)
            await asyncio.sleep(LOAD_RETRY_S)
            if coordinator.coordinates(number) or not self._leads(partition, epoch):
                return
            loading = coordinator.load(number)

    def _leads(self, partition: Partition, epoch: int) -> bool:
        try:
            return self._topics.partition(partition.tp, epoch) is partition
        except BrokerError:
            return False

    def _resigned(self, coordinator: ShardedCoordinator[Any], partition: Partition) -> None:
        coordinator.unload(partition.tp.partition)

    async def disconnect(self) -> None:
        """End the requests to other brokers, so that no request of a client waits for them."""
        async with contextlib.AsyncExitStack() as steps:  # if one raises, the others are taken all the same
            for part in (self._cluster_markers, self._read_index, self.verifier):
                steps.push_async_callback(part.close)

    async def close(self) -> None:
        """Stop all coordinators. Returns when all appends have ended."""
        async with contextlib.AsyncExitStack() as steps:
            for coordinator in self._by_topic.values():
                steps.push_async_callback(coordinator.close)
            steps.push_async_callback(self._tasks.close)
