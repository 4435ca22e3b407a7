"""What brokers note in ZooKeeper about archives. Kafka has no such nodes.

    /admin/pykafka_deleted_archives/<archive id>   a topic was deleted, and its archive shall be, some time later
    /admin/pykafka_archive_claims                  its version counts the topics that were made from an archive
    /admin/pykafka_restoring                       a restore of the whole cluster is not complete yet
    /admin/pykafka_restored_offsets/<p>-<n>        offsets of groups for the empty log of `__consumer_offsets-<p>`

An archive id is the id of a topic, whose archive it is. All of this blocks and raises ConnectionFailed as the methods
of the Registry.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import BadVersion, Create, Delete, NoNode, Operation, SetData
from broker.zookeeper.znodes import MalformedNode, uuid_from_text, uuid_to_text

DELETED_ARCHIVES = "/admin/pykafka_deleted_archives"
_CLAIMS = "/admin/pykafka_archive_claims"
RESTORING = "/admin/pykafka_restoring"
RESTORED_OFFSETS = "/admin/pykafka_restored_offsets"
_NODE_BYTES = 500_000
"""About how large a node with offsets gets."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)

ARCHIVE_KEY = "remote.storage.enable"
ARCHIVE_ID_KEY = "archive.topic.id"
_DELETE_KEY = "remote.log.delete.on.disable"


@dataclass(frozen=True)
class DeletedTopic:
    """A topic that was deleted, and whose archive is left. It is what `deleted.json` holds, too."""

    archive_id: uuid.UUID
    name: str
    partitions: int
    config: Mapping[str, str]
    deleted_ms: int
    is_being_erased: bool = False
    """Its objects are being deleted: nobody may claim it any more."""

    def encode(self) -> bytes:
        node = {
            "version": 1,
            "topic_id": uuid_to_text(self.archive_id),
            "name": self.name,
            "partitions": self.partitions,
            "config": dict(self.config),
            "deleted_ms": self.deleted_ms,
            "is_being_erased": self.is_being_erased,
        }
        return json.dumps(node, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, where: str, data: bytes) -> DeletedTopic:
        """Raises MalformedNode."""
        try:
            node = json.loads(data)
            return cls(
                uuid_from_text(node["topic_id"]),
                str(node["name"]),
                int(node["partitions"]),
                {str(key): str(value) for key, value in node["config"].items()},
                int(node["deleted_ms"]),
                bool(node.get("is_being_erased")),
            )
        except _UNREADABLE as error:
            raise MalformedNode(where, data, error) from error


def archive_id_of(topic_id: uuid.UUID, config: Mapping[str, str]) -> uuid.UUID | None:
    """Whose archive a topic with these settings has; None for a topic without one."""
    return owned_archive(topic_id, config) if _is_true(config, ARCHIVE_KEY) else None


def owned_archive(topic_id: uuid.UUID, config: Mapping[str, str]) -> uuid.UUID:
    """The archive that only this topic may have, whether it is turned on now or not: it may be turned on again."""
    named = config.get(ARCHIVE_ID_KEY, "").strip()
    try:
        return uuid_from_text(named) if named else topic_id
    except ValueError:  # of a hand in ZooKeeper
        return topic_id


def may_have_archive(config: Mapping[str, str]) -> bool:
    """Whether there may be an archive, also of a topic that has turned it off."""
    return _is_true(config, ARCHIVE_KEY) or _is_true(config, _DELETE_KEY) or bool(config.get(ARCHIVE_ID_KEY))


def _is_true(config: Mapping[str, str], key: str) -> bool:
    return config.get(key, "").strip().lower() == "true"


def deletion_path(archive_id: uuid.UUID) -> str:
    return f"{DELETED_ARCHIVES}/{uuid_to_text(archive_id)}"


def note_of_deletion(zk: MetadataStore, deleted: DeletedTopic) -> list[Operation]:
    """What the deletion of a topic adds to its transaction, so that its archive is not forgotten. An earlier note has
    an earlier time, so it is replaced."""
    path, data = deletion_path(deleted.archive_id), deleted.encode()
    root, note = zk.get_many([DELETED_ARCHIVES, path])
    operations: list[Operation] = [] if root is not None else [Create(DELETED_ARCHIVES)]
    return [*operations, Create(path, data) if note is None else SetData(path, data, note[1].version)]


class ArchiveNodes:
    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    # -- deleted topics

    def deleted(self) -> list[tuple[DeletedTopic, int]]:
        """The deleted topics whose archives are left, with the versions of their nodes. Raises MalformedNode."""
        paths = [f"{DELETED_ARCHIVES}/{name}" for name in self._zk.children(DELETED_ARCHIVES)]
        nodes = zip(paths, self._zk.get_many(paths), strict=True)
        return [(DeletedTopic.decode(path, node[0]), node[1].version) for path, node in nodes if node is not None]

    def begin_erasing(self, deleted: DeletedTopic, version: int) -> bool:
        """From now on nobody can claim the archive. False if somebody has claimed it since it was read."""
        path = deletion_path(deleted.archive_id)
        data = DeletedTopic(**{**vars(deleted), "is_being_erased": True}).encode()
        try:
            self._zk.set(path, data, version)
            return True
        except (BadVersion, NoNode):
            return False

    def forget(self, deleted: DeletedTopic) -> None:
        with contextlib.suppress(NoNode):
            self._zk.delete(deletion_path(deleted.archive_id))

    def begin_claim(self) -> Operation:
        """What a topic that claims an archive adds to its transaction: of two at the same time one is refused. Read the
        topics after this call, and what was deleted after the topics."""
        self._zk.ensure_path(_CLAIMS)
        _, stat = self._zk.get(_CLAIMS)
        return SetData(_CLAIMS, b"", stat.version)

    def claim(self, archive_id: uuid.UUID) -> tuple[DeletedTopic | None, list[Operation]]:
        """The deleted topic that had this archive, if it is known, and what else the creation of the topic that goes on
        with it adds to its transaction."""
        path = deletion_path(archive_id)
        try:
            data, found = self._zk.get(path)
        except NoNode:
            return None, []
        return DeletedTopic.decode(path, data), [Delete(path, found.version)]

    # -- offsets of a restored cluster

    def restored_partitions(self) -> dict[int, list[str]]:
        """By partition of `__consumer_offsets`: the nodes with its offsets."""
        found: dict[int, list[str]] = defaultdict(list)
        for name in self._zk.children(RESTORED_OFFSETS):
            found[int(name.partition("-")[0])].append(f"{RESTORED_OFFSETS}/{name}")
        return dict(found)

    def restored_offsets(self, paths: Iterable[str]) -> dict[str, list[list[Any]]]:
        """Group → rows of topic, partition, offset, leader epoch, metadata."""
        nodes = [node for node in self._zk.get_many(list(paths)) if node is not None]
        return {group: rows for data, _ in nodes for group, rows in json.loads(data).items()}

    def forget_restored(self, paths: Iterable[str]) -> None:
        """They are in the log."""
        for path in paths:
            with contextlib.suppress(NoNode):
                self._zk.delete(path)


def restored_offset_nodes(partition: int, groups: Mapping[str, list[list[Any]]]) -> Iterator[tuple[str, bytes]]:
    """Path and data of the nodes with these groups, all of one partition of `__consumer_offsets`."""
    chunk: dict[str, list[list[Any]]] = {}
    size = number = 0
    for group, rows in groups.items():
        chunk[group] = rows
        size += len(json.dumps([group, rows]))
        if size > _NODE_BYTES:
            yield f"{RESTORED_OFFSETS}/{partition}-{number}", json.dumps(chunk).encode()
            chunk, size, number = {}, 0, number + 1
    if chunk:
        yield f"{RESTORED_OFFSETS}/{partition}-{number}", json.dumps(chunk).encode()
