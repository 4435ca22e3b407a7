"""The changes of topics that clients ask for: create, alter, add partitions, delete.

Each is written to ZooKeeper in a worker thread, then applied to the metadata of this broker, and other brokers are
notified. Lives on the event loop. A call that ZooKeeper does not answer in time raises BrokerError `request_timed_out`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.cluster.assignment import assign_replicas, check_assignment
from broker.cluster.metadata_cache import MetadataCache
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.log_config import LogConfig
from broker.protocol.topic_names import (
    GROUP_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    check_collision,
    check_topic_name,
)
from broker.replica.cluster_metadata import PartitionInfo, Topic
from broker.zookeeper.archive_nodes import ARCHIVE_ID_KEY
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.znodes import TopicRecord, new_uuid

if TYPE_CHECKING:
    from broker.cluster.archived_topics import ArchivedTopics, Claim

logger = logging.getLogger(__name__)

MAX_NEW_PARTITIONS = 10_000
"""In one request; more would not fit into one ZooKeeper transaction."""


@dataclasses.dataclass(frozen=True)
class NewTopic:
    """A topic that CreateTopics asks for. Counts of -1 take the broker's defaults; an assignment replaces both counts.
    A setting that is None is refused."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    config: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


class TopicChanges:
    """Creates, alters and deletes topics. The metadata have a change when the call returns."""

    def __init__(self, config: BrokerConfig, store: ClusterStore, topics: MetadataCache) -> None:
        self._config = config
        self._registry = store.registry
        self._store = store
        self._topics = topics
        self.archives: ArchivedTopics | None = None
        """Set by the server of a broker with an archive."""

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> TopicRecord:
        """Create a topic completely or, raising BrokerError or ConfigError, not at all."""
        if new.name in INTERNAL_TOPICS and new.name not in self._topics.metadata.topics:
            raise BrokerError(
                ErrorCode.invalid_topic_exception, f"{new.name} is created by the brokers when it is needed"
            )
        async with self._topics.creating_or_deleting:
            return await self._create(new, validate_only)

    async def _create(self, new: NewTopic, validate_only: bool) -> TopicRecord:
        check_topic_name(new.name)
        if new.name in self._topics.metadata.topics:
            raise BrokerError(ErrorCode.topic_already_exists, f"topic {new.name} already exists")
        check_collision(new.name, self._topics.metadata.topics)
        await self._expect_brokers(new.replication_factor, new.assignment.values())
        assignment = self._assignment(new)
        if nulls := [key for key, value in new.config.items() if value is None]:
            raise ConfigError(f"a value is needed for {', '.join(nulls)}")
        config = {key: value for key, value in new.config.items() if value is not None}
        self._check_config(config)
        record = TopicRecord(new.name, new_uuid(), assignment, config)
        claim = await self._claim(record)
        if validate_only:
            return record
        listings = self._topics.listings
        create = self._registry.create_topic
        epochs = claim.first_epochs if claim else {}
        if claim is not None:
            create = functools.partial(create, first_epochs=epochs, claim=claim.operations)
        try:
            await self._store(create, new.name, assignment, record.config, record.topic_id)
        except BrokerError as error:
            if error.code is ErrorCode.topic_already_exists:
                await self._topics.refresh([new.name])  # another broker was faster
            raise
        if claim is not None and self.archives is not None:
            await asyncio.to_thread(self.archives.claimed, claim)
        states = {
            index: PartitionInfo(ids[0], epoch := epochs.get(index, 0), ids, ids, version=0, is_restored=epoch > 0)
            for index, ids in assignment.items()
        }
        await self._topics.add_created(Topic(new.name, record.topic_id, states, record.config), listings)
        logger.info("created topic %s with %d partitions", new.name, len(assignment))
        return record

    async def _claim(self, record: TopicRecord) -> Claim | None:
        """The archive of another topic that this one goes on with; None for one of its own."""
        named = record.config.get(ARCHIVE_ID_KEY, "").strip()
        if not named:
            return None
        if self.archives is None:
            raise ConfigError(f"{ARCHIVE_ID_KEY}={named}: this broker has no archive; set archive.url")
        return await self._store(self.archives.claim, named, len(record.assignment))

    async def _expect_brokers(self, replication_factor: int, named: Iterable[Sequence[int]] = ()) -> None:
        """Read the brokers again if too few are known, or not all that an assignment names: some may have registered
        just now, as when a cluster starts."""
        factor = self._config.default_replication_factor if replication_factor == -1 else replication_factor
        known = self._topics.metadata.brokers.keys()
        if factor > len(known) or not known >= set[int]().union(*named):
            await self._topics.refresh(())

    async def create_default(self, name: str) -> None:
        """Create a topic with the broker's defaults, for a client that named it, or an internal topic."""
        if name in INTERNAL_TOPICS:
            config = self._config
            factors = config.offsets_topic_replication_factor, config.transaction_state_log_replication_factor
            await self._expect_brokers(max(*factors, config.share_coordinator_state_topic_replication_factor))
        new = self._internal_topic(name)
        if new is None:
            await self.create(NewTopic(name))
        else:
            async with self._topics.creating_or_deleting:
                await self._create(new, validate_only=False)

    def _internal_topic(self, name: str) -> NewTopic | None:
        """How the broker creates an internal topic; None for any other.

        Compacted, because the last record of each key counts; but for the share state, which its coordinator prunes.
        It has fewer replicas than its setting asks for while
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
        elif name == SHARE_STATE_TOPIC:
            partitions = self._config.share_coordinator_state_topic_num_partitions
            segment_bytes = self._config.share_coordinator_state_topic_segment_bytes
            asked = self._config.share_coordinator_state_topic_replication_factor
            min_isr = str(self._config.share_coordinator_state_topic_min_isr)
            config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
            config["min.insync.replicas"] = min_isr
        else:
            return None
        factor = min(asked, len(self._topics.metadata.brokers))
        if factor < asked:
            level = logging.INFO if factor == 1 else logging.WARNING  # one broker alone is no mistake
            logger.log(
                level, "%s gets replication factor %d, not %d: no more brokers are registered", name, factor, asked
            )
        return NewTopic(name, partitions, factor, {}, {**config, "segment.bytes": str(segment_bytes)})

    async def delete(self, name: str) -> uuid.UUID:
        """Delete a topic and its logs; returns its id."""
        async with self._topics.creating_or_deleting:
            topic = self._existing(name)
            if name in INTERNAL_TOPICS:
                raise BrokerError(ErrorCode.invalid_request, f"{name} is internal and cannot be deleted")
            listings = self._topics.listings
            await self._store(self._registry.deletions.delete, name)
            await self._topics.remove_deleted(topic, listings)
        logger.info("deleted topic %s", name)
        await self._notify_of_deletion(name)
        return topic.topic_id

    async def _notify_of_deletion(self, name: str) -> None:
        """Let other brokers read the topic again: if it is created again at once, the list of names does not change."""
        if len(self._topics.metadata.brokers) > 1:
            try:
                await self._topics.notify(name)
            except BrokerError as error:
                logger.warning("cannot notify the other brokers of the deletion of %s: %s", name, error)

    def _existing(self, name: str) -> Topic:
        topic = self._topics.metadata.topics.get(name)
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
        await self._expect_brokers(0, assignments or ())
        brokers = sorted(self._topics.metadata.brokers)
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
            await self._store(self._registry.add_partitions, name, added)
            await self._topics.refresh_and_notify(name)

    async def alter_config(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set settings of a topic, or remove those that are None. Raises BrokerError or ConfigError."""
        topic = self._existing(name)
        merged = {**topic.config, **changes}
        config = {key: value for key, value in merged.items() if value is not None}
        self._check_config(config, self._topics.replicas.log_config(topic))
        if not validate_only:
            await self._store(self._registry.alter_topic_config, name, changes)
            await self._topics.refresh_and_notify(name)

    def _check_config(self, overrides: Mapping[str, str], before: LogConfig | None = None) -> None:
        """Raises ConfigError for settings that a topic cannot have, or cannot get after the settings `before`."""
        config = LogConfig.from_properties(overrides, self._topics.replicas.defaults)
        if config.remote_storage_enable and not self._config.remote_log_storage_system_enable:
            raise ConfigError(
                "remote.storage.enable=true: the brokers have no archive; set archive.url and "
                "remote.log.storage.system.enable=true in their server.properties"
            )
        if before is not None:
            config.check_change(before)

    def _assignment(self, new: NewTopic) -> dict[int, tuple[int, ...]]:
        brokers = sorted(self._topics.metadata.brokers)
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
        return {broker_id: broker.rack for broker_id, broker in self._topics.metadata.brokers.items()}


def _check_count(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise BrokerError(
            ErrorCode.invalid_partitions, f"{partitions} new partitions; at most {MAX_NEW_PARTITIONS} at once"
        )
