"""Restores a whole lost cluster for `pykafka log restore`: from its newest backup, for the first broker to find.

Into a data directory it writes the metadata file of a standalone broker, under another name until it is whole. A broker
with a ZooKeeper moves that file's cluster into it when it starts (metadata_move.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from broker.archive.layout import cluster_backups
from broker.cluster.cluster_backup import BackupFiles, ClusterBackup
from broker.cluster.cluster_restore import RestoredCluster, plan_restore, restore_into
from broker.coordinator.sharded_coordinator import partition_for
from broker.errors import ConfigError
from broker.storage.storage import Storage
from broker.tools.output import as_time, counted, print_json, print_lines, print_view
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.metadata_move import METADATA_FILE, rename_metadata

_UNFINISHED = f"{METADATA_FILE}.restoring"


def restore_data(storage: Storage, cluster_id: str | None, directory: Path, *, dry_run: bool, as_json: bool) -> None:
    """Into an empty directory, or one that an interrupted restore has left. Raises ConfigError for any other."""
    names = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if others := [name for name in names if not name.startswith(_UNFINISHED) and name != "lost+found"]:
        raise ConfigError(f"--data {directory} is not empty, it has {', '.join(others[:3])}; give an empty directory")
    found = _planned(storage, cluster_id)
    if not dry_run:
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name.startswith(_UNFINISHED):
                (directory / name).unlink()
        with LocalStore(directory / _UNFINISHED) as store:
            restore_into(store, found, partition_for)
        rename_metadata(directory / _UNFINISHED, directory / METADATA_FILE)
    _report(found, str(directory), dry_run=dry_run, as_json=as_json)


def restore_zookeeper(storage: Storage, cluster_id: str | None, connect: str, *, dry_run: bool, as_json: bool) -> None:
    """Into an empty ZooKeeper, or one that an interrupted restore has left. Raises ConfigError for any other."""
    found = _planned(storage, cluster_id)
    if not dry_run:
        with ZooKeeper(connect) as store:
            restore_into(store, found, partition_for)
    _report(found, connect, dry_run=dry_run, as_json=as_json)


def clusters_in(storage: Storage) -> list[str]:
    """The ids of the clusters that have backups in the archive."""
    return [name for name in storage.names("") if storage.names(cluster_backups(name))]


def _planned(storage: Storage, cluster_id: str | None) -> RestoredCluster:
    return plan_restore(storage, _newest(storage, cluster_id))


def _newest(storage: Storage, cluster_id: str | None) -> ClusterBackup:
    known = clusters_in(storage)
    if cluster_id is None and len(known) == 1:
        cluster_id = known[0]
    if cluster_id not in known:
        has = f"it has {', '.join(known)}" if known else "it has no backup of any"
        which = "give --cluster-id" if cluster_id is None else f"there is no cluster {cluster_id}"
        raise ConfigError(f"the archive {storage.shown}: {which}; {has}")
    newest = BackupFiles(storage, cluster_id).newest()[1]
    assert newest is not None
    if newest.cluster_id != cluster_id:
        raise ConfigError(f"the archive {storage.shown}: the backup of {cluster_id} is of {newest.cluster_id}")
    return newest


def _report(found: RestoredCluster, where: str, *, dry_run: bool, as_json: bool) -> None:
    document = _document(found, where, dry_run=dry_run)
    if as_json:
        print_json(document)
        return
    archived = len({tp.topic for tp in (*found.ends, *found.unreadable)})
    verb = "Would restore" if dry_run else "Restored"
    text = (
        f"{verb} cluster {found.backup.cluster_id} into {where}, as it was at {as_time(found.backup.time_ms)} UTC: "
        f"{counted(len(found.topics), 'topic')}, {archived} of them with an archive, and the offsets of "
        f"{counted(len(found.offsets), 'group')}."
    )
    ids = ", ".join(map(str, found.brokers))
    print_lines([text, f"Start its brokers with the ids that they had (broker.id): {ids or 'any'}."])
    if found.without_archive:
        print_lines([f"These topics have no archive and begin empty: {', '.join(found.without_archive)}"])
    if found.unreadable:
        typer.echo("The archives of these partitions cannot be read, and they take no records until they can be:")
        print_view(document["unreadable"], "topic, partition, problem")
    if found.moved:
        typer.echo("These groups had read on behind the end of the archive; they are set to its end:")
        print_view(document["movedOffsets"], "group, topic, partition, committed, set to=setTo")
    if found.deleted:
        names = ", ".join(sorted(one.name for one in found.deleted))
        print_lines([f"Deleted topics whose archives are left: {names}"])


def _document(found: RestoredCluster, where: str, *, dry_run: bool) -> dict[str, Any]:
    return {
        "clusterId": found.backup.cluster_id,
        "into": where,
        "dryRun": dry_run,
        "backupTime": found.backup.time_ms,
        "brokers": found.brokers,
        "topics": sorted(found.topics),
        "withoutArchive": found.without_archive,
        "partitions": [{**tp._asdict(), "start": one.start, "end": one.end} for tp, one in sorted(found.ends.items())],
        "unreadable": [{**tp._asdict(), "problem": why} for tp, why in sorted(found.unreadable.items())],
        "movedOffsets": [
            {"group": one.group, **one.tp._asdict(), "committed": one.committed, "setTo": one.to} for one in found.moved
        ],
        "deletedTopics": sorted(one.name for one in found.deleted),
    }
