"""The topics as this broker sees them, and every change to them.

ZooKeeper holds the truth. A change is written there first (in a worker thread), then the cluster's
metadata is read anew and `_apply` brings the local logs in line: opens what we lead, drops what is gone.
The same happens when ZooKeeper tells that somebody else changed something. Lives on the event loop.
What ZooKeeper does not answer in time is a BrokerError `request_timed_out`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import uuid
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from broker.cluster.assignment import assign_replicas, check_assignment
from broker.cluster.metadata import ClusterMetadata, Topic
from broker.cluster.partition import Partition
from broker.cluster.registry import Registry
from broker.cluster.topic_names import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS, check_topic_name
from broker.cluster.zk_types import ZooKeeperError
from broker.cluster.znodes import TopicRecord, new_uuid
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConfigError, ConnectionFailed, ErrorCode
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition

__all__ = ["NewTopic", "Topics", "stored_log_config"]

logger = logging.getLogger(__name__)

FILES_AT_ONCE = 16
MAX_NEW_PARTITIONS = 10_000
"""Made at once; more would not fit into one ZooKeeper transaction anyway."""
ZOOKEEPER_THREADS = 4
"""Of their own: while ZooKeeper is away the threads that fsync must not all be taken by those that wait for it."""

T = TypeVar("T")
OnLed = Callable[[int], Awaitable[None]]
OnDeleted = Callable[[Sequence[TopicPartition]], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class NewTopic:
    """What CreateTopics asks for; -1 counts take the broker's defaults, an assignment replaces both."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    config: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Topics:
    """Metadata snapshot, the partitions led here, and the ways to change them."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        logs: LogManager,
        metadata: ClusterMetadata,
        *,
        tell_changed: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """`tell_changed(topic)`, which blocks, tells other brokers of new partitions or settings of a topic; topics
        that come and go they see by themselves."""
        self._config = config
        self._tell_changed = tell_changed
        self._threads = ThreadPoolExecutor(ZOOKEEPER_THREADS, "zookeeper-calls")
        self._registry = registry
        self._logs = logs
        self._defaults = LogConfig.from_properties(config.topic_defaults())
        self._partitions: dict[TopicPartition, Partition] = {}
        self._lock = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._refreshing: set[asyncio.Task[None]] = set()
        self._on_led: dict[str, OnLed] = {}
        self._on_deleted: list[OnDeleted] = []
        self._cluster_id = metadata.cluster_id
        self.metadata = metadata
        self._apply(metadata)

    # --- what handlers read

    def partition(self, tp: TopicPartition) -> Partition:
        """The partition, if this broker leads it. Raises BrokerError otherwise."""
        found = self._partitions.get(tp)
        if found is not None:
            return found
        topic = self.metadata.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        leader = topic.partitions[tp.partition].leader
        if leader == self._config.broker_id:
            raise BrokerError(ErrorCode.kafka_storage_error, f"{tp} cannot be opened; the broker's log says why")
        raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} is led by {leader}")

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """A topic's settings over this broker's. Raises ConfigError."""
        return LogConfig.from_properties(overrides, self._defaults)

    # --- changes

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> TopicRecord:
        """Create a topic. Raises BrokerError or ConfigError; nothing is left of one that failed."""
        if new.name in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_topic_exception, f"{new.name} is made by the brokers when it is needed")
        async with self._changing:
            return await self._create(new, validate_only)

    async def _create(self, new: NewTopic, validate_only: bool) -> TopicRecord:
        check_topic_name(new.name)
        self.log_config(new.config)
        assignment = self._assignment(new)
        record = TopicRecord(new.name, new_uuid(), assignment, dict(new.config))
        if new.name in self.metadata.topics:
            raise BrokerError(ErrorCode.topic_already_exists, f"topic {new.name} exists already")
        if validate_only:
            return record
        try:
            await self._ask(self._registry.create_topic, new.name, assignment, dict(new.config), record.topic_id)
        except BrokerError as error:
            if error.code is ErrorCode.topic_already_exists:
                await self.refresh(())  # another broker was faster: it is known from here on
            raise
        await self.refresh(())
        logger.info("created topic %s with %d partitions", new.name, len(assignment))
        return record

    async def create_default(self, name: str) -> None:
        """Create a topic that a client named first, or one of our own internal ones."""
        if name == GROUP_OFFSETS_TOPIC:
            config = {"cleanup.policy": "compact", "segment.bytes": str(self._config.offsets_topic_segment_bytes)}
            partitions = self._config.offsets_topic_num_partitions
            new = NewTopic(name, partitions, self._config.offsets_topic_replication_factor, {}, config)
            async with self._changing:
                await self._create(new, validate_only=False)
        else:
            await self.create(NewTopic(name))

    async def delete(self, name: str) -> uuid.UUID:
        """Delete a topic and its logs; gives the id it had."""
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        if name in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_request, f"{name} is internal and cannot be deleted")
        await self._ask(self._registry.delete_topic, name)
        await self.refresh(())
        logger.info("deleted topic %s", name)
        return topic.topic_id

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None, *, validate_only: bool
    ) -> None:
        """Bring topic `name` to `count` partitions."""
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        have = len(topic.partitions)
        if count <= have:
            raise BrokerError(ErrorCode.invalid_partitions, f"topic {name} has {have} partitions, asked for {count}")
        if name in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_request, f"{name} is internal: its groups would not be found again")
        _check_count(count - have)
        brokers = sorted(self.metadata.brokers)
        if assignments is None:
            factor = len(topic.partitions[0].replicas)
            start = brokers.index(topic.partitions[0].replicas[0]) if topic.partitions[0].replicas[0] in brokers else 0
            added = assign_replicas(brokers, count - have, factor, start=start, first_partition=have)
        else:
            if len(assignments) != count - have:
                raise BrokerError(
                    ErrorCode.invalid_replica_assignment, f"{count - have} partitions need as many assignments"
                )
            named = {have + i: replicas for i, replicas in enumerate(assignments)}
            added = check_assignment(named, brokers, first_partition=have)
        if not validate_only:
            await self._ask(self._registry.add_partitions, name, added)
            await self._changed(name)

    async def alter_config(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set (or with None take away) settings of a topic. Raises BrokerError or ConfigError."""
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        merged = {**topic.config, **changes}
        config = {key: value for key, value in merged.items() if value is not None}
        self.log_config(config)
        if not validate_only:
            await self._ask(self._registry.alter_topic_config, name, changes)
            await self._changed(name)

    async def refresh(self, changed: Collection[str] | None = None) -> None:
        """Read the cluster's metadata anew and bring the local logs in line.

        `changed` names the topics to read again besides new and gone ones; None reads all.
        Goes on to its end though the caller, a client's request, is cancelled: half of it must not be left undone.
        """
        refreshing = asyncio.ensure_future(self._refresh(changed))
        self._refreshing.add(refreshing)
        refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(refreshing)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has raised it, if it is still there

    async def _refresh(self, changed: Collection[str] | None) -> None:
        async with self._lock:
            if changed is None:
                metadata = await self._ask(self._registry.load_metadata)
            else:
                metadata = await self._ask(self._registry.load_metadata, self.metadata, reload=changed)
            if metadata.cluster_id != self._cluster_id or self.metadata.topics.keys() - metadata.topics.keys():
                await self._check_cluster()
            await self._in_slices(self._open_log, self._newly_ours(metadata))
            led, gone = self._apply(metadata)
            await self._in_slices(self._delete_log, [(tp,) for tp in gone])
        for tp in led:
            if tp.topic in self._on_led:
                await self._on_led[tp.topic](tp.partition)
        if gone:
            for told in self._on_deleted:
                await told(gone)

    async def close(self) -> None:
        """Take over no more changes."""
        for task in self._refreshing:
            task.cancel()
        await asyncio.gather(*self._refreshing, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def tell_led(self, topic: str, told: OnLed) -> None:
        """Await `told` for every partition of `topic` led here, now and whenever one is added."""
        self._on_led[topic] = told
        for tp in [tp for tp in self._partitions if tp.topic == topic]:
            await told(tp.partition)

    def tell_deleted(self, told: OnDeleted) -> None:
        """Await `told` with the partitions of topics that were deleted."""
        self._on_deleted.append(told)

    # --- inside

    async def _ask(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """A blocking call to the registry. Raises BrokerError, whatever is wrong with ZooKeeper."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, functools.partial(call, *arguments, **named)
            )
        except ConnectionFailed as error:
            raise BrokerError(ErrorCode.request_timed_out, f"ZooKeeper is away: {error}") from error
        except ZooKeeperError as error:
            raise BrokerError(ErrorCode.unknown_server_error, str(error)) from error

    async def _changed(self, name: str) -> None:
        """We changed partitions or settings of a topic: see it here, and let the other brokers see it."""
        await self.refresh([name])
        await self._ask(self._tell_changed, name)

    async def _check_cluster(self) -> None:
        """Topics are gone. Before any record is deleted: is this still the ZooKeeper we know, or an empty one?"""
        found, ours = await self._ask(self._registry.cluster_id), self._cluster_id
        if found != ours:
            raise BrokerError(
                ErrorCode.inconsistent_cluster_id,
                f"ZooKeeper has lost the cluster {ours} and holds {found}; nothing of it is applied and no log is "
                "deleted: bring the old ZooKeeper data back, or stop the broker and begin with other log.dirs",
            )

    def _assignment(self, new: NewTopic) -> dict[int, tuple[int, ...]]:
        brokers = sorted(self.metadata.brokers)
        if new.assignment:
            return check_assignment(new.assignment, brokers)
        partitions = self._config.num_partitions if new.partitions == -1 else new.partitions
        factor = self._config.default_replication_factor if new.replication_factor == -1 else new.replication_factor
        if partitions < 1:
            raise BrokerError(ErrorCode.invalid_partitions, f"a topic needs at least 1 partition, not {partitions}")
        _check_count(partitions)
        return assign_replicas(brokers, partitions, factor, start=zlib.crc32(new.name.encode()))

    def _newly_ours(self, metadata: ClusterMetadata) -> list[tuple[TopicPartition, Topic]]:
        return [
            (tp, topic)
            for topic in metadata.topics.values()
            for index, info in topic.partitions.items()
            if info.leader == self._config.broker_id
            and (tp := TopicPartition(topic.name, index)) not in self._partitions
        ]

    async def _in_slices(self, work: Callable[..., object], items: Sequence[tuple[Any, ...]]) -> None:
        """Many files are made or renamed: requests are served in between."""
        for number, arguments in enumerate(items, 1):
            work(*arguments)
            if number % FILES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _apply(self, metadata: ClusterMetadata) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Open what we lead, let go of what we do not, pass new settings on: (newly led, gone from the cluster)."""
        led = []
        ours = {
            TopicPartition(topic.name, index): (topic, info)
            for topic in metadata.topics.values()
            for index, info in topic.partitions.items()
            if info.leader == self._config.broker_id
        }
        for tp, partition in list(self._partitions.items()):
            if tp not in ours or partition.log.topic_id != ours[tp][0].topic_id:
                self._partitions.pop(tp).close()  # of those led by somebody else, or by nobody, the records stay
        for tp, (topic, info) in ours.items():
            if tp in self._partitions:
                self._partitions[tp].leader_epoch = info.leader_epoch
            elif (log := self._open_log(tp, topic)) is not None:
                self._partitions[tp] = Partition(tp, log, info.leader_epoch)
                led.append(tp)
        for name, topic in metadata.topics.items():
            before = self.metadata.topics.get(name)
            if before is not None and before.config != topic.config:
                self._logs.update_config(name, stored_log_config(name, topic.config, self._defaults))
        gone = [
            TopicPartition(name, index)
            for name, topic in self.metadata.topics.items()
            if name not in metadata.topics
            for index in topic.partitions
        ]
        self.metadata = metadata
        return led, gone

    def _open_log(self, tp: TopicPartition, topic: Topic) -> Log | None:
        """The partition's log; what lies there of a deleted topic of the same name goes first.

        None when the disk refuses: that partition is not served, the others are, and the next refresh tries again.
        """
        log = self._logs.get(tp)
        if log is not None and log.topic_id not in (None, topic.topic_id):
            logger.warning("%s on disk is of a deleted topic of that name; deleting it", tp)
            self._delete_log(tp)
            log = self._logs.get(tp)
            if log is not None:
                return None
        try:
            if log is None:
                log = self._logs.create(tp, stored_log_config(tp.topic, topic.config, self._defaults))
            log.assign_topic_id(topic.topic_id)
        except BrokerError as error:
            logger.error("%s is not served: %s", tp, error)
            return None
        return log

    def _delete_log(self, tp: TopicPartition) -> None:
        try:
            self._logs.delete(tp)
        except BrokerError as error:
            logger.error("the log of the deleted partition %s stays: %s", tp, error)


def stored_log_config(topic: str, overrides: Mapping[str, str], defaults: LogConfig) -> LogConfig:
    """A topic's settings as ZooKeeper has them. What we do not know was written there by another program, and is
    logged and left out: one topic's settings must not keep a broker from serving the others."""
    config = defaults
    for key, value in overrides.items():
        try:
            config = LogConfig.from_properties({key: value}, config)
        except ConfigError as error:
            logger.error("topic %s: %s; the setting is ignored", topic, error)
    return config


def _check_count(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise BrokerError(
            ErrorCode.invalid_partitions, f"{partitions} new partitions; at most {MAX_NEW_PARTITIONS} at once"
        )
