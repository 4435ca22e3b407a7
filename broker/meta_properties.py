"""`meta.properties` in every log directory: the broker and the cluster that its logs belong to.

Written at the first start and checked at every later one (Kafka: BrokerMetadataCheckpoint), so that logs are never
served with another cluster's ZooKeeper or by a broker with another id. A directory without the file beside others that
have one may be the mount point of a disk that is not mounted. It is not used until somebody confirms it (`adopt`).
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from broker.durable_files import write_atomically
from broker.errors import ConfigError
from broker.settings import read_properties_file
from broker.stored_names import number_named

logger = logging.getLogger(__name__)

FILE_NAME = "meta.properties"
_OWNER_KEYS = {"broker.id", "node.id", "cluster.id"}
_ADOPTED = ".pykafka_adopted"
"""Stands in a directory from `adopt` until a broker has started with it."""


def adopt(directory: Path) -> None:
    """Confirm that a log directory is as it should be, for the next start. Makes it if needed. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / _ADOPTED, b"version=0\n")


def adopted(directories: Iterable[Path]) -> list[Path]:
    """The directories that `adopt` has confirmed and no broker has started with since."""
    return [directory for directory in directories if (directory / _ADOPTED).exists()]


def end_adoption(directories: Iterable[Path]) -> None:
    """A broker has started with these directories."""
    for directory in directories:
        try:
            (directory / _ADOPTED).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("cannot delete %s: %s", directory / _ADOPTED, error)


def unconfirmed(directories: Sequence[Path]) -> dict[Path, str]:
    """The directories that must not be used, with the reason: they have no `meta.properties`, others have one, and
    nobody has adopted them.

    Call it before the directories are locked, which makes those that are missing.
    """
    claimed = [directory for directory in directories if os.path.lexists(directory / FILE_NAME)]
    if not claimed:
        return {}
    return {
        directory: f"{directory} {'has no' if directory.exists() else 'does not exist, so it has no'} {FILE_NAME}, and "
        f"{claimed[0]} has one: is its disk mounted? Mount it. If it is new, or what it held is given up, confirm it "
        f"with `pykafka log dirs --adopt {directory}`"
        for directory in directories
        if directory not in claimed and not os.path.lexists(directory / _ADOPTED) and _can_be_read(directory)
    }


def _can_be_read(directory: Path) -> bool:
    """Whether a file that is not found there is really not there. Otherwise the lock fails, and tells why."""
    try:
        status = os.stat(directory)
    except OSError as error:  # such as EIO of a disk that has failed
        return error.errno == errno.ENOENT
    return stat.S_ISDIR(status.st_mode) and os.access(directory, os.R_OK | os.X_OK)


def refuse_foreign(directories: Sequence[Path], own_metadata: Sequence[Path] = ()) -> None:
    """Raise ConfigError for a directory of an Apache Kafka, before anything but the lock is written there.

    `own_metadata` are the places where the metadata of a cluster can be that is known to this broker alone: the data
    directory of the embedded ZooKeeper that will be started, the file of a standalone broker. There is none for an
    external ZooKeeper, whose cluster id `check_meta_properties` compares later.
    """
    for directory in directories:
        stored = _stored(directory)
        if "node.id" in stored and "broker.id" not in stored:
            raise ConfigError(
                f"log.dirs: {directory} belongs to an Apache Kafka in KRaft mode (node.id={stored['node.id']}, cluster "
                f"{stored.get('cluster.id')}), whose topics are not in a ZooKeeper, so pykafka cannot know them; set "
                "log.dirs to another directory, and copy the records with a consumer and a producer"
            )
        if own_metadata and "cluster.id" in stored and not any(path.exists() for path in own_metadata):
            raise ConfigError(
                f"log.dirs: {directory} belongs to cluster {stored['cluster.id']}, whose metadata is not in "
                f"{own_metadata[0]}; set zookeeper.connect to the ZooKeeper of that cluster (without standalone=true), "
                f"or log.dirs to another directory{_of_another_first(directory, own_metadata[0].parent)}"
            )


def _of_another_first(directory: Path, first: Path) -> str:
    """What else may be wrong where the metadata should be in another directory than the logs of the cluster."""
    if directory == first:
        return ""
    return f"; if the disk of {first} is not mounted, mount it: the directory with the metadata comes first in log.dirs"


def stored_broker_id(directories: Sequence[Path]) -> int | None:
    """The first broker id in the directories, None when there is none. `check_meta_properties` compares them all."""
    ids = (stored["broker.id"] for directory in directories if "broker.id" in (stored := _stored(directory)))
    return next((number for number in map(number_named, ids) if number is not None), None)


def _stored(directory: Path) -> dict[str, str]:
    """The file's properties; empty if there is no file or it cannot be read."""
    path = directory / FILE_NAME
    try:
        return read_properties_file(path) if path.exists() else {}
    except (ConfigError, OSError):
        return {}


def check_meta_properties(
    directories: Sequence[Path], broker_id: int, cluster_id: str, *, holds_ours: Callable[[Path], bool]
) -> dict[Path, str]:
    """Write the file into new directories; returns those that cannot be used, with the reason.

    A file that cannot be read, as after a power loss, is written again if `holds_ours` recognizes the directory by its
    partitions. Raises ConfigError when a directory belongs to another broker or cluster.
    """
    unusable = {}
    for directory in directories:
        path = directory / FILE_NAME
        try:
            stored = read_properties_file(path) if path.exists() else {}
            complaint = f"{path} names no broker.id and cluster.id" if path.exists() else ""
        except ConfigError as error:
            stored, complaint = {}, str(error)
        if stored.keys() & _OWNER_KEYS:
            _check(directory, stored, broker_id, cluster_id)
            continue
        try:
            if complaint and not holds_ours(directory):
                unusable[directory] = f"{complaint}, and the cluster has none of the topics in {directory}"
                continue
            if complaint:
                logger.warning("%s; its partitions belong to this cluster, so it is written again", complaint)
            write_atomically(path, f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n".encode())
        except OSError as error:
            unusable[directory] = f"cannot write {path}: {error.strerror}"
    return unusable


def _check(directory: Path, stored: dict[str, str], broker_id: int, cluster_id: str) -> None:
    if stored.get("broker.id") != str(broker_id):
        raise ConfigError(
            f"log.dirs: {directory} belongs to broker {stored.get('broker.id')}, and broker.id={broker_id}; "
            f"set broker.id to {stored.get('broker.id')} or log.dirs to another directory"
        )
    if stored.get("cluster.id") != cluster_id:
        raise ConfigError(
            f"log.dirs: {directory} belongs to cluster {stored.get('cluster.id')}, and the broker's metadata to "
            f"cluster {cluster_id}; set zookeeper.connect to the ZooKeeper of the first, or log.dirs to another "
            "directory"
        )
