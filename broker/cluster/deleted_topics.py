"""Deletes the logs of topics that do not exist any more.

Only ZooKeeper's note of its deletion (zookeeper/topic_deletions.py) proves that a topic was deleted. Without one its
logs stay: ZooKeeper's data may have been restored from a copy that is older than the topic. Belongs to the event loop.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping

from broker.background_tasks import BackgroundTasks
from broker.protocol.topic_partition import TopicPartition
from broker.replica.replica_manager import ReplicaManager
from broker.zookeeper.cluster_store import ClusterStore

logger = logging.getLogger(__name__)

_NO_TOPIC_ID = uuid.UUID(int=0)
"""Of topics that Kafka made before version 2.8. Their deletion leaves no note."""


class DeletedTopics:
    def __init__(self, store: ClusterStore, replicas: ReplicaManager, tasks: BackgroundTasks) -> None:
        self._registry = store.registry
        self._store = store
        self._replicas = replicas
        self._broker_id = replicas.broker_id
        self._tasks = tasks
        self._vanished: dict[TopicPartition, uuid.UUID] = {}

    def add(self, gone: Mapping[TopicPartition, uuid.UUID]) -> None:
        """The metadata have lost these partitions, of topics with these ids. Call `delete_logs` then."""
        self._vanished.update(gone)

    async def delete_logs(self) -> list[TopicPartition]:
        """Delete the logs of partitions that were lost because of a deletion; returns these partitions.

        Raises BrokerError when ZooKeeper is away; then the next call does it.
        """
        metadata = self._replicas.metadata
        self._vanished = {tp: id for tp, id in self._vanished.items() if metadata.topic_by_id(id) is None}
        logs = self._replicas.logs_of(set(self._vanished.values()))
        hosted = {self._vanished[tp] for tp in logs if tp in self._vanished}
        noted = {_NO_TOPIC_ID}
        if hosted:  # a broker without logs of the topic has no note
            noted |= set(await self._store(self._registry.deletions.noted, self._broker_id))
        vanished, self._vanished = self._vanished, {}
        deleted = [tp for tp, topic_id in vanished.items() if topic_id not in hosted or topic_id in noted]
        for tp in vanished.keys() - deleted:
            logger.error("ZooKeeper has no %s any more, and no note of its deletion; its log is kept, not served", tp)
        await self._replicas.delete(deleted)
        self._forget({vanished[tp] for tp in deleted})
        return deleted

    async def delete_left_logs(self) -> None:
        """At start, delete the logs of topics that were deleted while this broker was away, and of partitions that were
        reassigned to others."""
        deleted = await self._store(self._registry.deletions.noted, self._broker_id)
        left = self._replicas.logs_of(deleted)
        for tp in left:
            logger.info("%s: the topic was deleted while this broker was away; deleting its log", tp)
        await self._replicas.delete(list(left))
        self._forget(deleted)
        for tp in self._replicas.unknown_logs():
            logger.warning("%s is in log.dirs, but the cluster has no such topic; it is left there and not served", tp)

    def _forget(self, topic_ids: Collection[uuid.UUID]) -> None:
        """Where the logs of these topics are gone, ZooKeeper's notes for this broker may go. If that fails, the next
        start does it. With a log directory offline they stay: it may hold more."""
        left = {log.topic_id for log in self._replicas.logs_of(topic_ids).values()}  # they could not be deleted
        gone = [topic_id for topic_id in topic_ids if topic_id not in left]
        if gone and not self._replicas.failed_directories:
            work = self._store(self._registry.deletions.forget, self._broker_id, gone)
            self._tasks.begin("forgetting topics that were deleted", work)
