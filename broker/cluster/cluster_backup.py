"""What the archive keeps of a cluster beside its records: `<cluster id>/cluster/<n>.json`, the n-th backup.

A backup holds nodes of ZooKeeper in Kafka's layout (topics, settings, users, quotas, ACLs), the leader epochs, and the
committed offsets of groups. `archive_upkeep.py` writes it, `cluster_restore.py` reads it. It never has a password:
of users it has the salted keys that ZooKeeper has, of the brokers' settings those that are not sensitive.

Each number is created once, so nobody overwrites a backup. A controller that was deposed may still add one: the one
that counts has the highest controller epoch, then the highest number. All functions block. They raise OSError.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.archive.layout import cluster_backups, number_of, numbered
from broker.config.dynamic_config import KEYS
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.quota_entity import QUOTA_KEYS
from broker.replica.cluster_metadata import ClusterMetadata, Topic
from broker.security.scram import ScramMechanism
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.znodes import MalformedNode, TopicRecord

if TYPE_CHECKING:
    from broker.storage.storage import Storage

logger = logging.getLogger(__name__)

KEPT = 20
"""Backups that are left when a new one is written."""

_VERSION = 1
_MOST_BYTES = 256 << 20
"""Of a backup. One with a million offsets has 50 MB."""
_USER_KEYS = frozenset({*QUOTA_KEYS, *(mechanism.value for mechanism in ScramMechanism)})
_ACL_ROOTS = ("/kafka-acl", "/kafka-acl-extended")
_QUOTA_ROOTS = (znodes.USER_CONFIGS, znodes.CLIENT_CONFIGS, znodes.IP_CONFIGS)
_TREES = (znodes.BROKER_CONFIGS, znodes.GROUP_CONFIGS, *_QUOTA_ROOTS, *_ACL_ROOTS)
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class BackupUnreadable(PykafkaError):
    """Bytes that are no backup."""


class CommittedOffset(NamedTuple):
    """What a group has committed. A leader epoch of -1 is unknown."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


GroupOffsets = Mapping[str, Mapping[TopicPartition, CommittedOffset]]
"""By group."""


@dataclass(frozen=True)
class ClusterBackup:
    cluster_id: str
    controller_epoch: int
    time_ms: int
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Path → data, parents before their children."""
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    offsets: GroupOffsets = field(default_factory=dict)
    last_producer_id: int = -1
    """The last that was given to a broker."""
    generated_broker_ids: int = 0
    """How many there were for `broker.id=-1`."""

    @property
    def content(self) -> tuple[object, ...]:
        """What makes another backup necessary when it changes."""
        return (
            self.cluster_id,
            self.nodes,
            self.leader_epochs,
            self.offsets,
            self.last_producer_id,
            self.generated_broker_ids,
        )

    def topics(self) -> dict[str, TopicRecord]:
        """The topics by name. Raises BackupUnreadable."""
        found = {}
        for path, data in self.nodes.items():
            parent, _, name = path.rpartition("/")
            if parent != znodes.TOPICS:
                continue
            config_path = znodes.topic_config_path(name)
            try:
                config = znodes.decode_config(config_path, self.nodes.get(config_path, "").encode())
                found[name] = TopicRecord.decode(name, data.encode(), config)
            except MalformedNode as error:
                raise BackupUnreadable(f"the backup holds a topic that cannot be read: {error}") from error
        return found

    def encode(self) -> bytes:
        epochs: dict[str, dict[str, int]] = defaultdict(dict)
        for tp, epoch in self.leader_epochs.items():
            epochs[tp.topic][str(tp.partition)] = epoch
        document = {
            "version": _VERSION,
            "cluster_id": self.cluster_id,
            "controller_epoch": self.controller_epoch,
            "time_ms": self.time_ms,
            "last_producer_id": self.last_producer_id,
            "generated_broker_ids": self.generated_broker_ids,
            "nodes": dict(self.nodes),
            "leader_epochs": epochs,
        }
        # Group by group: no other thread runs while one value is encoded, and there may be a million offsets.
        groups = (f"{_json(group)}:{_json(_offsets_to_json(offsets))}" for group, offsets in self.offsets.items())
        return f'{_json(document)[:-1]},"offsets":{{{",".join(groups)}}}}}'.encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterBackup:
        """Raises BackupUnreadable, whatever the bytes are."""
        try:
            document = json.loads(data)
            if document["version"] != _VERSION:
                raise ValueError(f"version {document['version']} of backups is not known")
            return cls(
                _text(document["cluster_id"]),
                _number(document["controller_epoch"]),
                _number(document["time_ms"]),
                {_node_path(path): _text(node) for path, node in document["nodes"].items()},
                {
                    TopicPartition(topic, int(partition)): _number(epoch)
                    for topic, epochs in document["leader_epochs"].items()
                    for partition, epoch in epochs.items()
                },
                {group: _offsets_from_json(offsets) for group, offsets in document["offsets"].items()},
                _number(document["last_producer_id"]),
                _number(document["generated_broker_ids"]),
            )
        except _UNREADABLE as error:
            raise BackupUnreadable(f"this is no backup of a cluster: {error}") from error


class BackupFiles:
    def __init__(self, storage: Storage, cluster_id: str) -> None:
        self._storage = storage
        self._directory = cluster_backups(cluster_id)

    def newest(self) -> tuple[int, ClusterBackup | None]:
        """The highest number there is, 0 for none, and the backup that counts: None without any.

        Those that cannot be read are logged and passed over. Raises BackupUnreadable if all are so.
        """
        numbers = self._numbers()
        found: list[tuple[int, int, ClusterBackup]] = []
        unreadable: BackupUnreadable | None = None
        for number in reversed(numbers):
            try:
                backup = ClusterBackup.decode(self._read(number))
            except FileNotFoundError:
                continue  # an old one, which was deleted meanwhile
            except BackupUnreadable as error:
                logger.error("%s/%s: %s", self._storage.shown, self._path(number), error)
                unreadable = error
                continue
            found.append((backup.controller_epoch, number, backup))
        if unreadable is not None and not found:
            raise unreadable
        best = max(found, key=lambda one: one[:2], default=None)
        return (numbers[-1] if numbers else 0), (best[2] if best else None)

    def _read(self, number: int) -> bytes:
        try:
            return self._storage.read(self._path(number), _MOST_BYTES)
        except PykafkaError as error:  # it is larger than any backup
            raise BackupUnreadable(str(error)) from error

    def create(self, number: int, backup: ClusterBackup) -> None:
        """Write the backup. Raises FileExistsError and changes nothing if there is one of this number."""
        self._storage.create(self._path(number), backup.encode())

    def delete_old(self) -> None:
        for number in self._numbers()[:-KEPT]:
            self._storage.remove(self._path(number))

    def _numbers(self) -> list[int]:
        numbers = map(number_of, self._storage.names(self._directory))
        return sorted(number for number in numbers if number is not None)

    def _path(self, number: int) -> str:
        return f"{self._directory}/{numbered(number)}"


def read_backup(
    zk: MetadataStore, metadata: ClusterMetadata, controller_epoch: int, time_ms: int, offsets: GroupOffsets
) -> ClusterBackup:
    """A backup of what is now. Topics and leader epochs are those of `metadata`, all else is read from the store."""
    producer_ids, sequence = zk.get_many([znodes.PRODUCER_ID_BLOCK, znodes.BROKER_SEQUENCE_ID])
    return ClusterBackup(
        metadata.cluster_id,
        controller_epoch,
        time_ms,
        _read_nodes(zk, metadata.topics),
        {
            TopicPartition(name, index): info.leader_epoch
            for name, topic in metadata.topics.items()
            for index, info in topic.partitions.items()
        },
        offsets,
        znodes.decode_producer_id_block_end(producer_ids[0]) if producer_ids and producer_ids[0] else -1,
        sequence[1].version if sequence else 0,
    )


def _read_nodes(zk: MetadataStore, topics: Mapping[str, Topic]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, topic in topics.items():
        replicas = {index: info.target for index, info in topic.partitions.items()}
        record = TopicRecord(name, topic.topic_id, replicas, topic.config)
        found[znodes.topic_path(name)] = record.encode().decode()
        found[znodes.topic_config_path(name)] = znodes.encode_config(topic.config).decode()
    for root in _TREES:
        found.update(_below(zk, root))
    return found


def _below(zk: MetadataStore, root: str) -> dict[str, str]:
    """The nodes below `root`, without what is secret and what is not Kafka's."""
    found: dict[str, str] = {}
    level = [root]
    while level:
        children = zk.children_many(level)
        level = [f"{parent}/{name}" for parent, names in zip(level, children, strict=True) for name in names]
        for path, node in zip(level, zk.get_many(level), strict=True):
            if node is not None:
                try:
                    found[path] = _shown(path, node[0])
                except (MalformedNode, UnicodeDecodeError):  # its data may be secret
                    logger.error("%s in ZooKeeper is not in the backup: it is not Kafka's JSON", path)
    return found


def _shown(path: str, data: bytes) -> str:
    if path.startswith(_ACL_ROOTS):
        return data.decode()
    config = znodes.decode_config(path, data)
    if path.startswith(znodes.BROKER_CONFIGS):
        kept = {key: value for key, value in config.items() if key in KEYS and not KEYS[key].sensitive}
    else:
        kept = {key: value for key, value in config.items() if key in _USER_KEYS}
    return znodes.encode_config(kept).decode() if data else ""


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _offsets_to_json(offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[str, dict[str, list[object]]]:
    found: dict[str, dict[str, list[object]]] = defaultdict(dict)
    for tp, committed in offsets.items():
        found[tp.topic][str(tp.partition)] = [*committed]
    return found


def _offsets_from_json(document: Mapping[str, Any]) -> dict[TopicPartition, CommittedOffset]:
    found = {}
    for topic, partitions in document.items():
        for partition, (offset, leader_epoch, metadata) in partitions.items():
            committed = CommittedOffset(_number(offset), _number(leader_epoch), _text(metadata))
            found[TopicPartition(topic, int(partition))] = committed
    return found


def _node_path(path: str) -> str:
    """Only what a backup holds, so that a file in the store cannot change other nodes. Raises ValueError."""
    parent, _, _ = path.rpartition("/")
    is_below = any(path.startswith(f"{root}/") for root in _TREES) or parent in (znodes.TOPICS, znodes.TOPIC_CONFIGS)
    if not is_below or {"", ".", ".."} & set(path[1:].split("/")):
        raise ValueError(f"{path!r} is no node of a backup")
    return path


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {type(value).__name__}")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a number, not {type(value).__name__}")
    return value
