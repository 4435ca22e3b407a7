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

from broker.background_tasks import BackgroundTasks
from broker.cluster.assignment import assign_replicas, check_assignment
from broker.cluster.deleted_topics import DeletedTopics
from broker.cluster.leadership_handover import leave_partitions
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.metrics import TopicMetrics
from broker.net.peer_security import PeerSecurity
from broker.protocol.topic_names import (
    GROUP_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    check_collision,
    check_topic_name,
)
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import ClusterMetadata, PartitionInfo, Topic
from broker.replica.follower import Follower
from broker.replica.partition import Partition
from broker.replica.replica import Replica, check_leader_epoch
from broker.replica.replica_manager import ReplicaManager, stored_log_config
from broker.replica.replication_quota import ReplicationQuota
from broker.zookeeper.metadata_store import MetadataCalls
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import TopicRecord, new_uuid

logger = logging.getLogger(__name__)

MAX_NEW_PARTITIONS = 10_000
"""In one request; more would not fit into one ZooKeeper transaction."""

OnLeadership = Callable[[Partition], None]
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
        calls: MetadataCalls,
        *,
        peers: PeerSecurity = PeerSecurity(),  # noqa: B008 (immutable)
        notify: Callable[[str], None] = lambda entity: None,
    ) -> None:
        """`peers`: how to connect to other brokers. `notify("topics/NAME")`, which blocks, notifies them of new
        partitions or settings; they watch the list of topics themselves."""
        self._config = config
        self._notify_brokers = notify
        self._call = calls
        self._registry = registry
        defaults = LogConfig.from_properties(config.topic_defaults())
        self._replicas = ReplicaManager(config, logs, defaults, peers=peers, on_stale=self._refresh_stale)
        self._tasks = BackgroundTasks()
        self._deleted = DeletedTopics(registry, calls, self._replicas, config.broker_id, self._tasks)
        self._metadata_lock = asyncio.Lock()  # while a change of the metadata is applied
        self._topics_lock = asyncio.Lock()  # while a request creates or deletes a topic
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

    def partition(self, tp: TopicPartition, epoch: int = -1) -> Partition:
        """The partition if this broker leads it in `epoch`; -1 for any. Raises BrokerError otherwise.

        As in Kafka, a follower also tells a client that names another epoch than its own.
        """
        found = self._replicas.get(tp)
        if found is not None:
            check_leader_epoch(tp, found.leader_epoch, epoch)
            return found
        follower = self._replicas.followers().get(tp)
        if follower is not None:
            check_leader_epoch(tp, follower.leader_epoch, epoch)
        topic = self.metadata.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        leader, reason = topic.partitions[tp.partition].leader, self._replicas.offline(tp)
        if reason or leader == self._config.broker_id:
            reason = reason or f"{tp} cannot be opened; the broker's log says why"
            raise BrokerError(ErrorCode.kafka_storage_error, reason)
        raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} is led by {leader}")

    def replica(self, tp: TopicPartition, epoch: int = -1) -> Replica:
        """The partition if this broker leads or follows it in `epoch`; -1 for any. Raises BrokerError otherwise."""
        found = self._replicas.get(tp) or self._replicas.followers().get(tp)
        if found is None:
            return self.partition(tp, epoch)
        check_leader_epoch(tp, found.leader_epoch, epoch)
        return found

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """A topic's settings, which override this broker's. Raises ConfigError."""
        return LogConfig.from_properties(overrides, self._replicas.defaults)

    def min_insync_replicas(self, topic: Topic) -> int:
        """`min.insync.replicas` of a topic."""
        return stored_log_config(topic.name, topic.config, self._replicas.defaults).min_insync_replicas

    def is_malformed(self, name: str) -> bool:
        """Whether ZooKeeper has nodes of the topic that cannot be read. The metadata may lack it, but it exists."""
        return name in self._registry.malformed

    @property
    def leader_quota(self) -> ReplicationQuota:
        """The rate at which this broker sends to throttled followers."""
        return self._replicas.leader_quota

    @property
    def follower_quota(self) -> ReplicationQuota:
        """The rate at which this broker fetches for throttled replicas of its own."""
        return self._replicas.follower_quota

    def led_partitions(self) -> Mapping[TopicPartition, Partition]:
        """All partitions that this broker leads, as a live view."""
        return self._replicas.all()

    def followers(self) -> Mapping[TopicPartition, Follower]:
        """All partitions that this broker follows, as a live view."""
        return self._replicas.followers()

    @property
    def metrics(self) -> Mapping[str, TopicMetrics]:
        """By topic, as a live view."""
        return self._replicas.metrics

    def update_defaults(self, config: BrokerConfig) -> None:
        """Apply changed broker settings to all topics that do not override them, and to the rates of replication."""
        self._replicas.update_quotas(config)
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
        await self._expect_brokers(new.replication_factor)
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

    async def _expect_brokers(self, replication_factor: int) -> None:
        """Read the brokers again if too few are known: some may have registered just now, as when a cluster starts."""
        factor = self._config.default_replication_factor if replication_factor == -1 else replication_factor
        if factor > len(self.metadata.brokers):
            await self.refresh(())

    async def create_default(self, name: str) -> None:
        """Create a topic with the broker's defaults, for a client that named it, or an internal topic."""
        if name in INTERNAL_TOPICS:
            config = self._config
            await self._expect_brokers(
                max(config.offsets_topic_replication_factor, config.transaction_state_log_replication_factor)
            )
        new = self._internal_topic(name)
        if new is None:
            await self.create(NewTopic(name))
        else:
            async with self._topics_lock:
                await self._create(new, validate_only=False)

    def _internal_topic(self, name: str) -> NewTopic | None:
        """How the broker creates an internal topic; None for any other.

        Compacted, because the last record of each key counts. It has fewer replicas than its setting asks for while
        fewer brokers are registered. min.insync.replicas never asks for more replicas than there are, so that a single
        broker serves transactions, too.
        """
        config = {"cleanup.policy": "compact"}
        if name == GROUP_OFFSETS_TOPIC:
            partitions = self._config.offsets_topic_num_partitions
            segment_bytes = self._config.offsets_topic_segment_bytes
            asked = self._config.offsets_topic_replication_factor
        elif name == TRANSACTION_STATE_TOPIC:
            partitions = self._config.transaction_state_log_num_partitions
            segment_bytes = self._config.transaction_state_log_segment_bytes
            asked = self._config.transaction_state_log_replication_factor
            config["min.insync.replicas"] = str(self._config.transaction_state_log_min_isr)
        else:
            return None
        factor = min(asked, len(self.metadata.brokers))
        if factor < asked:
            level = logging.INFO if factor == 1 else logging.WARNING  # one broker alone is no mistake
            logger.log(
                level, "%s gets replication factor %d, not %d: no more brokers are registered", name, factor, asked
            )
        return NewTopic(name, partitions, factor, {}, {**config, "segment.bytes": str(segment_bytes)})

    async def delete(self, name: str) -> uuid.UUID:
        """Delete a topic and its logs; returns its id."""
        async with self._topics_lock:
            topic = self._existing(name)
            if name in INTERNAL_TOPICS:
                raise BrokerError(ErrorCode.invalid_request, f"{name} is internal and cannot be deleted")
            listings = self._listings
            await self._call(self._registry.deletions.delete, name)
            if self._listings > listings and name in self._listed:
                await self.refresh([name])  # the list is older than the deletion, or the topic was created again
            else:
                await self._uncancelled(self._apply_deleted(topic))
                if name in self._listed and self._listings > listings:
                    await self.refresh([name])  # that list came meanwhile
        logger.info("deleted topic %s", name)
        await self._notify_of_deletion(name)
        return topic.topic_id

    async def _notify_of_deletion(self, name: str) -> None:
        """Let other brokers read the topic again: if it is created again at once, the list of names does not change."""
        if len(self.metadata.brokers) > 1:
            try:
                await self._call(self._notify_brokers, f"topics/{name}")
            except BrokerError as error:
                logger.warning("cannot notify the other brokers of the deletion of %s: %s", name, error)

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

    def learn_leaders(self, later: Mapping[TopicPartition, PartitionInfo]) -> None:
        """Follow leaders of later leader epochs that another broker knows, while ZooKeeper does not answer (P4)."""
        if later:
            self._change_roles(self.metadata.with_partitions(later), {tp.topic for tp in later})

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
        listings = self._listings
        await self._refresh_once(changed)
        if self._listings > listings and self.metadata.topics.keys() != self._listed:
            await self._refresh_once(())  # that list was compared with metadata that were being replaced

    async def _refresh_once(self, changed: Collection[str] | None) -> None:
        async with self._metadata_lock:
            before, names = self.metadata, changed
            if changed:
                found = await self._call(self._registry.load_topics, list(changed), before.topics)
                before = self.metadata  # `learn_leaders` may have changed it
                after = before.with_topics(found.values()).without_topics(name for name in changed if name not in found)
            elif changed is None:
                after = await self._call(self._registry.load_metadata, fallback=before.topics)
                names = before.topics.keys() | after.topics.keys()
            else:
                after = await self._call(self._registry.load_metadata, before)
                names = before.topics.keys() ^ after.topics.keys()
            if after.cluster_id != self._cluster_id or before.topics.keys() - after.topics.keys():
                await self._check_cluster()
            gone = await self._apply(after, names or ())
        await self._notify_deleted(gone)

    def _refresh_stale(self, names: Collection[str]) -> None:
        """Read topics again about which their leaders know more."""
        self._tasks.begin("reading topics again", self._refresh(names))

    async def _apply_created(self, topic: Topic) -> None:
        """This broker created a topic, so it need not read it."""
        async with self._metadata_lock:
            if topic.name in self.metadata.topics:
                return  # a refresh was faster, and has read more
            gone = await self._apply(self.metadata.with_topics([topic]), [topic.name])
        await self._notify_deleted(gone)

    async def _apply_deleted(self, topic: Topic) -> None:
        async with self._metadata_lock:
            if self.metadata.topic_by_id(topic.topic_id) is None:
                return
            gone = await self._apply(self.metadata.without_topics([topic.name]), [topic.name])
        await self._notify_deleted(gone)

    async def _apply(self, after: ClusterMetadata, names: Collection[str]) -> list[TopicPartition]:
        """Replace the metadata, of which the topics `names` differ; returns the deleted partitions."""
        await self._replicas.open_new(after, names)
        self._change_roles(after, names)
        if unserved := self._replicas.led_unserved(self.metadata):
            self._tasks.begin("handing over partitions whose logs the disk refuses", self._give_up(unserved))
        return await self._deleted.delete_logs(self.metadata)

    async def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        """The disk refuses the logs of these partitions, so another replica shall lead them."""
        names = sorted({tp.topic for tp in partitions})
        live = list(self.metadata.brokers)

        def leave() -> list[TopicPartition]:
            topics = self._registry.topics(names).values()
            return leave_partitions(self._registry, self._config.broker_id, topics, live, only=partitions)

        for name in sorted({tp.topic for tp in await self._call(leave)}):
            await self._refresh_and_notify(name)

    def _change_roles(self, after: ClusterMetadata, names: Collection[str]) -> None:
        """The part of `_apply` that nothing may interrupt."""
        held = {
            partition: partition.leader_epoch
            for name in names
            if name in self._on_resigned
            for partition in self._replicas.of_topic(name)
        }
        before = self.metadata
        led, gone = self._replicas.apply(before, after, names)
        self.metadata = after.with_controller(self._controller_id)
        for partition, epoch in held.items():
            is_led = self._replicas.get(partition.tp) is partition
            if is_led and partition.leader_epoch == epoch:
                continue
            self._on_resigned[partition.tp.topic](partition)
            if is_led:  # another broker may have led it meanwhile
                led.append(partition.tp)
        for tp in led:
            elected = self._replicas.get(tp)
            if tp.topic in self._on_elected and elected is not None:
                self._on_elected[tp.topic](elected)
        for on_change in self._on_change:
            on_change(names)
        self._deleted.add({tp: before.topics[tp.topic].topic_id for tp in gone})

    async def delete_left_logs(self) -> None:
        """At start, delete the logs of topics and partitions that this broker has no more."""
        await self._deleted.delete_left_logs(self.metadata)

    async def _notify_deleted(self, gone: Sequence[TopicPartition]) -> None:
        if gone:
            for on_deleted in self._on_deleted:
                await on_deleted(gone)

    async def _uncancelled(self, work: Coroutine[Any, Any, None]) -> None:
        """Finish `work` even if the caller is cancelled, as when its client disconnects."""
        await self._tasks.finish("a change of topics", work)

    async def stop_following(self) -> None:
        """Fetch nothing more from other leaders, because this broker stops."""
        await self._replicas.stop_following()

    async def close(self) -> None:
        """Apply no more changes, and wait for the queued appends."""
        await self._tasks.close()
        await self._replicas.close()

    def add_leadership_listener(self, topic: str, on_elected: OnLeadership, on_resigned: OnLeadership) -> None:
        """Call `on_elected` for every partition of `topic` this broker leads, now and later, and `on_resigned` when
        it stops leading one.

        They are called in the same step of the event loop in which the role changes, so nothing can come between.
        """
        self._on_elected[topic] = on_elected
        self._on_resigned[topic] = on_resigned
        for partition in self._replicas.of_topic(topic):
            on_elected(partition)

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
            return check_assignment(new.assignment, brokers)
        partitions = self._config.num_partitions if new.partitions == -1 else new.partitions
        if partitions < 1:
            raise BrokerError(ErrorCode.invalid_partitions, f"a topic needs at least 1 partition, not {partitions}")
        _check_count(partitions)
        factor = new.replication_factor
        if factor == -1:
            factor = self._config.default_replication_factor
        start = zlib.crc32(new.name.encode())
        return assign_replicas(brokers, partitions, factor, start=start, racks=self._racks())

    def _racks(self) -> dict[int, str | None]:
        return {broker_id: broker.rack for broker_id, broker in self.metadata.brokers.items()}


def _check_count(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise BrokerError(
            ErrorCode.invalid_partitions, f"{partitions} new partitions; at most {MAX_NEW_PARTITIONS} at once"
        )
