"""What a broker does before it stops: it hands its leadership over while it still serves, as Kafka's brokers do."""

from __future__ import annotations

import asyncio
import logging

from broker.cluster.failure_detector import FailureDetector
from broker.cluster.leadership_handover import leave_partitions
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import PykafkaError
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.controller_election import ControllerElection

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0


async def hand_over(
    topics: MetadataCache, store: ClusterStore, election: ControllerElection, detector: FailureDetector
) -> None:
    """Let another in-sync replica lead each partition that has one, while this broker still serves (P9).

    It stops to follow first, so that no leader takes it into an ISR again. After that it resigns as controller. Run it
    once, before the listeners are closed.
    """
    broker_id = topics.replicas.broker_id
    names = [
        name
        for name, topic in topics.metadata.topics.items()
        if any(broker_id in info.isr and len(info.replicas) > 1 for info in topic.partitions.values())
    ]

    def leave() -> None:
        registry = store.registry
        live = set(registry.brokers()) - set(detector.suspected)
        left = leave_partitions(registry, broker_id, registry.topics(names).values(), live)
        store.changes.notify_isr_change(left)

    try:
        async with asyncio.timeout(TIMEOUT_S):
            await topics.replicas.stop_following()
            if names:
                await store(leave)
            refreshing = [topics.refresh(names)] if names else []
            await asyncio.gather(store(election.stop), *refreshing)
    except (PykafkaError, TimeoutError) as error:
        logger.warning("cannot hand over leadership; the controller elects when this broker is gone: %s", error)
