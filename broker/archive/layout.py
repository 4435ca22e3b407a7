"""Where the archive keeps what: paths relative to its root, with `/` between the parts.

    <cluster id>/archive.json                              that it is the cluster's archive: see archive_marker.py
    <cluster id>/cluster/<n>.json                          backups of the cluster: topics, users, ACLs, quotas, offsets
    <cluster id>/<topic id>/topic.json, deleted.json       name, partitions, settings (informative); when it was deleted
    <cluster id>/<topic id>/<p>/<base>-<epoch>-<hex>.log   a segment as it is on disk, and beside it its `.aux`
    <cluster id>/<topic id>/<p>/manifest/<n>.json          the numbered entries that say which segments count

A topic id is written as Kafka writes it, so a topic that is created again never meets the objects of the old one. Pure.
"""

from __future__ import annotations

import base64
import re
import secrets
import uuid
from dataclasses import dataclass

SEGMENT_SUFFIX = ".log"
AUX_SUFFIX = ".aux"
CLUSTER_DIRECTORY = "cluster"
MARKER_FILE = "archive.json"
TOPIC_FILE = "topic.json"
MOST_TOPIC = 16 << 20
"""Bytes of `topic.json` and of `deleted.json`: a topic of 100,000 partitions has a tenth of that."""
DELETED_FILE = "deleted.json"
MANIFEST_DIRECTORY = "manifest"

_NUMBERED = re.compile(r"([0-9]{20})\.json", re.ASCII)
_OBJECT = re.compile(r"[0-9]{20}-[0-9]{10}-[0-9a-f]{8}", re.ASCII)
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)


def topic_id_text(topic_id: uuid.UUID) -> str:
    """The 22 characters in which Kafka writes a topic id."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> uuid.UUID | None:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "==")) if _TOPIC_ID.fullmatch(text) else None


def cluster_backups(cluster_id: str) -> str:
    """The directory of the cluster's numbered backups."""
    return f"{cluster_id}/{CLUSTER_DIRECTORY}"


def marker(cluster_id: str) -> str:
    """The object that every archive has: see archive_marker.py."""
    return f"{cluster_id}/{MARKER_FILE}"


def topic_directory(cluster_id: str, topic_id: uuid.UUID) -> str:
    return f"{cluster_id}/{topic_id_text(topic_id)}"


def numbered(number: int) -> str:
    """`00000000000000000042.json`, the name of a manifest's entry or of a backup of the cluster."""
    return f"{number:020}.json"


def number_of(name: str) -> int | None:
    """The number in a name that `numbered` gave; None for any other name."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else None


def new_object_name(base_offset: int, epoch: int) -> str:
    """A name for the two objects of a segment, without suffix. No other copy, of whichever leader, has it."""
    return f"{base_offset:020}-{epoch:010}-{secrets.token_hex(4)}"


def is_object_name(name: str) -> bool:
    """Whether `new_object_name` may have given this name, which has no suffix."""
    return _OBJECT.fullmatch(name) is not None


def begin_of(name: str) -> tuple[int, int]:
    """(base offset, leader epoch of the writer) in a name that `new_object_name` gave."""
    base, epoch, _ = name.split("-")
    return int(base), int(epoch)


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    cluster_id: str
    topic_id: uuid.UUID
    partition: int

    @property
    def directory(self) -> str:
        return f"{topic_directory(self.cluster_id, self.topic_id)}/{self.partition}"

    @property
    def manifest(self) -> str:
        return f"{self.directory}/{MANIFEST_DIRECTORY}"

    def entry(self, number: int) -> str:
        return f"{self.manifest}/{numbered(number)}"

    def segment(self, name: str) -> str:
        """The object with the record batches of the segment that the manifest calls `name`."""
        return f"{self.directory}/{name}{SEGMENT_SUFFIX}"

    def aux(self, name: str) -> str:
        """The object with its indexes and its producers' state; see aux_file.py."""
        return f"{self.directory}/{name}{AUX_SUFFIX}"
