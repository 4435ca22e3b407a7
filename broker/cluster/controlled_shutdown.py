"""What a broker does before it stops: it hands its leadership over while it still serves, as Kafka's brokers do."""

from __future__ import annotations

import asyncio
import logging

from broker.cluster.failure_detector import FailureDetector
from broker.cluster.leadership_handover import leave_partitions
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import PykafkaError
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.controller_election import ControllerElection
from broker.zookeeper.metadata_store import MetadataCalls
from broker.zookeeper.registry import Registry

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0


class ControlledShutdown:
    """Run it once, before the listeners are closed."""

    def __init__(
        self,
        topics: MetadataCache,
        registry: Registry,
        calls: MetadataCalls,
        changes: ChangeNotifications,
        election: ControllerElection,
        detector: FailureDetector,
    ) -> None:
        self._topics = topics
        self._registry = registry
        self._calls = calls
        self._changes = changes
        self._election = election
        self._detector = detector

    async def run(self) -> None:
        """Let another in-sync replica lead each partition that has one, while this broker still serves (P9).

        It stops to follow first, so that no leader takes it into an ISR again. After that it resigns as controller.
        """
        broker_id = self._topics.replicas.broker_id
        names = [
            name
            for name, topic in self._topics.metadata.topics.items()
            if any(broker_id in info.isr and len(info.replicas) > 1 for info in topic.partitions.values())
        ]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._topics.replicas.stop_following()
                if names:
                    await self._calls(self._leave, names)
                refreshing = [self._topics.refresh(names)] if names else []
                await asyncio.gather(self._calls(self._election.stop), *refreshing)
        except (PykafkaError, TimeoutError) as error:
            logger.warning("cannot hand over leadership; the controller elects when this broker is gone: %s", error)

    def _leave(self, names: list[str]) -> None:
        topics = self._registry.topics(names).values()
        live = set(self._registry.brokers()) - set(self._detector.suspected)
        left = leave_partitions(self._registry, self._topics.replicas.broker_id, topics, live)
        self._changes.notify_isr_change(left)
