"""The parts of share groups in one broker (KIP-932): the share coordinator, the persister and the share partitions.

Owned by server.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.clock import Clock
from broker.cluster.group_configs import GroupConfigs
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.topic_changes import TopicChanges
from broker.config.broker_config import BrokerConfig
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.peer_requests import Connect
from broker.coordinator.record_store import LogRecordStore
from broker.protocol.topic_names import SHARE_STATE_TOPIC
from broker.replica.partition import Partition
from broker.share.dead_letters import DeadLetterWriter
from broker.share.persister import SharePartitionKey
from broker.share.share_coordinator import ShareCoordinator
from broker.share.share_coordinator_client import ClusterPersister
from broker.share.share_group_states import ShareGroupStates
from broker.share.share_partition_state import ShareLimits
from broker.share.share_partitions import SharePartitions
from broker.share.share_sessions import ShareSessions


class ShareRuntime:
    """Give `coordinator` to the `Coordinators`. Close it before these."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: MetadataCache,
        topic_changes: TopicChanges,
        clock: Clock,
        connect: Connect,
        configs: GroupConfigs,
        reset_offset: Callable[[str, Partition], Awaitable[int]],
        settings: Callable[[], BrokerConfig],
    ) -> None:
        """`reset_offset`: where a group begins to read a partition. `settings` are those in force."""
        self._topics = topics
        self._configs = configs
        log = LogRecordStore(topics, SHARE_STATE_TOPIC, clock)
        self.coordinator = ShareCoordinator(log, clock, config, self._exists)
        self.persister = ClusterPersister(topics, topic_changes, config.broker_id, self.coordinator, connect)
        self.dead_letters = DeadLetterWriter(config.broker_id, settings, topics, topic_changes, configs, clock, connect)
        self.partitions = SharePartitions(
            topics, self.persister, clock, self._limits, reset_offset, self.dead_letters.write
        )
        self.sessions = ShareSessions(self.partitions)
        configs.add_change_listener(self.partitions.limits_changed)
        self.states: ShareGroupStates

    def serve(self, groups: GroupCoordinator) -> None:
        """From now on make the states of these groups' partitions."""
        self.states = ShareGroupStates(groups, self.persister)

    def _exists(self, key: SharePartitionKey) -> bool:
        topic = self._topics.metadata.topic_by_id(key.topic_id)
        return topic is not None and key.partition in topic.partitions

    def _limits(self, group_id: str) -> ShareLimits:
        config = self._configs.of(group_id)
        return ShareLimits(
            config.share_delivery_count_limit,
            config.share_partition_max_record_locks,
            config.share_record_lock_duration_ms / 1000,
            bool(config.errors_deadletterqueue_topic_name),
        )

    async def close(self) -> None:
        """End the requests to other brokers, so that no request of a client waits for them."""
        await self.states.close()
        await self.partitions.close()
        await self.dead_letters.close()
        await self.persister.close()
