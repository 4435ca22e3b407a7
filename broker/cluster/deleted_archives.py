"""The archives of deleted topics: `deleted.json` in each, and their end. Also where `topic.json` lies.

The deletion of a topic leaves a note in ZooKeeper in the same transaction (archive_nodes.py). Only such a note proves
that an archive belongs to nobody; an archive without a topic and without a note stays, as the logs of such a topic do.
All functions block.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from broker.archive.layout import DELETED_FILE, TOPIC_FILE, topic_directory
from broker.zookeeper.archive_nodes import ArchiveNodes, DeletedTopic
from broker.zookeeper.znodes import uuid_to_text

if TYPE_CHECKING:
    from broker.storage.storage import Storage

logger = logging.getLogger(__name__)


def topic_path(cluster_id: str, archive_id: uuid.UUID) -> str:
    return f"{topic_directory(cluster_id, archive_id)}/{TOPIC_FILE}"


def deleted_path(cluster_id: str, archive_id: uuid.UUID) -> str:
    """Where `deleted.json` of an archive is, if its topic was deleted."""
    return f"{topic_directory(cluster_id, archive_id)}/{DELETED_FILE}"


def topic_document(topic_id: uuid.UUID, name: str, partitions: int, config: Mapping[str, str]) -> bytes:
    document = {
        "version": 1,
        "topic_id": uuid_to_text(topic_id),
        "name": name,
        "partitions": partitions,
        "config": dict(config),
    }
    return json.dumps(document, indent=2).encode()


class DeletedArchives:
    def __init__(self, storage: Storage, cluster_id: str, nodes: ArchiveNodes) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._nodes = nodes
        self._told: dict[uuid.UUID, DeletedTopic] = {}
        """What `deleted.json` of each archive says."""

    def look(self, live: Collection[uuid.UUID], deleted_before_ms: int) -> None:
        """Write each missing `deleted.json`, and delete the archives of the topics that were deleted before that time.

        `live`: the ids of the archives that topics have. Theirs are never deleted, whatever a note says. An end that
        was interrupted is gone on with.
        """
        for deleted, version in self._nodes.deleted():
            if deleted.archive_id in live:
                continue
            if not deleted.is_being_erased:
                self._tell(deleted)
                if deleted.deleted_ms > deleted_before_ms or not self._nodes.begin_erasing(deleted, version):
                    continue
            self._erase(deleted)

    def lives(self, archive_id: uuid.UUID) -> None:
        """Its topic was restored: `deleted.json`, which a lost cluster or a store that was away may have left, goes."""
        self._storage.remove(deleted_path(self._cluster_id, archive_id))
        self._told.pop(archive_id, None)

    def _tell(self, deleted: DeletedTopic) -> None:
        """It replaces one of an earlier deletion, by whose time the archive would go too early."""
        if self._told.get(deleted.archive_id) != deleted:
            with self._storage.open_output(deleted_path(self._cluster_id, deleted.archive_id)) as file:
                file.write(deleted.encode())
            self._told[deleted.archive_id] = deleted

    def _erase(self, deleted: DeletedTopic) -> None:
        """`deleted.json` last, and first it says so: who restores the cluster meanwhile gets no rest of an archive."""
        self._tell(dataclasses.replace(deleted, is_being_erased=True))
        root = topic_directory(self._cluster_id, deleted.archive_id)
        for name in self._storage.names(root):
            if name != DELETED_FILE:
                self._storage.remove(f"{root}/{name}")
        self._storage.remove(root)
        self._nodes.forget(deleted)
        self._told.pop(deleted.archive_id, None)
        logger.info("the archive of topic %s, which was deleted, is deleted, too: %s", deleted.name, root)
