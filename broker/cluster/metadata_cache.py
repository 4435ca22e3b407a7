"""The metadata of the cluster as this broker knows them, and its own partitions, which follow them.

ZooKeeper has the truth. A change is written there first (topic_changes.py, controller.py), then applied here, and the
replica manager updates the local logs. When another broker changes something, ZooKeeper's watches say what, and only
that is read again, so that a change costs the same however many topics there are. Lives on the event loop. A call that
ZooKeeper does not answer in time raises BrokerError `request_timed_out`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from broker.background_tasks import BackgroundTasks
from broker.cluster.deleted_topics import DeletedTopics
from broker.cluster.leadership_handover import leave_partitions
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import ClusterMetadata, PartitionInfo, Topic
from broker.replica.partition import Partition
from broker.replica.replica import Replica, check_leader_epoch
from broker.replica.replica_manager import ReplicaManager
from broker.zookeeper.cluster_store import ClusterStore

OnLeadership = Callable[[Partition], None]
OnDeleted = Callable[[Sequence[TopicPartition]], Awaitable[None]]


class MetadataCache:
    def __init__(self, store: ClusterStore, replicas: ReplicaManager, metadata: ClusterMetadata) -> None:
        self._store = store
        self._registry = store.registry
        self.replicas = replicas
        """The partitions that this broker leads or follows."""
        self._tasks = BackgroundTasks()
        self.deleted_topics = DeletedTopics(store, replicas, self._tasks)
        self._metadata_lock = asyncio.Lock()  # while a change of the metadata is applied
        self.creating_or_deleting = asyncio.Lock()
        """Held while a request to this broker creates or deletes a topic."""
        self._on_elected: dict[str, OnLeadership] = {}
        self._on_resigned: dict[str, OnLeadership] = {}
        self._on_deleted: list[OnDeleted] = []
        self._on_change: list[Callable[[Collection[str]], None]] = []
        self.listings = 0
        """How many lists of all topics the watch has told."""
        self._listed: Collection[str] = ()
        self._cluster_id = metadata.cluster_id
        self._controller_id = metadata.controller_id
        self.metadata = metadata
        replicas.on_stale = self._refresh_stale
        replicas.start(metadata)

    # --- reading

    def partition(self, tp: TopicPartition, epoch: int = -1) -> Partition:
        """The partition if this broker leads it in `epoch`; -1 for any. Raises BrokerError otherwise.

        As in Kafka, a follower also tells a client that names another epoch than its own.
        """
        found = self.replicas.led.get(tp)
        if found is not None:
            check_leader_epoch(tp, found.leader_epoch, epoch)
            return found
        follower = self.replicas.followed.get(tp)
        if follower is not None:
            check_leader_epoch(tp, follower.leader_epoch, epoch)
        topic = self.metadata.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        leader, reason = topic.partitions[tp.partition].leader, self.replicas.offline(tp)
        if leader == self.replicas.broker_id and self.replicas.awaits_archive(tp):
            text = f"{tp} begins where its archive ends, and the archive has not answered yet"
            raise BrokerError(ErrorCode.not_leader_or_follower, text)  # which clients try again
        if reason or leader == self.replicas.broker_id:
            reason = reason or f"{tp} cannot be opened; the broker's log says why"
            raise BrokerError(ErrorCode.kafka_storage_error, reason)
        raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} is led by {leader}")

    def replica(self, tp: TopicPartition, epoch: int = -1) -> Replica:
        """The partition if this broker leads or follows it in `epoch`; -1 for any. Raises BrokerError otherwise."""
        found = self.replicas.role(tp)
        if found is None:
            return self.partition(tp, epoch)
        check_leader_epoch(tp, found.leader_epoch, epoch)
        return found

    def is_malformed(self, name: str) -> bool:
        """Whether ZooKeeper has nodes of the topic that cannot be read. The metadata may lack it, but it exists."""
        return name in self._registry.malformed

    # --- changes by this broker

    async def add_created(self, topic: Topic, listings: int) -> None:
        """This broker has created `topic`, so it need not be read. `listings`: how many there were before that."""
        if self.listings > listings and topic.name not in self._listed:
            await self.refresh([topic.name])  # the list is older than the topic, or the topic was deleted at once
        else:
            await self._uncancelled(self._apply_created(topic))

    async def remove_deleted(self, topic: Topic, listings: int) -> None:
        """This broker has deleted `topic`. `listings`: how many there were before that."""
        if self.listings > listings and topic.name in self._listed:
            await self.refresh([topic.name])  # the list is older than the deletion, or the topic was created again
            return
        await self._uncancelled(self._apply_deleted(topic))
        if self.listings > listings and topic.name in self._listed:
            await self.refresh([topic.name])  # that list came meanwhile

    async def refresh_and_notify(self, name: str) -> None:
        """This broker has changed partitions or settings of a topic."""
        await self.refresh([name])
        await self.notify(name)

    async def notify(self, name: str) -> None:
        """Let other brokers read the topic again. (They watch the list of topics themselves.)"""
        await self._store(self._store.changes.notify_config_change, f"topics/{name}")

    # --- changes by other brokers

    def set_controller(self, controller_id: int) -> None:
        """Set the controller's id, -1 for none.

        A broker learns who the controller is only from its watch, because a refresh may have read an older value.
        """
        self._controller_id = controller_id
        self.metadata = self.metadata.with_controller(controller_id)

    def topics_listed(self, names: Collection[str]) -> bool:
        """Note the list of topics from the watch. True when it differs from the metadata; then call `catch_up`."""
        self.listings += 1
        self._listed = names
        return self.metadata.topics.keys() != names

    def learn_leaders(self, later: Mapping[TopicPartition, PartitionInfo]) -> None:
        """Follow leaders of later leader epochs that another broker knows, while ZooKeeper does not answer (P4)."""
        if later:
            self._change_roles(self.metadata.with_partitions(later), {tp.topic for tp in later})

    async def catch_up(self) -> None:
        """Refresh the topics that other brokers created or deleted, after our own requests have ended."""
        async with self.creating_or_deleting:
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
        listings = self.listings
        await self._refresh_once(changed)
        if self.listings > listings and self.metadata.topics.keys() != self._listed:
            await self._refresh_once(())  # that list was compared with metadata that were being replaced

    async def _refresh_once(self, changed: Collection[str] | None) -> None:
        async with self._metadata_lock:
            before, names = self.metadata, changed
            if changed:
                found = await self._store(self._registry.load_topics, list(changed), before.topics)
                before = self.metadata  # `learn_leaders` may have changed it
                after = before.with_topics(found.values()).without_topics(name for name in changed if name not in found)
            elif changed is None:
                after = await self._store(self._registry.load_metadata, fallback=before.topics)
                names = before.topics.keys() | after.topics.keys()
            else:
                after = await self._store(self._registry.load_metadata, before)
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
        await self.replicas.open_new(after, names)
        self._change_roles(after, names)
        if unserved := self.replicas.led_unserved():
            self._tasks.begin("handing over partitions whose logs the disk refuses", self._give_up(unserved))
        return await self.deleted_topics.delete_logs()

    async def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        """The disk refuses the logs of these partitions, so another replica shall lead them."""
        names = sorted({tp.topic for tp in partitions})
        live = list(self.metadata.brokers)

        def leave() -> list[TopicPartition]:
            topics = self._registry.topics(names).values()
            return leave_partitions(self._registry, self.replicas.broker_id, topics, live, only=partitions)

        for name in sorted({tp.topic for tp in await self._store(leave)}):
            await self.refresh_and_notify(name)

    def _change_roles(self, after: ClusterMetadata, names: Collection[str]) -> None:
        """The part of `_apply` that nothing may interrupt."""
        held = {
            partition: partition.leader_epoch
            for name in names
            if name in self._on_resigned
            for partition in self.replicas.of_topic(name)
        }
        before, after = self.metadata, after.with_controller(self._controller_id)
        led, gone = self.replicas.apply(after, names)
        self.metadata = after
        for partition, epoch in held.items():
            is_led = self.replicas.led.get(partition.tp) is partition
            if is_led and partition.leader_epoch == epoch:
                continue
            self._on_resigned[partition.tp.topic](partition)
            if is_led:  # another broker may have led it meanwhile
                led.append(partition.tp)
        for tp in led:
            elected = self.replicas.led.get(tp)
            if tp.topic in self._on_elected and elected is not None:
                self._on_elected[tp.topic](elected)
        for on_change in self._on_change:
            on_change(names)
        self.deleted_topics.add({tp: before.topics[tp.topic].topic_id for tp in gone})

    async def _notify_deleted(self, gone: Sequence[TopicPartition]) -> None:
        if gone:
            for on_deleted in self._on_deleted:
                await on_deleted(gone)

    async def _uncancelled(self, work: Coroutine[Any, Any, None]) -> None:
        """Finish `work` even if the caller is cancelled, as when its client disconnects."""
        await self._tasks.finish("a change of topics", work)

    async def close(self) -> None:
        """Apply no more changes, and wait for the queued appends."""
        await self._tasks.close()
        await self.replicas.close()

    def add_leadership_listener(self, topic: str, on_elected: OnLeadership, on_resigned: OnLeadership) -> None:
        """Call `on_elected` for every partition of `topic` this broker leads, now and later, and `on_resigned` when
        it stops leading one.

        They are called in the same step of the event loop in which the role changes, so nothing can come between.
        """
        self._on_elected[topic] = on_elected
        self._on_resigned[topic] = on_resigned
        for partition in self.replicas.of_topic(topic):
            on_elected(partition)

    def add_change_listener(self, on_change: Callable[[Collection[str]], None]) -> None:
        """Call `on_change` with the names of topics that changed, after the metadata was replaced. They are all topics
        when the brokers may have changed."""
        self._on_change.append(on_change)

    def add_deletion_listener(self, on_deleted: OnDeleted) -> None:
        """Await `on_deleted` with the partitions of every topic that is deleted."""
        self._on_deleted.append(on_deleted)

    # --- inside

    async def _check_cluster(self) -> None:
        """Topics are missing. Before logs are deleted, check that this is still our ZooKeeper and not an empty one."""
        found, ours = await self._store(self._registry.cluster_id), self._cluster_id
        if found != ours:
            raise BrokerError(
                ErrorCode.inconsistent_cluster_id,
                f"ZooKeeper has lost cluster {ours} and has {found} now; no change is applied and no log is deleted: "
                "restore ZooKeeper's data, or stop the broker and start it with other log.dirs",
            )
