"""Moves the metadata of a standalone broker into a ZooKeeper, where its cluster can grow.

A broker does this when it starts with a ZooKeeper over the log directories of a standalone broker. First the file gets
a name under which a standalone broker does not open it, so that it cannot change any more. Then its nodes are copied,
`/cluster/id` last: that makes the ZooKeeper this cluster's. A start after a crash in between copies everything again.
The file is kept under a third name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from broker.clock import Clock
from broker.durable_files import sync_directory
from broker.errors import ConfigError
from broker.zookeeper import znodes
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.metadata_database import parent_of
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import Create, NodeExists, NoNode, Operation, SetData, in_transactions

log = logging.getLogger(__name__)

METADATA_FILE = "standalone.metadata"
"""In the first log directory."""
MOVING_FILE = "standalone.metadata.moving"
_MOVED_FILE = "standalone.metadata.moved"

_NOTIFICATIONS = {znodes.CONFIG_CHANGES, znodes.ISR_CHANGES, znodes.ACL_CHANGES, znodes.EXTENDED_ACL_CHANGES}
"""There is no other broker yet that could read their children."""


def standalone_store(directory: Path, clock: Clock) -> LocalStore:
    """The store of a standalone broker, not yet started. Raises ConfigError when it is being moved into a ZooKeeper."""
    if (directory / MOVING_FILE).exists():
        raise ConfigError(
            f"{directory / MOVING_FILE}: the metadata of this broker is being moved into a ZooKeeper; start the broker "
            "without --standalone (standalone=true) and with the same zookeeper.connect, to finish that"
        )
    return LocalStore(directory / METADATA_FILE, clock)


def move_into_zookeeper(directory: Path, zookeeper: MetadataStore) -> None:
    """Move the metadata of a standalone broker from its file, if there is one.

    Raises ConfigError and moves nothing when the ZooKeeper has a cluster.
    """
    file, moving = directory / METADATA_FILE, directory / MOVING_FILE
    if file.exists():
        with LocalStore(file) as store:
            _check_empty(store, zookeeper)
        rename_metadata(file, moving)
    if moving.exists():
        with LocalStore(moving) as store:
            if _cluster_id(zookeeper) != _cluster_id(store):
                _check_empty(store, zookeeper, resumed=True)
                _copy(store, zookeeper)
        rename_metadata(moving, directory / _MOVED_FILE)
        log.info("moved the metadata of this standalone broker from %s to %s", file, zookeeper)


def _check_empty(store: LocalStore, zookeeper: MetadataStore, *, resumed: bool = False) -> None:
    found = _cluster_id(zookeeper)
    topics = set(zookeeper.children(znodes.TOPICS)) - set(store.children(znodes.TOPICS) if resumed else ())
    brokers = zookeeper.children(znodes.BROKER_IDS)
    if found or topics or brokers:
        holds = f"cluster {found}" if found else f"{len(topics)} topics and {len(brokers)} brokers"
        raise ConfigError(
            f"the metadata of cluster {_cluster_id(store)} is in {store}, and {zookeeper} has {holds} already; start "
            "the broker with --standalone (standalone=true), or set zookeeper.connect to a ZooKeeper, or a chroot, "
            "without a cluster"
        )


def _copy(store: LocalStore, zookeeper: MetadataStore) -> None:
    paths = [node.path for node in store.nodes()]
    found = zip(paths, zookeeper.get_many(paths), strict=True)
    existing = {path: node[1].version for path, node in found if node is not None}
    for chunk in in_transactions(_writes(store, existing)):
        zookeeper.transaction(chunk)
    cluster_id = store.get_many([znodes.CLUSTER_ID])[0]
    if cluster_id is None:
        return  # the broker was killed in its first start
    try:
        zookeeper.create(znodes.CLUSTER_ID, cluster_id[0], parents=True)
    except NodeExists as error:
        if _cluster_id(zookeeper) != _cluster_id(store):
            raise ConfigError(f"another broker has started a cluster in {zookeeper}; choose another chroot") from error


def _writes(store: LocalStore, existing: Mapping[str, int]) -> Iterator[Operation]:
    """Writes every node but `/cluster/id`, and those that end with the broker or with their readers."""
    for node in store.nodes():
        path = node.path
        if node.ephemeral_owner or path == znodes.CLUSTER_ID or parent_of(path) in _NOTIFICATIONS:
            continue
        if path not in existing:
            yield Create(path, node.data)
        if path == znodes.BROKER_SEQUENCE_ID:  # its version is the last broker id that was generated
            yield from [SetData(path, node.data)] * (node.version - existing.get(path, 0))
        elif path in existing and path != "/":
            yield SetData(path, node.data)


def _cluster_id(store: MetadataStore) -> str | None:
    try:
        return znodes.decode_cluster_id(store.get(znodes.CLUSTER_ID)[0])
    except NoNode:
        return None


def rename_metadata(old: Path, new: Path) -> None:
    """Give a metadata file that is closed another name. Raises ConfigError, OSError."""
    if (wal := old.with_name(f"{old.name}-wal")).exists():  # it would not come along
        raise ConfigError(f"{old} could not take the changes in {wal}; make room on the disk and start again")
    old.rename(new)
    sync_directory(new.parent)
