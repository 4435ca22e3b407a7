"""The partitions that this broker leads, kept in step with the cluster's metadata (Kafka's ReplicaManager).

`Topics` calls it with the names of the topics that changed, so that a change costs the same however many other topics
there are. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from broker.errors import BrokerError, ConfigError
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition
from broker.zookeeper.cluster_metadata import ClusterMetadata, Topic

__all__ = ["ReplicaManager", "stored_log_config"]

logger = logging.getLogger(__name__)

FILES_AT_ONCE = 16


class ReplicaManager:
    """Opens the logs of partitions this broker leads, closes the others, deletes those of deleted topics."""

    def __init__(self, broker_id: int, logs: LogManager, defaults: LogConfig, *, max_lag_s: float = 30.0) -> None:
        self._broker_id = broker_id
        self._max_lag_s = max_lag_s
        self._logs = logs
        self._partitions: dict[TopicPartition, Partition] = {}
        self.defaults = defaults
        """The broker's settings, which those of a topic override."""
        self.on_isr: Callable[[Partition], None] = lambda partition: None
        """Called when the ISR of a partition should be written."""

    def get(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def of_topic(self, topic: str) -> list[Partition]:
        """The partitions of one topic that this broker leads."""
        return [partition for tp, partition in self._partitions.items() if tp.topic == topic]

    def offline(self, tp: TopicPartition) -> str:
        """Why a partition that this broker leads is offline; empty when only the broker's log tells it."""
        return self._logs.offline.get(tp, "")

    def expect(self, metadata: ClusterMetadata) -> None:
        """At start: each partition that this broker leads should have a log in one of the directories."""
        self._logs.expect(tp for tp, _ in self._ours(metadata, metadata.topics))

    def all(self) -> Mapping[TopicPartition, Partition]:
        """All partitions that this broker leads, as a live view."""
        return self._partitions

    def update_defaults(self, defaults: LogConfig, metadata: ClusterMetadata) -> None:
        """Apply changed broker settings to the logs of all topics that do not override them."""
        if defaults == self.defaults:
            return
        self.defaults = defaults
        for name, topic in metadata.topics.items():
            config = stored_log_config(name, topic.config, defaults)
            for index in topic.partitions:
                log = self._logs.get(TopicPartition(name, index))
                if log is not None:
                    log.update_config(config)

    async def open_new(self, metadata: ClusterMetadata, names: Collection[str]) -> None:
        """Create the logs of partitions of topics `names` that this broker will lead, and serve requests meanwhile."""
        new = [(tp, topic) for tp, topic in self._ours(metadata, names) if tp not in self._partitions]
        for start in range(0, len(new), FILES_AT_ONCE):
            opened = [(self._open_log(*item), item[1]) for item in new[start : start + FILES_AT_ONCE]]
            loop, threads = asyncio.get_running_loop(), self._logs.threads
            await asyncio.gather(
                *(
                    loop.run_in_executor(threads, self._assign_id, log, topic)
                    for log, topic in opened
                    if log is not None
                )
            )

    def apply(
        self, before: ClusterMetadata, after: ClusterMetadata, names: Collection[str]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Update the topics `names` from one metadata to the next: (newly led partitions, deleted partitions)."""
        led: list[TopicPartition] = []
        ours = dict(self._ours(after, names))
        for name in names:
            old, new = before.topics.get(name), after.topics.get(name)
            if old is not None:
                self._close_lost(old, ours)
                if new is not None and old.config != new.config:
                    self._logs.update_config(name, stored_log_config(name, new.config, self.defaults))
        for tp, topic in ours.items():
            info = topic.partitions[tp.partition]
            if tp in self._partitions:
                self._partitions[tp].update_state(info)
            elif (log := self._open_log(tp, topic)) is not None and self._assign_id(log, topic):
                self._partitions[tp] = Partition(
                    tp,
                    log,
                    info.leader_epoch,
                    self._logs.threads,
                    self._logs.append_threads,
                    info=info,
                    max_lag_s=self._max_lag_s,
                    on_isr=self._want_isr,
                )
                led.append(tp)
        gone = [
            TopicPartition(name, index)
            for name in names
            if name in before.topics and name not in after.topics
            for index in before.topics[name].partitions
        ]
        return led, gone

    def _want_isr(self, partition: Partition) -> None:
        self.on_isr(partition)

    async def delete(self, gone: Sequence[TopicPartition]) -> None:
        """Delete the logs of deleted partitions, and serve requests meanwhile."""
        for number, tp in enumerate(gone, 1):
            self._delete_log(tp)
            if number % FILES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def drain(self) -> None:
        """Wait for the queued appends."""
        for partition in list(self._partitions.values()):
            await partition.drain()

    def _ours(self, metadata: ClusterMetadata, names: Collection[str]) -> list[tuple[TopicPartition, Topic]]:
        return [
            (TopicPartition(topic.name, index), topic)
            for name in names
            if (topic := metadata.topics.get(name)) is not None
            for index, info in topic.partitions.items()
            if info.leader == self._broker_id
        ]

    def _close_lost(self, old: Topic, ours: Mapping[TopicPartition, Topic]) -> None:
        """Close partitions that this broker leads no longer; their logs stay."""
        for index in old.partitions:
            tp = TopicPartition(old.name, index)
            partition = self._partitions.get(tp)
            if partition is not None and (tp not in ours or partition.log.topic_id != ours[tp].topic_id):
                self._partitions.pop(tp).close()

    def _open_log(self, tp: TopicPartition, topic: Topic) -> Log | None:
        """The partition's log, after deleting one of an earlier topic of the same name.

        None when the disk fails: the partition is not served, and the next refresh tries again.
        """
        log = self._logs.get(tp)
        if log is not None and log.topic_id not in (None, topic.topic_id):
            logger.warning("%s on disk belongs to a deleted topic of that name; deleting it", tp)
            self._delete_log(tp)
            if self._logs.get(tp) is not None:
                return None
        try:
            return self._logs.create(tp, stored_log_config(tp.topic, topic.config, self.defaults))
        except BrokerError as error:
            logger.error("%s is not served: %s", tp, error)
            return None

    def _assign_id(self, log: Log, topic: Topic) -> bool:
        """Write the topic's id into the log's directory (blocks). False when that fails; then the log is not served."""
        try:
            log.assign_topic_id(topic.topic_id)
        except BrokerError as error:
            logger.error("%s is not served: %s", log.directory.name, error)
            return False
        return True

    def _delete_log(self, tp: TopicPartition) -> None:
        try:
            self._logs.delete(tp)
        except BrokerError as error:
            logger.error("cannot delete the log of the deleted partition %s: %s", tp, error)


def stored_log_config(topic: str, overrides: Mapping[str, str], defaults: LogConfig) -> LogConfig:
    """A topic's settings from ZooKeeper, over `defaults`.

    Invalid settings, which another program may have written there, are logged and ignored: one topic must not keep the
    broker from serving the others.
    """
    try:
        return LogConfig.from_properties(overrides, defaults)
    except ConfigError:
        pass
    config = defaults
    for key, value in overrides.items():
        try:
            config = LogConfig.from_properties({key: value}, config)
        except ConfigError as error:
            logger.error("topic %s: %s; the setting is ignored", topic, error)
    return config
