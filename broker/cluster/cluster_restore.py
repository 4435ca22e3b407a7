"""Writes the metadata of a lost cluster into an empty store, from the backup in its archive.

`pykafka log restore` calls it before the first broker starts. The cluster keeps its id, and the topics theirs, so the
archive's objects stay where they are. Each partition gets a state without a leader that says that it was restored: the
controller elects the first broker that comes, in a leader epoch above all that the archive knows, and its log begins
where the archive ends. What was not archived is lost; offsets of groups above it are set to the archive's end (A6).

`/cluster/id` is written last. Before that brokers refuse the store, and an interrupted restore begins again. The
controllers go on counting from the backup's epoch, or the backups of the restored cluster would be the earlier ones.
All functions block.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.archive.layout import MOST_TOPIC, parse_topic_id
from broker.archive.manifest import BrokenManifest
from broker.archive.manifest_store import ManifestStore
from broker.cluster.cluster_backup import ClusterBackup, CommittedOffset
from broker.cluster.deleted_archives import deleted_path
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_LEADER
from broker.zookeeper import znodes
from broker.zookeeper.acl_store import AclStore
from broker.zookeeper.archive_nodes import (
    DELETED_ARCHIVES,
    RESTORED_OFFSETS,
    RESTORING,
    DeletedTopic,
    archive_id_of,
    deletion_path,
    owned_archive,
    restored_offset_nodes,
)
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import Create, Delete, Operation, SetData, in_transactions
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import PartitionState, TopicRecord

if TYPE_CHECKING:
    from broker.storage.storage import Storage

PRODUCER_IDS_SKIPPED = 1_000_000
"""Ids that brokers may have taken after the backup, and that no producer gets again."""

_WRITTEN = (znodes.TOPICS, "/config", "/kafka-acl", "/kafka-acl-extended", DELETED_ARCHIVES, RESTORED_OFFSETS)
_READ_AT_ONCE = 8


class ArchiveEnd(NamedTuple):
    start: int
    end: int
    epoch: int


class MovedOffset(NamedTuple):
    """A committed offset above the end of what was restored. `to` is None where there is no such partition."""

    group: str
    tp: TopicPartition
    committed: int
    to: int | None


@dataclass(frozen=True)
class RestoredCluster:
    backup: ClusterBackup
    topics: Mapping[str, TopicRecord]
    ends: Mapping[TopicPartition, ArchiveEnd]
    """Of all partitions with an archive that can be read."""
    unreadable: Mapping[TopicPartition, str]
    """The other ones → why. Their leader takes no records until the archive is mended: it would tear it."""
    offsets: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
    moved: tuple[MovedOffset, ...]
    deleted: tuple[DeletedTopic, ...]

    @property
    def brokers(self) -> list[int]:
        """The ids of the brokers that have replicas. Under other ids, brokers would have no part in them."""
        assignments = (replicas for topic in self.topics.values() for replicas in topic.assignment.values())
        return sorted({broker for replicas in assignments for broker in replicas})

    @property
    def without_archive(self) -> list[str]:
        """The topics that begin empty. The offsets of groups are in the backup, so theirs does not."""
        without = {name for name, one in self.topics.items() if archive_id_of(one.topic_id, one.config) is None}
        return sorted(without - {GROUP_OFFSETS_TOPIC})


def plan_restore(storage: Storage, backup: ClusterBackup) -> RestoredCluster:
    """Read what the archive has. Raises BackupUnreadable, OSError."""
    topics = backup.topics()
    places = {
        tp: archive_id
        for record in topics.values()
        if (archive_id := archive_id_of(record.topic_id, record.config)) is not None
        for tp in record.partitions()
    }

    unreadable: dict[TopicPartition, str] = {}

    def end(tp: TopicPartition) -> ArchiveEnd | None:
        try:
            manifest = ManifestStore(storage, backup.cluster_id, places[tp], tp.partition).load()
        except BrokenManifest as error:
            unreadable[tp] = str(error)
            return None
        return ArchiveEnd(manifest.start, manifest.end, manifest.epoch)

    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        found = zip(places, pool.map(end, places), strict=True)
        ends = {tp: one for tp, one in found if one is not None}
    offsets, moved = _within(backup, topics, ends, unreadable)
    live = {owned_archive(record.topic_id, record.config) for record in topics.values()}
    live |= {record.topic_id for record in topics.values()}
    return RestoredCluster(
        backup, topics, ends, unreadable, offsets, tuple(moved), tuple(_deleted(storage, backup, live))
    )


def restore_into(store: MetadataStore, found: RestoredCluster, partition_of: Callable[[str, int], int]) -> None:
    """Write the cluster into a store that has none. `partition_of(group, partitions)`: where a group's offsets are.

    Raises ConfigError, and writes nothing, if the store has a cluster, or topics that no restore has left.
    """
    _begin(store, found.backup)
    registry = Registry(store)
    registry.ensure_paths()
    AclStore(store).ensure_paths()
    store.ensure_path(DELETED_ARCHIVES)
    store.ensure_path(RESTORED_OFFSETS)
    nodes = list(_nodes(found, partition_of))
    present = {path for (path, _), node in zip(nodes, store.get_many([path for path, _ in nodes]), strict=True) if node}
    writes: list[Operation] = [SetData(path, data) if path in present else Create(path, data) for path, data in nodes]
    writes += [SetData(znodes.BROKER_SEQUENCE_ID, b"")] * found.backup.generated_broker_ids
    for chunk in in_transactions(writes):
        store.transaction(chunk)
    cluster_id = znodes.encode_cluster_id(found.backup.cluster_id)
    store.transaction([Create(znodes.CLUSTER_ID, cluster_id), Delete(RESTORING)])


def _begin(store: MetadataStore, backup: ClusterBackup) -> None:
    """Check that the store is empty, and remove what an interrupted restore has left there."""
    restoring = store.exists(RESTORING) is not None
    brokers = store.children(znodes.BROKER_IDS)
    if store.exists(znodes.CLUSTER_ID) is not None:
        raise ConfigError(f"{store} has cluster {_cluster_id(store)}; restore {backup.cluster_id} into an empty one")
    topics = [] if restoring else store.children(znodes.TOPICS)
    if brokers or topics:
        raise ConfigError(
            f"{store} has {len(topics)} topics and {len(brokers)} brokers; restore {backup.cluster_id} into one without"
        )
    if restoring:
        for root in _WRITTEN:
            _delete_below(store, root)
    else:
        store.create(RESTORING, parents=True)


def _cluster_id(store: MetadataStore) -> str:
    return znodes.decode_cluster_id(store.get(znodes.CLUSTER_ID)[0])


def _delete_below(store: MetadataStore, root: str) -> None:
    paths, level = list[str](), [root]
    while level:
        children = store.children_many(level)
        level = [f"{parent}/{name}" for parent, names in zip(level, children, strict=True) for name in names]
        paths += level
    for chunk in in_transactions(Delete(path) for path in reversed(paths)):
        store.transaction(chunk)


def _nodes(found: RestoredCluster, partition_of: Callable[[str, int], int]) -> Iterator[tuple[str, bytes]]:
    """Path and data of each node but `/cluster/id`, parents first."""
    backup = found.backup
    for path, text in backup.nodes.items():
        yield path, text.encode()
    for name, record in found.topics.items():
        yield znodes.partitions_path(name), b""
        for tp in record.partitions():
            yield znodes.partition_path(tp), b""
            yield znodes.state_path(tp), _state(found, tp).encode()
    for deleted in found.deleted:
        yield deletion_path(deleted.archive_id), deleted.encode()
    first = backup.last_producer_id + 1
    yield znodes.CONTROLLER_EPOCH, str(backup.controller_epoch).encode()
    yield znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(-1, first, first + PRODUCER_IDS_SKIPPED)
    if GROUP_OFFSETS_TOPIC in found.topics:
        partitions = len(found.topics[GROUP_OFFSETS_TOPIC].assignment)
        by_partition: dict[int, dict[str, list[list[Any]]]] = defaultdict(dict)
        for group, offsets in found.offsets.items():
            rows = [[*tp, *committed] for tp, committed in offsets.items()]
            by_partition[partition_of(group, partitions)][group] = rows
        for partition, groups in by_partition.items():
            yield from restored_offset_nodes(partition, groups)


def _state(found: RestoredCluster, tp: TopicPartition) -> PartitionState:
    """The next leader's epoch is one above this."""
    archived = found.ends[tp].epoch if tp in found.ends else -1
    epoch = max(archived, found.backup.leader_epochs.get(tp, 0))
    return PartitionState(NO_LEADER, epoch, (), controller_epoch=found.backup.controller_epoch, is_restored=True)


def _within(
    backup: ClusterBackup,
    topics: Mapping[str, TopicRecord],
    ends: Mapping[TopicPartition, ArchiveEnd],
    unreadable: Collection[TopicPartition],
) -> tuple[dict[str, dict[TopicPartition, CommittedOffset]], list[MovedOffset]]:
    """The offsets of groups, none above the end of its partition, and those that were."""
    found: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    moved: list[MovedOffset] = []
    for group, offsets in backup.offsets.items():
        for tp, committed in offsets.items():
            if tp.topic not in topics or tp.partition not in topics[tp.topic].assignment:
                moved.append(MovedOffset(group, tp, committed.offset, None))
                continue
            end = ends[tp].end if tp in ends else 0
            if committed.offset > end and tp not in unreadable:
                moved.append(MovedOffset(group, tp, committed.offset, end))
                committed = committed._replace(offset=end, leader_epoch=-1)
            found.setdefault(group, {})[tp] = committed
    return found, moved


def _deleted(storage: Storage, backup: ClusterBackup, live: set[uuid.UUID]) -> Iterator[DeletedTopic]:
    for name in storage.names(backup.cluster_id):
        archive_id = parse_topic_id(name)
        if archive_id is not None and archive_id not in live:
            deleted = read_deleted(storage, backup.cluster_id, archive_id)
            if deleted is not None:
                yield deleted


def read_deleted(storage: Storage, cluster_id: str, archive_id: uuid.UUID) -> DeletedTopic | None:
    """`deleted.json` of an archive; None if its topic was not deleted. Raises PykafkaError for what is none."""
    path = deleted_path(cluster_id, archive_id)
    try:
        found = DeletedTopic.decode(path, storage.read(path, MOST_TOPIC))
    except FileNotFoundError:
        return None
    if found.archive_id != archive_id:
        raise PykafkaError(f"{path} is of another topic")
    return found
