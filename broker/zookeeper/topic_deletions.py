"""Deletions of topics in ZooKeeper: requests of Kafka's tools, the deletion itself, and notes for the brokers.

A topic is deleted as a whole, in one transaction. One that is too large for that is marked first, so that `resume`
finishes the deletion if the broker dies meanwhile. For each broker that has logs of the topic the transaction leaves a
note with the topic's id. The broker deletes its logs and then the note, also when it was away (Kafka keeps the topic
until then). A topic with an archive leaves one more note, for the controller (archive_nodes.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import uuid
from collections.abc import Callable, Iterable

from broker.clock import Clock
from broker.errors import BrokerError, ErrorCode
from broker.zookeeper import znodes
from broker.zookeeper.archive_nodes import DeletedTopic, may_have_archive, note_of_deletion, owned_archive
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import Create, Delete, NodeExists, NoNode, NotEmpty, Operation, in_transactions
from broker.zookeeper.znodes import TopicRecord

logger = logging.getLogger(__name__)


class TopicDeletions:
    """Its methods block and raise ConnectionFailed as those of the Registry."""

    def __init__(self, zk: MetadataStore, clock: Clock) -> None:
        self._zk = zk
        self._clock = clock

    def delete(self, name: str) -> None:
        """Delete a topic, its config and its states. Raises BrokerError `unknown_topic_or_partition`."""
        if not self._zk.exists(znodes.topic_path(name)):
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        while self._zk.exists(znodes.topic_path(name)):
            try:
                chunks = list(in_transactions(self._operations(name)))
                if len(chunks) > 1:
                    self.request(name)
                    chunks = list(in_transactions(self._operations(name)))
                for chunk in chunks:
                    self._zk.transaction(chunk)
            except (NoNode, NodeExists, NotEmpty):
                continue  # another broker deletes the topic too, or adds partitions: read it again

    def request(self, name: str) -> None:
        """Mark a topic for deletion, as Kafka's tools do."""
        with contextlib.suppress(NodeExists):
            self._zk.create(znodes.delete_topic_path(name), parents=True)

    def pending(self) -> list[str]:
        return self._zk.children(znodes.DELETE_TOPICS)

    def resume(self, *, allowed: bool = True) -> list[str]:
        """Delete the marked topics, and marks without a topic; returns the names.

        `allowed` is `delete.topic.enable`. Without it the marks are deleted and the topics stay (as Kafka's
        KafkaController).
        """
        names = self.pending()
        for name in names:
            if not allowed:
                logger.warning("topic %s is not deleted, because delete.topic.enable=false", name)
                self._unmark(name)
                continue
            try:
                self.delete(name)
            except BrokerError:
                self._unmark(name)
        return names

    def _unmark(self, name: str) -> None:
        with contextlib.suppress(NoNode):
            self._zk.delete(znodes.delete_topic_path(name))

    def watch(self, callback: Callable[[list[str]], None]) -> Watch:
        return self._zk.watch_children(znodes.DELETE_TOPICS, callback)

    def noted(self, broker_id: int) -> list[uuid.UUID]:
        """The ids of deleted topics whose logs this broker may still have."""
        return [znodes.uuid_from_text(name) for name in self._zk.children(znodes.deleted_topics_path(broker_id))]

    def forget(self, broker_id: int, topic_ids: Iterable[uuid.UUID]) -> None:
        """Delete the notes of these topics: the broker has no logs of them any more."""
        for topic_id in topic_ids:
            with contextlib.suppress(NoNode):
                self._zk.delete(znodes.deleted_topic_path(broker_id, topic_id))

    def _operations(self, name: str) -> list[Operation]:
        """Notes for the brokers, then deletions of all nodes, children before parents, the topic itself last."""
        partitions_root = znodes.partitions_path(name)
        partitions = [f"{partitions_root}/{partition}" for partition in self._zk.children(partitions_root)]
        below = self._zk.children_many(partitions)
        paths = [f"{path}/{child}" for path, children in zip(partitions, below, strict=True) for child in children]
        paths += partitions
        last = (
            partitions_root,
            znodes.topic_config_path(name),
            znodes.delete_topic_path(name),
            znodes.topic_path(name),
        )
        found = self._zk.get_many(last)
        paths += [path for path, node in zip(last, found, strict=True) if node is not None]
        node, config = (one[0] if one else b"" for one in (found[-1], found[1]))
        return [*self._notes(name, node, config), *map(Delete, paths)]

    def _notes(self, name: str, node: bytes, config: bytes) -> list[Operation]:
        try:
            record = TopicRecord.decode(name, node, {})
        except znodes.MalformedNode:
            return []
        with contextlib.suppress(znodes.MalformedNode):
            settings = znodes.decode_config(znodes.topic_config_path(name), config)
            record = dataclasses.replace(record, config=settings)
        if not record.topic_id.int:  # a topic of Kafka before 2.8
            return []
        brokers = sorted({replica for replicas in record.assignment.values() for replica in replicas})
        parents = map(znodes.deleted_topics_path, brokers)
        paths = [*parents, *(znodes.deleted_topic_path(broker_id, record.topic_id) for broker_id in brokers)]
        notes = [Create(path) for path, found in zip(paths, self._zk.get_many(paths), strict=True) if found is None]
        return [*notes, *self._archive_note(record)]

    def _archive_note(self, record: TopicRecord) -> list[Operation]:
        if not may_have_archive(record.config):
            return []
        archive_id = owned_archive(record.topic_id, record.config)
        now_ms = self._clock.now_ms()
        deleted = DeletedTopic(archive_id, record.name, len(record.assignment), record.config, now_ms)
        return note_of_deletion(self._zk, deleted)
