"""The topics of the cluster as this broker knows them, and all changes to them.

ZooKeeper has the truth. A change is written there first, in a worker thread, then into the metadata, and then the
replica manager updates the local logs. When another broker changes something, ZooKeeper's watches say what, and only
that is read again, so that a change costs the same however many topics there are. Lives on the event loop. A call that
ZooKeeper does not answer in time raises BrokerError `request_timed_out`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
import zlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from broker.cluster.assignment import (
    MAX_REPLICATION_FACTOR,
    assign_replicas,
    check_assignment,
    check_replication_factor,
)
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_names import (
    GROUP_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    check_collision,
    check_topic_name,
)
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition
from broker.replica.replica_manager import ReplicaManager
from broker.zookeeper.client import ZooKeeperCalls
from broker.zookeeper.cluster_metadata import ClusterMetadata, PartitionInfo, Topic
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import TopicRecord, new_uuid

__all__ = ["NewTopic", "Topics"]

logger = logging.getLogger(__name__)

MAX_NEW_PARTITIONS = 10_000
"""In one request; more would not fit into one ZooKeeper transaction."""

OnLeadership = Callable[[int], Awaitable[None]]
OnDeleted = Callable[[Sequence[TopicPartition]], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class NewTopic:
    """A topic that CreateTopics asks for. Counts of -1 take the broker's defaults; an assignment replaces both counts.
    A setting that is None is refused."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    config: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


class Topics:
    """The metadata, the partitions that this broker leads, and the ways to change them."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        logs: LogManager,
        metadata: ClusterMetadata,
        calls: ZooKeeperCalls,
        *,
        notify: Callable[[str], None] = lambda entity: None,
        max_replication_factor: int = MAX_REPLICATION_FACTOR,
    ) -> None:
        """`notify("topics/NAME")`, which blocks, notifies the other brokers of new partitions or settings; they watch
        the list of topics themselves."""
        self._config = config
        self._notify_brokers = notify
        self._max_factor = max_replication_factor
        self._call = calls
        self._registry = registry
        self._replicas = ReplicaManager(
            config, logs, LogConfig.from_properties(config.topic_defaults()), on_stale=self._refresh_stale
        )
        self._metadata_lock = asyncio.Lock()  # while a change of the metadata is applied
        self._topics_lock = asyncio.Lock()  # while a request creates or deletes a topic
        self._running: set[asyncio.Task[None]] = set()
        self._on_elected: dict[str, OnLeadership] = {}
        self._on_resigned: dict[str, OnLeadership] = {}
        self._on_deleted: list[OnDeleted] = []
        self._on_change: list[Callable[[Collection[str]], None]] = []
        self._listings = 0
        self._listed: Collection[str] = ()
        self._cluster_id = metadata.cluster_id
        self._controller_id = metadata.controller_id
        self.metadata = metadata
        self._replicas.expect(metadata)
        self._replicas.apply(ClusterMetadata(metadata.cluster_id), metadata, metadata.topics)

    # --- reading

    def partition(self, tp: TopicPartition) -> Partition:
        """The partition if this broker leads it. Raises BrokerError otherwise."""
        found = self._replicas.get(tp)
        if found is not None:
            return found
        topic = self.metadata.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        leader = topic.partitions[tp.partition].leader
        if leader == self._config.broker_id:
            reason = self._replicas.offline(tp) or f"{tp} cannot be opened; the broker's log says why"
            raise BrokerError(ErrorCode.kafka_storage_error, reason)
        raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} is led by {leader}")

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """A topic's settings, which override this broker's. Raises ConfigError."""
        return LogConfig.from_properties(overrides, self._replicas.defaults)

    def led_partitions(self) -> Mapping[TopicPartition, Partition]:
        """All partitions that this broker leads, as a live view."""
        return self._replicas.all()

    def update_defaults(self, config: BrokerConfig) -> None:
        """Apply changed broker settings to all topics that do not override them."""
        self._replicas.update_defaults(LogConfig.from_properties(config.topic_defaults()), self.metadata)

    # --- changes

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> TopicRecord:
        """Create a topic completely or, raising BrokerError or ConfigError, not at all."""
        if new.name in INTERNAL_TOPICS and new.name not in self.metadata.topics:
            raise BrokerError(
                ErrorCode.invalid_topic_exception, f"{new.name} is created by the brokers when it is needed"
            )
        async with self._topics_lock:
            return await self._create(new, validate_only)

    async def _create(self, new: NewTopic, validate_only: bool) -> TopicRecord:
        check_topic_name(new.name)
        if new.name in self.metadata.topics:
            raise BrokerError(ErrorCode.topic_already_exists, f"topic {new.name} already exists")
        check_collision(new.name, self.metadata.topics)
        assignment = self._assignment(new)
        if nulls := [key for key, value in new.config.items() if value is None]:
            raise ConfigError(f"a value is needed for {', '.join(nulls)}")
        config = {key: value for key, value in new.config.items() if value is not None}
        self.log_config(config)
        record = TopicRecord(new.name, new_uuid(), assignment, config)
        if validate_only:
            return record
        listings = self._listings
        try:
            await self._call(
                self._registry.create_topic, new.name, assignment, record.config, record.topic_id, existing=()
            )
        except BrokerError as error:
            if error.code is ErrorCode.topic_already_exists:
                await self.refresh([new.name])  # another broker was faster
            raise
        states = {index: PartitionInfo(ids[0], 0, ids, ids, version=0) for index, ids in assignment.items()}
        if self._listings > listings and new.name not in self._listed:
            await self.refresh([new.name])  # the list is older than the topic, or the topic was deleted at once
        else:
            await self._uncancelled(self._apply_created(Topic(new.name, record.topic_id, states, record.config)))
        logger.info("created topic %s with %d partitions", new.name, len(assignment))
        return record

    async def create_default(self, name: str) -> None:
        """Create a topic with the broker's defaults, for a client that named it, or an internal topic."""
        new = self._internal_topic(name)
        if new is None:
            await self.create(NewTopic(name))
        else:
            async with self._topics_lock:
                await self._create(new, validate_only=False)

    def _internal_topic(self, name: str) -> NewTopic | None:
        """How the broker creates an internal topic; None for any other.

        Compacted, because the last record of each key counts. It has fewer replicas than its setting asks for while
        fewer brokers are registered, or while factors above 1 are refused (BrokerConfig.load warns).
        """
        if name == GROUP_OFFSETS_TOPIC:
            partitions = self._config.offsets_topic_num_partitions
            segment_bytes = self._config.offsets_topic_segment_bytes
            asked = self._config.offsets_topic_replication_factor
        elif name == TRANSACTION_STATE_TOPIC:
            partitions = self._config.transaction_state_log_num_partitions
            segment_bytes = self._config.transaction_state_log_segment_bytes
            asked = self._config.transaction_state_log_replication_factor
        else:
            return None
        factor = min(asked, self._max_factor, len(self.metadata.brokers))
        if factor < min(asked, self._max_factor):
            logger.warning("%s is created with %d replicas of %d: no more brokers are registered", name, factor, asked)
        return NewTopic(
            name, partitions, factor, {}, {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes)}
        )

    async def delete(self, name: str) -> uuid.UUID:
        """Delete a topic and its logs; returns its id."""
        async with self._topics_lock:
            topic = self._existing(name)
            if name in INTERNAL_TOPICS:
                raise BrokerError(ErrorCode.invalid_request, f"{name} is internal and cannot be deleted")
            listings = self._listings
            await self._call(self._registry.delete_topic, name)
            if self._listings > listings and name in self._listed:
                await self.refresh([name])  # the list is older than the deletion, or the topic was created again
            else:
                await self._uncancelled(self._apply_deleted(topic))
        logger.info("deleted topic %s", name)
        return topic.topic_id

    def _existing(self, name: str) -> Topic:
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        return topic

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None, *, validate_only: bool
    ) -> None:
        """Add partitions to topic `name` so that it has `count`. Raises BrokerError."""
        topic = self._existing(name)
        have = len(topic.partitions)
        if count <= have:
            raise BrokerError(ErrorCode.invalid_partitions, f"topic {name} has {have} partitions, asked for {count}")
        if name in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_request, f"{name} is internal: its keys would be in other partitions")
        _check_count(count - have)
        brokers = sorted(self.metadata.brokers)
        first = topic.partitions[0].target
        if assignments is None:
            start = brokers.index(first[0]) if first[0] in brokers else 0
            added = assign_replicas(
                brokers, count - have, len(first), start=start, first_partition=have, racks=self._racks()
            )
        else:
            if len(assignments) != count - have:
                raise BrokerError(
                    ErrorCode.invalid_replica_assignment, f"{count - have} new partitions need as many assignments"
                )
            named = {have + i: replicas for i, replicas in enumerate(assignments)}
            added = check_assignment(named, brokers, first_partition=have)
            self._check_factor(len(added[have]), f"partitions on brokers {list(added[have])}")
            if len(added[have]) != len(first):
                raise BrokerError(
                    ErrorCode.invalid_replica_assignment,
                    f"partitions of topic {name} have {len(first)} replicas, asked for {len(added[have])}",
                )
        if not validate_only:
            await self._call(self._registry.add_partitions, name, added)
            await self._refresh_and_notify(name)

    async def alter_config(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set settings of a topic, or remove those that are None. Raises BrokerError or ConfigError."""
        topic = self._existing(name)
        merged = {**topic.config, **changes}
        config = {key: value for key, value in merged.items() if value is not None}
        self.log_config(config)
        if not validate_only:
            await self._call(self._registry.alter_topic_config, name, changes)
            await self._refresh_and_notify(name)

    # --- changes by other brokers

    def set_controller(self, controller_id: int) -> None:
        """Set the controller's id, -1 for none.

        A broker learns who the controller is only from its watch, because a refresh may have read an older value.
        """
        self._controller_id = controller_id
        self.metadata = self.metadata.with_controller(controller_id)

    def topics_listed(self, names: Collection[str]) -> bool:
        """Note the list of topics from the watch. True when it differs from the metadata; then call `catch_up`."""
        self._listings += 1
        self._listed = names
        return self.metadata.topics.keys() != names

    async def catch_up(self) -> None:
        """Refresh the topics that other brokers created or deleted, after our own requests have ended."""
        async with self._topics_lock:
            if self.metadata.topics.keys() == self._listed:
                return
        await self.refresh(())

    async def refresh(self, changed: Collection[str] | None = None) -> None:
        """Read the cluster's changes and apply them to the metadata and the local logs.

        `changed`: names of topics to read again; () reads new topics and notices deleted ones; None reads everything.
        Runs to its end even if the caller is cancelled with its request.
        """
        await self._uncancelled(self._refresh(changed))

    async def _refresh(self, changed: Collection[str] | None) -> None:
        async with self._metadata_lock:
            before, names = self.metadata, changed
            if changed:
                found = await self._call(self._registry.load_topics, list(changed))
                after = before.with_topics(found.values()).without_topics(name for name in changed if name not in found)
            elif changed is None:
                after = await self._call(self._registry.load_metadata)
                names = before.topics.keys() | after.topics.keys()
            else:
                after = await self._call(self._registry.load_metadata, before)
                names = before.topics.keys() ^ after.topics.keys()
            if after.cluster_id != self._cluster_id or before.topics.keys() - after.topics.keys():
                await self._check_cluster()
            changes = await self._apply(after, names or ())
        await self._notify_listeners(*changes)

    def _refresh_stale(self, names: Collection[str]) -> None:
        """Read topics again about which their leaders know more."""
        task = asyncio.ensure_future(self._refresh(names))
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def _apply_created(self, topic: Topic) -> None:
        """This broker created a topic, so it need not read it."""
        async with self._metadata_lock:
            if topic.name in self.metadata.topics:
                return  # a refresh was faster, and has read more
            changes = await self._apply(self.metadata.with_topics([topic]), [topic.name])
        await self._notify_listeners(*changes)

    async def _apply_deleted(self, topic: Topic) -> None:
        async with self._metadata_lock:
            if self.metadata.topic_by_id(topic.topic_id) is None:
                return
            changes = await self._apply(self.metadata.without_topics([topic.name]), [topic.name])
        await self._notify_listeners(*changes)

    async def _apply(
        self, after: ClusterMetadata, names: Collection[str]
    ) -> tuple[list[TopicPartition], list[TopicPartition], list[TopicPartition]]:
        """Replace the metadata, of which the topics `names` differ: (resigned, newly led, deleted partitions)."""
        await self._replicas.open_new(after, names)
        held = [partition for name in names if name in self._on_resigned for partition in self._replicas.of_topic(name)]
        led, gone = self._replicas.apply(self.metadata, after, names)
        resigned = [partition.tp for partition in held if self._replicas.get(partition.tp) is not partition]
        self.metadata = after.with_controller(self._controller_id)
        for on_change in self._on_change:
            on_change(names)
        await self._replicas.delete(gone)
        return resigned, led, gone

    async def _notify_listeners(
        self, resigned: Sequence[TopicPartition], led: Sequence[TopicPartition], gone: Sequence[TopicPartition]
    ) -> None:
        for tp in resigned:
            await self._on_resigned[tp.topic](tp.partition)
        for tp in led:
            if tp.topic in self._on_elected:
                await self._on_elected[tp.topic](tp.partition)
        if gone:
            for on_deleted in self._on_deleted:
                await on_deleted(gone)

    async def _uncancelled(self, work: Coroutine[Any, Any, None]) -> None:
        """Finish `work` even if the caller is cancelled, as when its client disconnects."""
        running = asyncio.ensure_future(work)
        self._running.add(running)
        running.add_done_callback(self._ended)
        await asyncio.shield(running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # raised by the caller, unless it was cancelled

    async def close(self) -> None:
        """Apply no more changes, and wait for the queued appends."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._replicas.close()

    async def add_leadership_listener(self, topic: str, on_elected: OnLeadership, on_resigned: OnLeadership) -> None:
        """Await `on_elected` for every partition of `topic` this broker leads, now and later, and `on_resigned` when
        it stops leading one."""
        self._on_elected[topic] = on_elected
        self._on_resigned[topic] = on_resigned
        for partition in self._replicas.of_topic(topic):
            await on_elected(partition.tp.partition)

    def add_change_listener(self, on_change: Callable[[Collection[str]], None]) -> None:
        """Call `on_change` with the names of topics that changed, after the metadata was replaced. They are all topics
        when the brokers may have changed."""
        self._on_change.append(on_change)

    def set_isr_listener(self, on_isr: Callable[[Partition], None]) -> None:
        """Call `on_isr` with each partition led here whose ISR should be written."""
        self._replicas.on_isr = on_isr

    def add_deletion_listener(self, on_deleted: OnDeleted) -> None:
        """Await `on_deleted` with the partitions of every topic that is deleted."""
        self._on_deleted.append(on_deleted)

    # --- inside

    async def _refresh_and_notify(self, name: str) -> None:
        """After this broker changed partitions or settings of a topic."""
        await self.refresh([name])
        await self._call(self._notify_brokers, f"topics/{name}")

    async def _check_cluster(self) -> None:
        """Topics are missing. Before logs are deleted, check that this is still our ZooKeeper and not an empty one."""
        found, ours = await self._call(self._registry.cluster_id), self._cluster_id
        if found != ours:
            raise BrokerError(
                ErrorCode.inconsistent_cluster_id,
                f"ZooKeeper has lost cluster {ours} and has {found} now; no change is applied and no log is deleted: "
                "restore ZooKeeper's data, or stop the broker and start it with other log.dirs",
            )

    def _assignment(self, new: NewTopic) -> dict[int, tuple[int, ...]]:
        brokers = sorted(self.metadata.brokers)
        if new.assignment:
            if (new.partitions, new.replication_factor) != (-1, -1):
                raise BrokerError(
                    ErrorCode.invalid_request,
                    "an assignment gives the counts of partitions and replicas: leave both at -1",
                )
            checked = check_assignment(new.assignment, brokers)
            self._check_factor(len(checked[0]), f"partitions on brokers {list(checked[0])}")
            return checked
        partitions = self._config.num_partitions if new.partitions == -1 else new.partitions
        if partitions < 1:
            raise BrokerError(ErrorCode.invalid_partitions, f"a topic needs at least 1 partition, not {partitions}")
        _check_count(partitions)
        factor, asked = new.replication_factor, f"replication factor {new.replication_factor}"
        if factor == -1:
            factor = self._config.default_replication_factor
            asked = f"default.replication.factor={factor}"
        self._check_factor(factor, asked)
        start = zlib.crc32(new.name.encode())
        return assign_replicas(brokers, partitions, factor, start=start, racks=self._racks())

    def _racks(self) -> dict[int, str | None]:
        return {broker_id: broker.rack for broker_id, broker in self.metadata.brokers.items()}

    def _check_factor(self, factor: int, asked: str) -> None:
        check_replication_factor(factor, asked, self._max_factor)


def _check_count(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise BrokerError(
            ErrorCode.invalid_partitions, f"{partitions} new partitions; at most {MAX_NEW_PARTITIONS} at once"
        )
