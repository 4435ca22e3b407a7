"""The topics as this broker sees them, and every change to them.

ZooKeeper holds the truth. A change is written there first (in a worker thread), then put into the metadata, and the
local logs are brought in line (replica_manager.py). What somebody else changed is read when ZooKeeper tells of it: only
what has changed, so that a change costs the same however many topics there are. Lives on the event loop. What ZooKeeper
does not answer in time is a BrokerError `request_timed_out`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
import zlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from broker.cluster.assignment import assign_replicas, check_assignment, check_replication_factor
from broker.cluster.internal_topics import internal_topic
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_names import INTERNAL_TOPICS, check_collision, check_topic_name
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
"""Made at once; more would not fit into one ZooKeeper transaction anyway."""

OnLeadership = Callable[[int], Awaitable[None]]
OnDeleted = Callable[[Sequence[TopicPartition]], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class NewTopic:
    """What CreateTopics asks for; -1 counts take the broker's defaults, an assignment replaces both. A setting that is
    None is refused."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    config: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


class Topics:
    """Metadata snapshot, the partitions led here, and the ways to change them."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        logs: LogManager,
        metadata: ClusterMetadata,
        calls: ZooKeeperCalls,
        *,
        tell_changed: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """`tell_changed(topic)`, which blocks, tells other brokers of new partitions or settings of a topic; topics
        that come and go they see by themselves."""
        self._config = config
        self._tell_changed = tell_changed
        self._call = calls
        self._registry = registry
        self._replicas = ReplicaManager(config.broker_id, logs, LogConfig.from_properties(config.topic_defaults()))
        self._lock = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._on_elected: dict[str, OnLeadership] = {}
        self._on_resigned: dict[str, OnLeadership] = {}
        self._on_deleted: list[OnDeleted] = []
        self._listings = 0
        self._listed: Collection[str] = ()
        self._cluster_id = metadata.cluster_id
        self._controller_id = metadata.controller_id
        self.metadata = metadata
        self._replicas.expect(metadata)
        self._replicas.apply(ClusterMetadata(metadata.cluster_id), metadata, metadata.topics)

    # --- what handlers read

    def partition(self, tp: TopicPartition) -> Partition:
        """The partition, if this broker leads it. Raises BrokerError otherwise."""
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
        """A topic's settings over this broker's. Raises ConfigError."""
        return LogConfig.from_properties(overrides, self._replicas.defaults)

    def led_partitions(self) -> Mapping[TopicPartition, Partition]:
        """A live view of every partition led here."""
        return self._replicas.all()

    def update_defaults(self, config: BrokerConfig) -> None:
        """Other settings of the broker hold from now on for all topics that do not set them themselves."""
        self._replicas.update_defaults(LogConfig.from_properties(config.topic_defaults()), self.metadata)

    # --- changes

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> TopicRecord:
        """Create a topic. Raises BrokerError or ConfigError; nothing is left of one that failed."""
        if new.name in INTERNAL_TOPICS and new.name not in self.metadata.topics:
            raise BrokerError(ErrorCode.invalid_topic_exception, f"{new.name} is made by the brokers when it is needed")
        async with self._changing:
            return await self._create(new, validate_only)

    async def _create(self, new: NewTopic, validate_only: bool) -> TopicRecord:
        check_topic_name(new.name)
        if new.name in self.metadata.topics:
            raise BrokerError(ErrorCode.topic_already_exists, f"topic {new.name} exists already")
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
                await self.refresh([new.name])  # another broker was faster: it is known from here on
            raise
        states = {index: PartitionInfo(ids[0], 0, ids, ids) for index, ids in assignment.items()}
        if self._listings > listings and new.name not in self._listed:
            await self.refresh([new.name])  # an old listing; or somebody deleted it at once
        else:
            await self._to_the_end(self._created(Topic(new.name, record.topic_id, states, record.config)))
        logger.info("created topic %s with %d partitions", new.name, len(assignment))
        return record

    async def create_default(self, name: str) -> None:
        """Create a topic that a client named first, or one of our own internal ones."""
        ours = internal_topic(name, self._config)
        if ours is None:
            await self.create(NewTopic(name))
        else:
            new = NewTopic(name, ours.partitions, 1, {}, ours.config)
            async with self._changing:
                await self._create(new, validate_only=False)

    async def delete(self, name: str) -> uuid.UUID:
        """Delete a topic and its logs; gives the id it had."""
        async with self._changing:
            topic = self._existing(name)
            if name in INTERNAL_TOPICS:
                raise BrokerError(ErrorCode.invalid_request, f"{name} is internal and cannot be deleted")
            listings = self._listings
            await self._call(self._registry.delete_topic, name)
            if self._listings > listings and name in self._listed:
                await self.refresh([name])  # an old listing; or it was created again at once
            else:
                await self._to_the_end(self._deleted(topic))
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
        """Bring topic `name` to `count` partitions."""
        topic = self._existing(name)
        have = len(topic.partitions)
        if count <= have:
            raise BrokerError(ErrorCode.invalid_partitions, f"topic {name} has {have} partitions, asked for {count}")
        if name in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_request, f"{name} is internal: its groups would not be found again")
        _check_count(count - have)
        brokers = sorted(self.metadata.brokers)
        if assignments is None:
            start = brokers.index(topic.partitions[0].replicas[0]) if topic.partitions[0].replicas[0] in brokers else 0
            added = assign_replicas(brokers, count - have, 1, start=start, first_partition=have)
        else:
            if len(assignments) != count - have:
                raise BrokerError(
                    ErrorCode.invalid_replica_assignment, f"{count - have} partitions need as many assignments"
                )
            named = {have + i: replicas for i, replicas in enumerate(assignments)}
            added = check_assignment(named, brokers, first_partition=have)
            check_replication_factor(len(added[have]), f"partitions on brokers {list(added[have])}")
        if not validate_only:
            await self._call(self._registry.add_partitions, name, added)
            await self._changed(name)

    async def alter_config(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set (or with None take away) settings of a topic. Raises BrokerError or ConfigError."""
        topic = self._existing(name)
        merged = {**topic.config, **changes}
        config = {key: value for key, value in merged.items() if value is not None}
        self.log_config(config)
        if not validate_only:
            await self._call(self._registry.alter_topic_config, name, changes)
            await self._changed(name)

    # --- what others changed

    def set_controller(self, controller_id: int) -> None:
        """Who is controller, -1 for nobody. From here on only this says it: a reading that is under way may have seen
        the node before or after its last change, and would undo what was told meanwhile."""
        self._controller_id = controller_id
        self.metadata = self.metadata.with_controller(controller_id)

    def topics_listed(self, names: Collection[str]) -> bool:
        """ZooKeeper tells which topics there are: are they others than those we know? Then `catch_up` is due."""
        self._listings += 1
        self._listed = names
        return self.metadata.topics.keys() != names

    async def catch_up(self) -> None:
        """Take over the topics that others made or deleted; what was our own doing is seen to be known by now."""
        async with self._changing:
            if self.metadata.topics.keys() == self._listed:
                return
        await self.refresh(())

    async def refresh(self, changed: Collection[str] | None = None) -> None:
        """Read what has changed in the cluster and bring the local logs in line.

        `changed` names the topics to read again, () looks for new and gone ones, and None reads everything.
        Goes on to its end though the caller, a client's request, is cancelled: half of it must not be left undone.
        """
        await self._to_the_end(self._refresh(changed))

    async def _refresh(self, changed: Collection[str] | None) -> None:
        async with self._lock:
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
            told = await self._take_over(after, names or ())
        await self._tell(*told)

    async def _created(self, topic: Topic) -> None:
        """We made a topic ourselves, and so know all about it."""
        async with self._lock:
            if topic.name in self.metadata.topics:
                return  # somebody told us in the meantime, and knows more
            told = await self._take_over(self.metadata.with_topics([topic]), [topic.name])
        await self._tell(*told)

    async def _deleted(self, topic: Topic) -> None:
        async with self._lock:
            if self.metadata.topic_by_id(topic.topic_id) is None:
                return
            told = await self._take_over(self.metadata.without_topics([topic.name]), [topic.name])
        await self._tell(*told)

    async def _take_over(
        self, after: ClusterMetadata, names: Collection[str]
    ) -> tuple[list[TopicPartition], list[TopicPartition], list[TopicPartition]]:
        """From the picture we have to the next one, which differs in `names`: (no longer led, newly led, gone)."""
        await self._replicas.open_new(after, names)
        held = [partition for name in names if name in self._on_resigned for partition in self._replicas.of_topic(name)]
        led, gone = self._replicas.apply(self.metadata, after, names)
        resigned = [partition.tp for partition in held if self._replicas.get(partition.tp) is not partition]
        self.metadata = after.with_controller(self._controller_id)
        await self._replicas.delete(gone)
        return resigned, led, gone

    async def _tell(
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

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do not leave it half done when the client that asked for it goes away."""
        running = asyncio.ensure_future(work)
        self._running.add(running)
        running.add_done_callback(self._ended)
        await asyncio.shield(running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has raised it, if it is still there

    async def close(self) -> None:
        """Take over no more changes, and see the appends end that are under way."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._replicas.settled()

    async def add_leadership_listener(self, topic: str, on_elected: OnLeadership, on_resigned: OnLeadership) -> None:
        """Await `on_elected` for every partition of `topic` this broker leads, now and later, and `on_resigned` when
        it stops leading one."""
        self._on_elected[topic] = on_elected
        self._on_resigned[topic] = on_resigned
        for partition in self._replicas.of_topic(topic):
            await on_elected(partition.tp.partition)

    def add_deletion_listener(self, on_deleted: OnDeleted) -> None:
        """Await `on_deleted` with the partitions of every topic that is deleted."""
        self._on_deleted.append(on_deleted)

    # --- inside

    async def _changed(self, name: str) -> None:
        """We changed partitions or settings of a topic: see it here, and let the other brokers see it."""
        await self.refresh([name])
        await self._call(self._tell_changed, name)

    async def _check_cluster(self) -> None:
        """Topics are gone. Before any record is deleted: is this still the ZooKeeper we know, or an empty one?"""
        found, ours = await self._call(self._registry.cluster_id), self._cluster_id
        if found != ours:
            raise BrokerError(
                ErrorCode.inconsistent_cluster_id,
                f"ZooKeeper has lost the cluster {ours} and holds {found}; nothing of it is applied and no log is "
                "deleted: bring the old ZooKeeper data back, or stop the broker and begin with other log.dirs",
            )

    def _assignment(self, new: NewTopic) -> dict[int, tuple[int, ...]]:
        brokers = sorted(self.metadata.brokers)
        if new.assignment:
            if (new.partitions, new.replication_factor) != (-1, -1):
                raise BrokerError(
                    ErrorCode.invalid_request,
                    "an assignment says how many partitions and replicas there are: leave both counts at -1",
                )
            checked = check_assignment(new.assignment, brokers)
            check_replication_factor(len(checked[0]), f"partitions on brokers {list(checked[0])}")
            return checked
        partitions = self._config.num_partitions if new.partitions == -1 else new.partitions
        if partitions < 1:
            raise BrokerError(ErrorCode.invalid_partitions, f"a topic needs at least 1 partition, not {partitions}")
        _check_count(partitions)
        factor, asked = new.replication_factor, f"replication factor {new.replication_factor}"
        if factor == -1:
            factor = self._config.default_replication_factor
            asked = f"default.replication.factor={factor}"
        check_replication_factor(factor, asked)
        return assign_replicas(brokers, partitions, factor, start=zlib.crc32(new.name.encode()))


def _check_count(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise BrokerError(
            ErrorCode.invalid_partitions, f"{partitions} new partitions; at most {MAX_NEW_PARTITIONS} at once"
        )
