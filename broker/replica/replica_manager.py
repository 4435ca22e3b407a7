"""The partitions that this broker leads or follows, kept in step with the cluster's metadata (Kafka's ReplicaManager).

The metadata cache calls it with the names of the topics that changed, so that a change costs the same however many
other topics there are. It makes a Partition where this broker leads and a Follower where it follows. A role ends only
for one of the same or a later leader epoch, so metadata that come late change nothing (P4). The high watermark goes
from role to role. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConfigError
from broker.log.log import Log
from broker.log.log_config import REMOTE_STORAGE, LogConfig
from broker.log.manager import LogManager
from broker.metrics import TopicMetrics
from broker.net.peer_security import PeerSecurity
from broker.protocol.topic_partition import TopicPartition
from broker.replica.append_queue import AppendQueue
from broker.replica.cluster_metadata import NO_LEADER, NO_STATE, ClusterMetadata, PartitionInfo, Topic
from broker.replica.fetcher_manager import FetcherManager
from broker.replica.follower import Follower
from broker.replica.partition import Partition
from broker.replica.replication_quota import ReplicationQuota

if TYPE_CHECKING:
    from broker.archive.archive_manager import ArchiveManager

logger = logging.getLogger(__name__)

FILES_AT_ONCE = 16
STALE_DELAY_S = 0.5
"""Topics about which leaders complain are read again together, after this time."""
UNSERVED_RETRY_S = 5.0
"""How often to try to open logs again that the disk refused."""


class ReplicaManager:
    """Opens the logs of partitions that this broker hosts, closes the others, deletes those of deleted topics."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        *,
        peers: PeerSecurity = PeerSecurity(),  # noqa: B008 (immutable)
        archive: ArchiveManager | None = None,
    ) -> None:
        """`peers`: how to connect to other brokers. `archive`: what copies the logs of this broker to the archive."""
        self._config = config
        self.broker_id = config.broker_id
        self._logs = logs
        self.metadata = ClusterMetadata("")
        """By which the roles are what they are."""
        self.led: dict[TopicPartition, Partition] = {}
        """All partitions that this broker leads."""
        self.followed: dict[TopicPartition, Follower] = {}
        """All partitions that this broker follows."""
        self.leader_quota, self.follower_quota = (
            ReplicationQuota(
                config.broker_id,
                samples=config.replication_quota_window_num,
                window_s=config.replication_quota_window_size_seconds,
            )
            for _ in range(2)
        )
        """What this broker sends to throttled followers, and fetches for throttled replicas of its own."""
        self._fetchers = FetcherManager(config, peers, self._note_stale, self.follower_quota)
        self.on_stale: Callable[[Collection[str]], None] = lambda names: None
        """Called with names of topics: other brokers say that this broker's metadata of them are old."""
        self._stale: set[str] = set()
        self._report: asyncio.TimerHandle | None = None
        self._broker_epochs: dict[int, int] = {}
        """Of the registered brokers."""
        self._unserved: dict[TopicPartition, str] = {}
        """Why partitions that this broker hosts have no role here: the disk refused their logs."""
        self._retry: asyncio.TimerHandle | None = None
        self._moved: list[TopicPartition] = []
        """Partitions that were reassigned to other brokers, whose logs are to be deleted."""
        self.metrics: dict[str, TopicMetrics] = collections.defaultdict(TopicMetrics)
        """By topic, from the first partition that this broker leads or follows until the topic is deleted."""
        self.on_isr: Callable[[Partition], None] = lambda partition: None
        """Called when the ISR of a partition may have to be written (IsrWriter.request)."""
        self.defaults = LogConfig.from_properties(config.topic_defaults())
        """The broker's settings, which those of a topic override."""
        logs.high_watermarks = self.high_watermarks
        self._archive = archive
        if archive is not None:
            archive.on_ready = lambda tp: self.on_stale({tp.topic})

    def role(self, tp: TopicPartition) -> Partition | Follower | None:
        """The partition if this broker leads or follows it."""
        return self.led.get(tp) or self.followed.get(tp)

    def of_topic(self, topic: str) -> list[Partition]:
        """The partitions of one topic that this broker leads."""
        return [partition for tp, partition in self.led.items() if tp.topic == topic]

    def offline(self, tp: TopicPartition) -> str:
        """Why a partition that this broker leads is offline; empty when only the broker's log tells it."""
        return self._logs.offline.get(tp, "")

    def awaits_archive(self, tp: TopicPartition) -> bool:
        """Whether this broker will lead a partition as soon as it knows where its archive ends."""
        return self._archive is not None and tp not in self.led and not self._archive.may_serve(tp)

    def start(self, metadata: ClusterMetadata) -> None:
        """Lead and follow, at start. Each partition that this broker hosts should have a log in one of the directories.
        The state of one that has lost its only replica says so (`state_at_start`)."""
        hosted = dict(self._hosted(metadata, metadata.topics))
        states = [(tp, topic.partitions[tp.partition]) for tp, topic in hosted.items()]
        lost = {tp for tp, info in states if len(info.replicas) == 1 and not info.isr and not info.is_restored}
        self._logs.expect(hosted, lost)
        self.apply(metadata, metadata.topics)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Of all partitions with several replicas, for the checkpoint."""
        found = {tp: follower.high_watermark for tp, follower in self.followed.items()}
        for tp, partition in self.led.items():
            if partition.in_sync is not None:
                found[tp] = partition.high_watermark
        return found

    def log_config(self, topic: Topic) -> LogConfig:
        """The settings of a topic: its own over the broker's."""
        return stored_log_config(topic.name, topic.config, self.defaults)

    def update_config(self, config: BrokerConfig) -> None:
        """Apply changed broker settings to all topics that do not override them, and to the rates of replication."""
        self.leader_quota.rate = config.leader_replication_throttled_rate
        self.follower_quota.rate = config.follower_replication_throttled_rate
        defaults = LogConfig.from_properties(config.topic_defaults())
        if defaults == self.defaults:
            return
        self.defaults = defaults
        for name, topic in self.metadata.topics.items():
            config_of_topic = self.log_config(topic)
            for index in topic.partitions:
                log = self._logs.get(TopicPartition(name, index))
                if log is not None:
                    log.update_config(config_of_topic)

    async def open_new(self, metadata: ClusterMetadata, names: Collection[str]) -> None:
        """Create the logs of partitions of topics `names` that this broker will host, and serve requests meanwhile.

        Ignores errors: `apply` tries again, and reports them.
        """
        new = [item for item in self._hosted(metadata, names) if self._needs_log(*item)]
        loop, threads = asyncio.get_running_loop(), self._logs.threads
        for start in range(0, len(new), FILES_AT_ONCE):
            assigned: list[asyncio.Future[None]] = []
            for tp, topic in new[start : start + FILES_AT_ONCE]:
                with contextlib.suppress(BrokerError):
                    log = self._open_log(tp, topic)
                    assigned.append(loop.run_in_executor(threads, log.assign_topic_id, topic.topic_id))
            for result in await asyncio.gather(*assigned, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, BrokerError):
                    raise result
        if new:
            await loop.run_in_executor(threads, self._logs.note_new, [tp for tp, _ in new])

    def _needs_log(self, tp: TopicPartition, topic: Topic) -> bool:
        has_role, info = tp in self.led or tp in self.followed, topic.partitions[tp.partition]
        return not has_role and info.leader != NO_LEADER and self.broker_id in info.replicas

    def apply(
        self, after: ClusterMetadata, names: Collection[str]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Update the topics `names` to the next metadata: (newly led partitions, deleted partitions).

        A partition is deleted, too, when its topic was deleted and created again with another id.
        """
        before = self.metadata
        led: list[TopicPartition] = []
        epochs = {broker_id: broker.epoch for broker_id, broker in after.brokers.items()}
        brokers_changed = before.brokers != after.brokers or self._broker_epochs != epochs
        if brokers_changed:
            self._broker_epochs.clear()
            self._broker_epochs.update(epochs)
            self._fetchers.update_brokers(after.brokers)
        hosted = dict(self._hosted(after, names))
        for name in names:
            old, new = before.topics.get(name), after.topics.get(name)
            if new is None:
                self.metrics.pop(name, None)
            if old is not None:
                self._close_lost(old, hosted)
                if new is not None and old.config != new.config:
                    self._logs.update_config(name, self.log_config(new))
        for tp, topic in hosted.items():
            info = topic.partitions[tp.partition]
            if info.leader == self.broker_id:
                if self._lead(tp, topic, info):
                    led.append(tp)
            else:
                self._follow(tp, topic, info)
        for tp in [tp for tp in self._unserved if tp.topic in names and tp not in hosted]:
            del self._unserved[tp]
        if brokers_changed:
            for partition in self.led.values():
                partition.brokers_changed()
        self._moved += [tp for name in names if name in after.topics for tp in self._moved_away(after.topics[name])]
        gone = [
            TopicPartition(name, index)
            for name in names
            if (old := before.topics.get(name)) is not None and not _has(after, old)
            for index in old.partitions
        ]
        self.metadata = after
        return led, gone

    async def delete(self, gone: Sequence[TopicPartition]) -> None:
        """Delete the logs of deleted partitions, and of those that were reassigned. Serve requests meanwhile.

        A log of a topic that exists is kept: it is of a new topic with the name of the deleted one.
        """
        moved, self._moved = self._moved, []
        deleted = [tp for tp in gone if not self._is_of(tp, self.metadata.topics.get(tp.topic))]
        for number, tp in enumerate(dict.fromkeys([*deleted, *moved]), 1):
            self._delete_log(tp)
            if number % FILES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def stop_following(self) -> None:
        """Fetch nothing more, also for partitions that this broker follows later. What it leads goes on."""
        await self._fetchers.close()

    def unknown_logs(self) -> list[TopicPartition]:
        """The partitions that have a log here, and whose topic does not exist."""
        return [tp for tp in self._logs.logs() if tp.topic not in self.metadata.topics]

    @property
    def failed_directories(self) -> Collection[Path]:
        return self._logs.failures

    def _is_of(self, tp: TopicPartition, topic: Topic | None) -> bool:
        log = self._logs.get(tp)
        return topic is not None and log is not None and log.topic_id == topic.topic_id

    def logs_of(self, topic_ids: Collection[uuid.UUID]) -> dict[TopicPartition, Log]:
        return {tp: log for tp, log in self._logs.logs().items() if log.topic_id in topic_ids} if topic_ids else {}

    async def close(self) -> None:
        """Stop following, and wait for the queued appends. Nobody waits for followers any more: they may stop, too."""
        roles: list[Partition | Follower] = [*self.led.values(), *self.followed.values()]
        async with contextlib.AsyncExitStack() as steps:  # the last is the first; if one raises, the others are taken
            for role in roles:
                steps.push_async_callback(role.queue.drain)
            steps.push_async_callback(self._fetchers.close)
            for role in roles:
                if isinstance(role, Follower) or role.in_sync is not None:
                    steps.callback(role.close)
            for timer in (self._report, self._retry):
                if timer is not None:
                    steps.callback(timer.cancel)

    def _hosted(self, metadata: ClusterMetadata, names: Collection[str]) -> list[tuple[TopicPartition, Topic]]:
        return [
            (TopicPartition(topic.name, index), topic)
            for name in names
            if (topic := metadata.topics.get(name)) is not None
            for index, info in topic.partitions.items()
            if self._hosts(info)
        ]

    def _hosts(self, info: PartitionInfo) -> bool:
        return info.leader == self.broker_id or self.broker_id in info.replicas

    def _close_lost(self, old: Topic, hosted: Mapping[TopicPartition, Topic]) -> None:
        """Give up the roles in partitions that this broker hosts no longer."""
        for index in old.partitions:
            tp = TopicPartition(old.name, index)
            role = self.role(tp)
            if role is not None and not (tp in hosted and role.log.topic_id == hosted[tp].topic_id):
                self._end_role(tp)
            if self._archive is not None and tp not in hosted:
                self._archive.forget(tp)

    def _moved_away(self, topic: Topic) -> list[TopicPartition]:
        """The partitions of which this broker has a log and is no replica any more: they were reassigned (KIP-455).

        The last step of a reassignment begins a leader epoch, in whose ISR are all replicas that stay. So a log with
        records of that epoch or a later one must not be deleted: ZooKeeper's data are older than it is.
        """
        moved = []
        for index, info in topic.partitions.items():
            tp = TopicPartition(topic.name, index)
            log = self._logs.get(tp)
            if log is None or not self._is_of(tp, topic) or self._hosts(info) or info.version == NO_STATE:
                continue
            if log.epochs.latest < info.leader_epoch:
                logger.info("%s was reassigned to brokers %s: deleting it here", tp, list(info.replicas))
                moved.append(tp)
            else:
                text = (
                    "%s stays on disk: it is assigned to brokers %s, but has records of leader epoch %d, and %d is now"
                )
                logger.error(text, tp, list(info.replicas), log.epochs.latest, info.leader_epoch)
        return moved

    # --- roles

    def _lead(self, tp: TopicPartition, topic: Topic, info: PartitionInfo) -> bool:
        """Lead a partition; whether it was not led before."""
        partition = self.led.get(tp)
        if partition is not None:
            partition.update_state(info)
            self._archive_led(tp, topic, partition.log, partition.leader_epoch)
        if partition is not None or self._known_epoch(tp) > info.leader_epoch:
            return False
        if self.broker_id not in info.replicas:
            # A torn read, or the state of a deleted topic of that name. The replicas would cut their logs to ours.
            logger.error("%s is not led here, in spite of its state: this broker is no replica", tp)
            return False
        log = self._log_with_id(tp, topic)
        if log is None:
            return False
        if not self._archive_led(tp, topic, log, info.leader_epoch):
            self._end_role(tp)
            return False  # the log is empty, and begins where its archive ends
        high_watermark, queue = self._end_role(tp)
        log.committed = None  # with several replicas the partition sets it
        self.led[tp] = Partition(
            tp,
            log,
            info.leader_epoch,
            self._logs.threads,
            self._logs.append_threads,
            info=info,
            high_watermark=high_watermark,
            max_lag_s=self._config.replica_lag_time_max_ms / 1000,
            on_isr=self._isr_may_change,
            broker_epochs=self._broker_epochs,
            queue=queue,
            metrics=self.metrics[tp.topic],
        )
        return True

    def _follow(self, tp: TopicPartition, topic: Topic, info: PartitionInfo) -> None:
        follower, is_added = self.followed.get(tp), self.broker_id in info.adding
        if follower is not None and (follower.leader, follower.leader_epoch) == (info.leader, info.leader_epoch):
            follower.is_added = is_added
            self._archive_followed(tp, topic, follower.log, info.leader_epoch)
            return
        has_role = follower is not None or tp in self.led
        if self._known_epoch(tp) > info.leader_epoch or (info.leader == NO_LEADER and not has_role):
            return
        log = self._log_with_id(tp, topic)
        if log is None:
            return
        high_watermark, queue = self._end_role(tp, next_leader=info.leader)
        follower = Follower(
            tp,
            log,
            info.leader,
            info.leader_epoch,
            high_watermark,
            queue,
            self._logs.threads,
            self.metrics[tp.topic],
            is_added=is_added,
        )
        self.followed[tp] = follower
        self._archive_followed(tp, topic, log, info.leader_epoch)
        if info.leader != NO_LEADER:
            self._fetchers.add(follower, topic.topic_id)

    def _known_epoch(self, tp: TopicPartition) -> int:
        """The leader epoch of the present role; -1 without one."""
        role = self.role(tp)
        return -1 if role is None else role.leader_epoch

    def _end_role(self, tp: TopicPartition, *, next_leader: int = NO_LEADER) -> tuple[int, AppendQueue]:
        """Close what this broker is in a partition; its high watermark and its appends go to the next role.

        With the same `next_leader` the fetcher stays; it gets the next follower in place of this one.
        """
        partition = self.led.pop(tp, None)
        if partition is not None:
            partition.close()
            return partition.high_watermark, partition.queue
        follower = self.followed.pop(tp, None)
        if follower is not None:
            follower.close()
            if follower.leader != next_leader:
                self._fetchers.remove(follower)
            return follower.high_watermark, follower.queue
        return self._logs.high_watermark(tp), AppendQueue(self._logs.append_threads)

    def _archive_led(self, tp: TopicPartition, topic: Topic, log: Log, epoch: int) -> bool:
        """Let the archive know that this broker leads; whether the partition may be served, now that it does."""
        if self._archive is None:
            return True

        def committed() -> int:
            partition = self.led.get(tp)
            return 0 if partition is None else min(partition.high_watermark, partition.last_stable_offset)

        self._archive.lead(tp, log, topic.topic_id, topic.config, epoch, committed, self.metrics[tp.topic])
        return self._archive.may_serve(tp)

    def _archive_followed(self, tp: TopicPartition, topic: Topic, log: Log, epoch: int) -> None:
        if self._archive is not None:
            self._archive.follow(tp, log, topic.topic_id, topic.config, epoch, self.metrics[tp.topic])

    def _isr_may_change(self, partition: Partition) -> None:
        self.on_isr(partition)

    def _note_stale(self, topic: str) -> None:
        if not self._stale:
            self._report = asyncio.get_running_loop().call_later(STALE_DELAY_S, self._report_stale)
        self._stale.add(topic)

    def _report_stale(self) -> None:
        stale, self._stale = self._stale, set()
        self.on_stale(stale)

    # --- logs

    def _log_with_id(self, tp: TopicPartition, topic: Topic) -> Log | None:
        """The partition's log. None when the disk fails: the partition is not served, and it is tried again later."""
        role = self.role(tp)
        try:
            log = self._open_log(tp, topic) if role is None else role.log
            log.assign_topic_id(topic.topic_id)
        except BrokerError as error:
            if self._unserved.get(tp) != str(error):
                logger.error("%s is not served: %s", tp, error)
            self._unserved[tp] = str(error)
            if self._retry is None:
                self._retry = asyncio.get_running_loop().call_later(UNSERVED_RETRY_S, self._retry_unserved)
            return None
        self._unserved.pop(tp, None)
        return log

    def _open_log(self, tp: TopicPartition, topic: Topic) -> Log:
        """The partition's log, after deleting one of an earlier topic of the same name.

        Raises BrokerError `kafka_storage_error`.
        """
        log = self._logs.get(tp)
        if log is not None and log.topic_id not in (None, topic.topic_id):
            logger.warning("%s on disk belongs to a deleted topic of that name; deleting it", tp)
            self._logs.delete(tp)
        return self._logs.create(tp, self.log_config(topic))

    def _retry_unserved(self) -> None:
        self._retry = None
        if self._unserved:
            self._retry = asyncio.get_running_loop().call_later(UNSERVED_RETRY_S, self._retry_unserved)
            self.on_stale({tp.topic for tp in self._unserved})

    def led_unserved(self) -> list[TopicPartition]:
        """The partitions that this broker should lead and cannot, while another replica is in sync."""
        found = ((tp, self.metadata.partition(tp)) for tp in self._unserved)
        return [tp for tp, info in found if info and info.leader == self.broker_id and len(info.isr) > 1]

    def _delete_log(self, tp: TopicPartition) -> None:
        try:
            self._logs.delete(tp)
        except BrokerError as error:
            logger.error("cannot delete the log of the deleted partition %s: %s", tp, error)


def _has(metadata: ClusterMetadata, topic: Topic) -> bool:
    found = metadata.topics.get(topic.name)
    return found is not None and found.topic_id == topic.topic_id


def stored_log_config(topic: str, overrides: Mapping[str, str], defaults: LogConfig) -> LogConfig:
    """A topic's settings from ZooKeeper, over `defaults`.

    Invalid settings, which another program may have written there, or which no longer fit the defaults, are logged and
    ignored: one topic must not keep the broker from serving the others. What makes an archived topic invalid never
    takes its archive away: its local records alone would be taken for the whole log.
    """
    try:
        return LogConfig.from_properties(overrides, defaults)
    except ConfigError:
        pass
    config = defaults
    if overrides.get(REMOTE_STORAGE, "").strip().lower() == "true":
        config = defaults.fit_for_archive()
    for key, value in sorted(overrides.items(), key=lambda override: override[0] != REMOTE_STORAGE):
        try:
            config = LogConfig.from_properties({key: value}, config)
        except ConfigError as error:
            logger.error("topic %s: %s; the setting is ignored", topic, error)
    return config
