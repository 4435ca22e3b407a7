"""The partitions that this broker leads or follows, kept in step with the cluster's metadata (Kafka's ReplicaManager).

`Topics` calls it with the names of the topics that changed, so that a change costs the same however many other topics
there are. It makes a Partition where this broker leads and a Follower where it follows. A role ends only for one of the
same or a later leader epoch, so metadata that come late change nothing (P4). The high watermark goes from role to role.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConfigError
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.replica.append_queue import AppendQueue
from broker.replica.fetcher_manager import FetcherManager
from broker.replica.follower import Follower
from broker.replica.partition import Partition
from broker.zookeeper.cluster_metadata import NO_LEADER, ClusterMetadata, PartitionInfo, Topic

__all__ = ["ReplicaManager", "stored_log_config"]

logger = logging.getLogger(__name__)

FILES_AT_ONCE = 16
STALE_DELAY_S = 0.5
"""Topics about which leaders complain are read again together, after this time."""


class ReplicaManager:
    """Opens the logs of partitions that this broker hosts, closes the others, deletes those of deleted topics."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        defaults: LogConfig,
        *,
        on_stale: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        """`on_stale(names)`: leaders say that this broker's metadata of these topics are old."""
        self._config = config
        self._broker_id = config.broker_id
        self._logs = logs
        self._partitions: dict[TopicPartition, Partition] = {}
        self._followers: dict[TopicPartition, Follower] = {}
        self._fetchers = FetcherManager(config, self._note_stale)
        self._on_stale = on_stale
        self._stale: set[str] = set()
        self._moved: list[TopicPartition] = []
        """Partitions that were reassigned to other brokers, whose logs are to be deleted."""
        self.on_isr: Callable[[Partition], None] = lambda partition: None
        """Called when the ISR of a partition may have to be written (IsrWriter.request)."""
        self.defaults = defaults
        """The broker's settings, which those of a topic override."""
        logs.high_watermarks = self.high_watermarks

    def get(self, tp: TopicPartition) -> Partition | None:
        """The partition if this broker leads it."""
        return self._partitions.get(tp)

    def of_topic(self, topic: str) -> list[Partition]:
        """The partitions of one topic that this broker leads."""
        return [partition for tp, partition in self._partitions.items() if tp.topic == topic]

    def offline(self, tp: TopicPartition) -> str:
        """Why a partition that this broker leads is offline; empty when only the broker's log tells it."""
        return self._logs.offline.get(tp, "")

    def expect(self, metadata: ClusterMetadata) -> None:
        """At start: each partition that this broker hosts should have a log in one of the directories."""
        self._logs.expect(tp for tp, _ in self._hosted(metadata, metadata.topics))

    def all(self) -> Mapping[TopicPartition, Partition]:
        """All partitions that this broker leads, as a live view."""
        return self._partitions

    def followers(self) -> Mapping[TopicPartition, Follower]:
        """All partitions that this broker follows, as a live view."""
        return self._followers

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Of all partitions with several replicas, for the checkpoint."""
        found = {tp: follower.high_watermark for tp, follower in self._followers.items()}
        for tp, partition in self._partitions.items():
            if partition.in_sync is not None:
                found[tp] = partition.high_watermark
        return found

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
        """Create the logs of partitions of topics `names` that this broker will host, and serve requests meanwhile."""
        new = [item for item in self._hosted(metadata, names) if self._needs_log(*item)]
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

    def _needs_log(self, tp: TopicPartition, topic: Topic) -> bool:
        has_role = tp in self._partitions or tp in self._followers
        return not has_role and topic.partitions[tp.partition].leader != NO_LEADER

    def apply(
        self, before: ClusterMetadata, after: ClusterMetadata, names: Collection[str]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Update the topics `names` from one metadata to the next: (newly led partitions, deleted partitions)."""
        led: list[TopicPartition] = []
        if before.brokers != after.brokers:
            self._fetchers.update_brokers(after.brokers)
        hosted = dict(self._hosted(after, names))
        for name in names:
            old, new = before.topics.get(name), after.topics.get(name)
            if old is not None:
                self._close_lost(old, new, hosted)
                if new is not None and old.config != new.config:
                    self._logs.update_config(name, stored_log_config(name, new.config, self.defaults))
        for tp, topic in hosted.items():
            info = topic.partitions[tp.partition]
            if info.leader == self._broker_id:
                if self._lead(tp, topic, info):
                    led.append(tp)
            else:
                self._follow(tp, topic, info)
        gone = [
            TopicPartition(name, index)
            for name in names
            if name in before.topics and name not in after.topics
            for index in before.topics[name].partitions
        ]
        return led, gone

    async def delete(self, gone: Sequence[TopicPartition]) -> None:
        """Delete the logs of deleted partitions, and of those that were reassigned. Serve requests meanwhile."""
        moved, self._moved = self._moved, []
        for number, tp in enumerate([*gone, *moved], 1):
            self._delete_log(tp)
            if number % FILES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop following, and wait for the queued appends."""
        for follower in self._followers.values():
            follower.close()
        await self._fetchers.close()
        queues = [role.queue for role in self._partitions.values()] + [role.queue for role in self._followers.values()]
        for queue in queues:
            await queue.drain()

    def _hosted(self, metadata: ClusterMetadata, names: Collection[str]) -> list[tuple[TopicPartition, Topic]]:
        return [
            (TopicPartition(topic.name, index), topic)
            for name in names
            if (topic := metadata.topics.get(name)) is not None
            for index, info in topic.partitions.items()
            if info.leader == self._broker_id or self._broker_id in info.replicas
        ]

    def _close_lost(self, old: Topic, new: Topic | None, hosted: Mapping[TopicPartition, Topic]) -> None:
        """Give up the roles in partitions that this broker hosts no longer."""
        for index in old.partitions:
            tp = TopicPartition(old.name, index)
            role = self._partitions.get(tp) or self._followers.get(tp)
            if role is None or (tp in hosted and role.log.topic_id == hosted[tp].topic_id):
                continue
            self._end_role(tp)
            if new is not None and new.topic_id == old.topic_id and index in new.partitions:
                logger.info(
                    "%s was reassigned to brokers %s: deleting it here", tp, list(new.partitions[index].replicas)
                )
                self._moved.append(tp)

    # --- roles

    def _lead(self, tp: TopicPartition, topic: Topic, info: PartitionInfo) -> bool:
        """Lead a partition; whether it was not led before."""
        partition = self._partitions.get(tp)
        if partition is not None:
            partition.update_state(info)
        if partition is not None or self._known_epoch(tp) > info.leader_epoch:
            return False
        log = self._log_with_id(tp, topic)
        if log is None:
            return False
        high_watermark, queue = self._end_role(tp)
        log.committed = None  # with several replicas the partition sets it
        self._partitions[tp] = Partition(
            tp,
            log,
            info.leader_epoch,
            self._logs.threads,
            self._logs.append_threads,
            info=info,
            high_watermark=high_watermark,
            max_lag_s=self._config.replica_lag_time_max_ms / 1000,
            on_isr=self._isr_may_change,
            queue=queue,
        )
        return True

    def _follow(self, tp: TopicPartition, topic: Topic, info: PartitionInfo) -> None:
        follower = self._followers.get(tp)
        if follower is not None and (follower.leader, follower.leader_epoch) == (info.leader, info.leader_epoch):
            return
        has_role = follower is not None or tp in self._partitions
        if self._known_epoch(tp) > info.leader_epoch or (info.leader == NO_LEADER and not has_role):
            return
        log = self._log_with_id(tp, topic)
        if log is None:
            return
        high_watermark, queue = self._end_role(tp, next_leader=info.leader)
        follower = Follower(tp, log, info.leader, info.leader_epoch, high_watermark, queue, self._logs.threads)
        self._followers[tp] = follower
        if info.leader != NO_LEADER:
            self._fetchers.add(follower, topic.topic_id)

    def _known_epoch(self, tp: TopicPartition) -> int:
        """The leader epoch of the present role; -1 without one."""
        role = self._partitions.get(tp) or self._followers.get(tp)
        return -1 if role is None else role.leader_epoch

    def _end_role(self, tp: TopicPartition, *, next_leader: int = NO_LEADER) -> tuple[int, AppendQueue]:
        """Close what this broker is in a partition; its high watermark and its appends go to the next role.

        With the same `next_leader` the fetcher stays; it gets the next follower in place of this one.
        """
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            partition.close()
            return partition.high_watermark, partition.queue
        follower = self._followers.pop(tp, None)
        if follower is not None:
            follower.close()
            if follower.leader != next_leader:
                self._fetchers.remove(follower)
            return follower.high_watermark, follower.queue
        return self._logs.high_watermark(tp), AppendQueue(self._logs.append_threads)

    def _isr_may_change(self, partition: Partition) -> None:
        self.on_isr(partition)

    def _note_stale(self, topic: str) -> None:
        if not self._stale:
            asyncio.get_running_loop().call_later(STALE_DELAY_S, self._report_stale)
        self._stale.add(topic)

    def _report_stale(self) -> None:
        stale, self._stale = self._stale, set()
        self._on_stale(stale)

    # --- logs

    def _log_with_id(self, tp: TopicPartition, topic: Topic) -> Log | None:
        role = self._partitions.get(tp) or self._followers.get(tp)
        log = self._open_log(tp, topic) if role is None else role.log
        return log if log is not None and self._assign_id(log, topic) else None

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
