"""What lies in an archive: its clusters, their topics, and the objects of each partition, by lists of the store.

For tools that look at an archive without its brokers. All functions block on the store and raise OSError.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from broker.archive.layout import (
    AUX_SUFFIX,
    DELETED_FILE,
    MOST_TOPIC,
    SEGMENT_SUFFIX,
    TOPIC_FILE,
    PartitionPlace,
    begin_of,
    is_object_name,
    parse_topic_id,
    topic_directory,
    topic_id_text,
)
from broker.archive.manifest import Manifest
from broker.storage.storage import Storage, TooLarge
from broker.stored_names import number_named


@dataclass(frozen=True, slots=True)
class TopicContents:
    cluster_id: str
    topic_id: uuid.UUID
    name: str | None
    """As `topic.json` says; None without one that can be read."""
    is_deleted: bool
    """Whether the topic was deleted, and its archive waits for a restore, or for its end."""
    partitions: tuple[int, ...]

    @property
    def shown(self) -> str:
        return self.name or topic_id_text(self.topic_id)

    @property
    def places(self) -> list[PartitionPlace]:
        return [PartitionPlace(self.cluster_id, self.topic_id, partition) for partition in self.partitions]


@dataclass(frozen=True, slots=True)
class Objects:
    """What lies in the directory of a partition beside its manifest."""

    sizes: dict[str, int]
    """File → bytes, of the objects of segments."""
    temporary: tuple[str, ...]
    """Paths of files that interrupted writers left, on a local disk or HDFS."""


def archived_topics(storage: Storage) -> list[TopicContents]:
    """Of all clusters whose archives lie in the storage."""
    found = []
    for cluster_id in storage.names(""):
        for text in storage.names(cluster_id):
            topic_id = parse_topic_id(text)
            if topic_id is not None:
                found.append(_topic(storage, cluster_id, topic_id))
    return found


def _topic(storage: Storage, cluster_id: str, topic_id: uuid.UUID) -> TopicContents:
    directory = topic_directory(cluster_id, topic_id)
    names = storage.names(directory)
    name = _name_in(storage, f"{directory}/{TOPIC_FILE}") if TOPIC_FILE in names else None
    partitions = sorted(number for number in map(number_named, names) if number is not None)
    return TopicContents(cluster_id, topic_id, name, DELETED_FILE in names, tuple(partitions))


def _name_in(storage: Storage, path: str) -> str | None:
    try:
        document: Any = json.loads(storage.read(path, MOST_TOPIC))
        name = document["name"]
    except (ValueError, RecursionError, TypeError, KeyError, TooLarge):
        return None
    return name if isinstance(name, str) else None


def objects_of(storage: Storage, place: PartitionPlace) -> Objects:
    """Those of a partition. Read the manifest after this: then what it does not name was not committed."""
    sizes, temporary = {}, []
    for name, size in storage.sizes(place.directory).items():
        stem, dot, suffix = name.rpartition(".")
        if size is not None and is_object_name(stem) and f".{suffix}" in {SEGMENT_SUFFIX, AUX_SUFFIX}:
            sizes[name] = size
        elif size is not None and dot and _is_temporary(name):
            temporary.append(f"{place.directory}/{name}")
    temporary += [f"{place.manifest}/{name}" for name in storage.names(place.manifest) if _is_temporary(name)]
    return Objects(sizes, tuple(temporary))


def _is_temporary(name: str) -> bool:
    """As `Storage.create` calls a file before it has its name."""
    return name.startswith(".") and name.endswith(".tmp")


def unnamed_since_ms(storage: Storage, place: PartitionPlace, manifest: Manifest, path: str) -> int:
    """Since when, at the latest, the manifest does not name an object. By the clock of the store.

    What lies below its start was named until an entry moved the start; perhaps the last one. Readers still use plans of
    before that. The leader deletes it `archive.delete.delay.ms` later. Raises FileNotFoundError.
    """
    written_ms = storage.modified_ms(path)
    name = path.rpartition("/")[2].partition(".")[0]
    if is_object_name(name) and begin_of(name)[0] < manifest.start:
        return max(written_ms, storage.modified_ms(place.entry(manifest.next_number - 1)))
    return written_ms


def is_named(file: str, names: set[str]) -> bool:
    """Whether an object belongs to a segment of these names."""
    return file.rpartition(".")[0] in names
