"""Restores deleted topics into a running cluster for `pykafka log restore`: makes topics that go on with the archives.

The broker checks that an archive belongs to no topic that lives (archived_topics.py). This only finds the archive by
the topic's name, and makes the topic with the settings and the number of partitions that it had.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.archive.cut_offset import CutFinder
from broker.archive.layout import MOST_TOPIC, parse_topic_id
from broker.archive.manifest import Manifest, Truncate
from broker.archive.manifest_store import ManifestStore
from broker.client.admin import Admin, NewTopic
from broker.cluster.cluster_restore import read_deleted
from broker.cluster.deleted_archives import topic_path
from broker.errors import ConfigError
from broker.storage.storage import Storage, TooLarge
from broker.tools.cluster_restoration import clusters_in
from broker.tools.output import counted, print_json, print_lines
from broker.zookeeper.archive_nodes import ARCHIVE_ID_KEY, DeletedTopic
from broker.zookeeper.znodes import MalformedNode, uuid_to_text

_NO_BROKER = -1
_NOT_DELETED = -1
"""As the time of a deletion: the archive has no `deleted.json`."""


class TopicChoice(NamedTuple):
    """What to restore: names (none: all that were deleted), an id, another name, a time in ms."""

    names: Sequence[str]
    topic_id: str | None = None
    as_name: str | None = None
    until_ms: int | None = None


def restore_topics(admin: Admin, storage: Storage, choice: TopicChoice, *, dry_run: bool, as_json: bool) -> None:
    """Make each chosen topic again. Raises ConfigError for a choice that is none, BrokerError."""
    cluster_id = admin.cluster.cluster_id()
    chosen = _chosen(_archived(admin, storage), choice, set(admin.list_topics(internal=True)))
    done: list[NewTopic] = []
    for archived in chosen:
        new = _new_topic(archived, choice.as_name or archived.name)
        admin.create_topics([new], validate_only=True)  # before anything is cut: the archive belongs to no topic
        cuts = [] if choice.until_ms is None else _cuts(storage, str(cluster_id), archived, choice.until_ms)
        if not dry_run:
            for store, manifest, cut in cuts:
                store.commit(manifest, manifest.epoch, _NO_BROKER, Truncate(cut))
            admin.create_topics([new])
        done.append(new)
    if as_json:
        rows = [
            {"topic": one.name, "archiveTopicId": one.configs[ARCHIVE_ID_KEY], "partitions": one.partitions}
            for one in done
        ]
        print_json({"dryRun": dry_run, "restored": rows})
    else:
        verb = "Would restore" if dry_run else "Restored"
        print_lines(f"{verb} topic {one.name} with {counted(one.partitions, 'partition')}." for one in done)


def _archived(admin: Admin, storage: Storage) -> list[DeletedTopic]:
    """All topics that the archive knows, whether they live or not."""
    cluster_id = admin.cluster.cluster_id()
    names = storage.names(str(cluster_id))
    if not names:
        others = clusters_in(storage)
        hint = f"; it has {', '.join(others)}, which --data or --zookeeper restore as a whole" if others else ""
        raise ConfigError(f"the archive {storage.shown} has nothing of this cluster, {cluster_id}{hint}")
    found = []
    for archive_id in (parse_topic_id(name) for name in names):
        if archive_id is None:
            continue
        deleted = read_deleted(storage, str(cluster_id), archive_id)
        if deleted is not None:
            found.append(deleted)
            continue
        path = topic_path(str(cluster_id), archive_id)
        try:
            node = json.loads(storage.read(path, MOST_TOPIC))
            text = json.dumps({**node, "topic_id": uuid_to_text(archive_id), "deleted_ms": _NOT_DELETED})
            found.append(DeletedTopic.decode(path, text.encode()))
        except (FileNotFoundError, ValueError, TypeError, RecursionError, MalformedNode, TooLarge):
            continue  # informative only, and perhaps being written
    return found


def _chosen(archived: Sequence[DeletedTopic], choice: TopicChoice, live: set[str]) -> list[DeletedTopic]:
    if (choice.as_name or choice.topic_id) and len(choice.names) != 1:
        raise ConfigError("--as and --topic-id are for one topic: give one --topic")
    if not choice.names:
        deleted = {one.name: one for one in sorted(archived, key=_deleted_ms) if one.deleted_ms != _NOT_DELETED}
        return [one for name, one in sorted(deleted.items()) if name not in live]
    return [_one(archived, name, choice) for name in choice.names]


def _one(archived: Sequence[DeletedTopic], name: str, choice: TopicChoice) -> DeletedTopic:
    """The topic of this name that was deleted last, or the one of the id."""
    found = [one for one in archived if one.name == name]
    if choice.topic_id is not None:
        found = [one for one in found if uuid_to_text(one.archive_id) == choice.topic_id]
    if not found:
        names = ", ".join(sorted({one.name for one in archived})) or "none"
        raise ConfigError(f"the archive has no topic {name!r}{_with_id(choice)}; it has {names}")
    deleted = [one for one in found if one.deleted_ms != _NOT_DELETED]
    return max(deleted or found, key=_deleted_ms)


def _with_id(choice: TopicChoice) -> str:
    return "" if choice.topic_id is None else f" with the id {choice.topic_id}"


def _deleted_ms(one: DeletedTopic) -> int:
    return one.deleted_ms


def _cuts(
    storage: Storage, cluster_id: str, archived: DeletedTopic, until_ms: int
) -> list[tuple[ManifestStore, Manifest, int]]:
    """The partitions that have records from that time on, and where they have to end."""
    found = []
    for partition in range(archived.partitions):
        store = ManifestStore(storage, cluster_id, archived.archive_id, partition)
        manifest = store.load()
        cut = CutFinder(storage, store.place, manifest).before(until_ms)
        if cut < manifest.end:
            found.append((store, manifest, cut))
    return found


def _new_topic(archived: DeletedTopic, name: str) -> NewTopic:
    config: dict[str, Any] = {**archived.config, ARCHIVE_ID_KEY: uuid_to_text(archived.archive_id)}
    return NewTopic(name, archived.partitions, -1, config)
