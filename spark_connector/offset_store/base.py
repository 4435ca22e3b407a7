"""The contract of offset stores, and `open_store`, the only way to open one.

A store keeps, per group, the NEXT offset to read of every partition. Readers start from it
(`startingOffsets=committed`), the stream reader reports its progress to it, and `load` commits through it. There are
three kinds: `zookeeper` (the paths of Kafka's old consumers), `files` (numbered JSON entries in a directory that fsspec
can reach) and `group` (OffsetCommit, which lag tools read). A commit is atomic: it stores all its partitions or none.

An offset belongs to a topic id (KIP-516): in a topic that was deleted and created again it means nothing. So stores
keep the ids that they are told; of a commit without them no id is known. A group's coordinator deletes the offsets of
a deleted topic itself.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Protocol, cast

from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.stored_json import mapping, partition, topic, whole

# Imported only when chosen: an executor that uses no ZooKeeper store must not need kazoo.
_MODULES = {
    "zookeeper": "spark_connector.offset_store.zookeeper",
    "files": "spark_connector.offset_store.files",
    "group": "spark_connector.offset_store.group",
}
STORE_KINDS = tuple(_MODULES)

Offsets = Mapping[TopicPartition, int]
"""An offset of each partition, usually the next one to read."""

TopicIds = Mapping[str, str]
NO_IDS: TopicIds = {}

_LEGAL_GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")


class OffsetStoreError(PykafkaError):
    """A store cannot be reached, or holds data that no store wrote."""


class OffsetStoreUnavailable(OffsetStoreError):
    """A store cannot be reached at the moment."""

    retriable = True


class OffsetConflict(PykafkaError):
    """Another process committed first: the stored offsets are not the expected ones. Nothing was stored."""


class OffsetStore(Protocol):
    """Keeps the next offsets of groups. Blocking; not shared between threads."""

    def read(self, group: str) -> dict[TopicPartition, int]:
        """The next offset of every partition that the group has committed; empty for a new group."""

    def topic_ids(self, group: str) -> dict[str, str]:
        """The ids that topics had when their offsets were committed, of those where they are known."""

    def commit(
        self, group: str, offsets: Offsets, *, expected: Offsets | None = None, topic_ids: TopicIds = NO_IDS
    ) -> None:
        """Store `offsets` and the ids of their topics atomically; other partitions keep their offsets.

        With `expected`, every partition of `offsets` and `expected` must still have the offset in `expected`, or no
        offset if `expected` does not name it; otherwise raises OffsetConflict. Without it the last writer wins.
        """

    def close(self) -> None:
        """Close connections. The store is not used afterwards."""


def open_store(kind: str, options: Mapping[str, str]) -> OffsetStore:
    """The store named by the option `offsetStore`, built from Spark-style `options` (names in any case).

    `zookeeper` needs `offsetStore.zookeeper.connect`, `files` needs `offsetStore.path`, `group` needs
    `kafka.bootstrap.servers` (and takes every other `kafka.*`). Raises ConfigError for an unknown kind or a
    missing option.
    """
    module = _MODULES.get(kind.strip().lower())
    if module is None:
        raise ConfigError(f"offsetStore must be one of {', '.join(STORE_KINDS)}, not '{kind}'")
    return cast("OffsetStore", importlib.import_module(module).open_from_options(options))


def required_option(options: Mapping[str, str], name: str, why: str) -> str:
    """The value of an option, its name in any case; ConfigError when it is missing or blank."""
    for key, value in options.items():
        if key.lower() == name.lower() and value.strip():
            return value.strip()
    raise ConfigError(f"option '{name}' must be set: {why}")


def check_group(group: str) -> str:
    """Return `group` if it can be a path element in ZooKeeper and on a file system; else ConfigError."""
    if not _LEGAL_GROUP.fullmatch(group) or group in {".", ".."}:
        raise ConfigError(f"group '{group}' cannot be used here: only letters, digits, '.', '_' and '-' (at most 200)")
    return group


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """`{topic: {partition: offset}}`, in the order of the partitions."""
    document: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        document.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return document


def offsets_from_json(document: object) -> dict[TopicPartition, int]:
    """Parse what `offsets_to_json` made. Raises ValueError for anything else."""
    return {
        TopicPartition(topic(name), partition(index)): whole(offset, "offset")
        for name, found in mapping(document, "offsets").items()
        for index, offset in mapping(found, "offsets").items()
    }


def check_expected(group: str, stored: Offsets, expected: Offsets, offsets: Offsets) -> None:
    """Raise OffsetConflict unless `stored` equals `expected` for every partition of `expected` and `offsets`."""
    for tp in sorted({*expected, *offsets}):
        if stored.get(tp) != expected.get(tp):
            raise OffsetConflict(
                f"group '{group}', {tp.topic}-{tp.partition}: stored offset is {stored.get(tp, 'none')}, "
                f"expected {expected.get(tp, 'none')}; another load or query of this group committed first"
            )
