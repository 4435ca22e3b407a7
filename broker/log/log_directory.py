"""One data directory: its lock, its mark of a clean stop, its checkpoints and its partitions.

Used by manager.py and cleaner.py. All files have Kafka's names: `.lock`, `.kafka_cleanshutdown`, the recovery-point,
log-start, cleaner and replication checkpoints, and a directory `topic-partition` for each log.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.durable_files import write_atomically
from broker.errors import ConfigError
from broker.log.checkpoints import (
    CLEAN_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_offsets,
    read_topic_id,
    write_offsets,
)
from broker.log.disk import Disk
from broker.log.log import DELETED_DIRECTORY_SUFFIX
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

OffsetsOf = Callable[[], Mapping[TopicPartition, int]]

CLEAN_MARK = ".kafka_cleanshutdown"
STRAY_SUFFIX: Final = "-stray"
"""Of a log that is kept and belongs to no partition, as in Kafka."""
_WITHOUT = {
    RECOVERY_POINTS: "after an unclean stop all of its logs are verified",
    LOG_START_OFFSETS: "its logs begin with their first segments",
    CLEAN_OFFSETS: "its compacted logs are compacted again",
    HIGH_WATERMARKS: "each replica learns its high watermark from the others",
}
"""Checkpoint → what follows if it cannot be read."""
_LOCK = ".lock"
_NO_TOPIC_ID = uuid.UUID(int=0)
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")


def partition_name(path: Path) -> TopicPartition | None:
    """The partition whose directory has this name; None for any other, as for those that are deleted or moved."""
    name = _PARTITION_NAME.fullmatch(path.name)
    return None if name is None else TopicPartition(name[1], int(name[2]))


def refuse_same(directories: Sequence[Path]) -> None:
    """Raise ConfigError when two of them are one directory, also by a link or a mount (Kafka: `LogManager`)."""
    found: dict[object, Path] = {}
    for path in directories:
        key: object = os.path.realpath(path)
        with contextlib.suppress(OSError):
            status = os.stat(os.path.realpath(path))
            key = status.st_dev, status.st_ino
        if key in found:
            both = f"{path} twice" if found[key] == path else f"{found[key]} and {path}, which are one directory"
            raise ConfigError(f"log.dirs names {both}; name it once")
        found[key] = path


class EarlierLogs(NamedTuple):
    """The directories of logs of earlier topics, whose names other topics have now."""

    deleted: list[Path]
    """Those whose topics were deleted."""
    strays: list[Path]
    """Those of which nobody knows why they are there."""


def take_out_earlier(
    directories: Sequence[dict[TopicPartition, Path]],
    topic_ids: Mapping[str, uuid.UUID],
    deleted: Collection[uuid.UUID],
) -> EarlierLogs:
    """Take the logs of earlier topics out of the partitions of the directories.

    `topic_ids` are those of the cluster, `deleted` the ids of deleted topics. Raises ConfigError when a partition is in
    two directories: one copy is older or shorter, and only a person can tell which one to serve (Kafka:
    `LogManager.loadLog`).
    """
    ids = {path: _topic_id(path) for partitions in directories for path in partitions.values()}

    def earlier(tp: TopicPartition, path: Path) -> bool:
        current = topic_ids.get(tp.topic, _NO_TOPIC_ID)
        return current != _NO_TOPIC_ID and ids[path] not in (None, current)

    def taken(is_out: Callable[[TopicPartition, Path], bool]) -> list[Path]:
        return [
            partitions.pop(tp)
            for partitions in directories
            for tp, path in list(partitions.items())
            if is_out(tp, path)
        ]

    of_deleted = taken(lambda tp, path: earlier(tp, path) and ids[path] in deleted)
    _refuse_copies(directories, topic_ids, ids)
    return EarlierLogs(of_deleted, taken(earlier))


def _refuse_copies(
    directories: Sequence[dict[TopicPartition, Path]],
    topic_ids: Mapping[str, uuid.UUID],
    ids: Mapping[Path, uuid.UUID | None],
) -> None:
    places: dict[TopicPartition, list[Path]] = {}
    for tp, path in (item for partitions in directories for item in partitions.items()):
        places.setdefault(tp, []).append(path)
    copies = []
    for tp, paths in places.items():
        current = [path for path in paths if ids[path] == topic_ids.get(tp.topic)]
        if len(paths) > 1 and (len(current) != 1 or None in (ids[path] for path in paths)):
            copies.append(" and ".join(f"{path} ({_bytes_in(path):,} bytes)" for path in paths))
    if copies:
        more = f", and {len(copies) - 1} more partitions are in two directories" if len(copies) > 1 else ""
        raise ConfigError(
            f"log.dirs: the same partition is in {copies[0]}{more}. `pykafka log dump` shows what each copy holds. "
            "Move the ones that you do not want out of log.dirs, and start the broker again"
        )


def set_aside(path: Path, suffix: str) -> Path:
    """Rename a partition's directory, so that its name is free and no partition's; returns it. Raises OSError."""
    return path.rename(path.with_name(f"{path.name[:200]}.{uuid.uuid4().hex}{suffix}"))


def _has_segment(path: Path) -> bool:
    """True for a directory that cannot be read: its log cannot be opened, and that tells why."""
    try:
        return any(name.endswith(".log") for name in os.listdir(path))
    except OSError:
        return True


def _topic_id(path: Path) -> uuid.UUID | None:
    """None, too, for one that cannot be read: its log cannot be opened, and that tells why."""
    try:
        return read_topic_id(path / PARTITION_METADATA)
    except (ConfigError, OSError):
        return None


def _bytes_in(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.log"))


class LogDirectory:
    """A directory that this process owns from `lock` to `unlock`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure = ""
        """Why the directory is offline; empty while it is online."""
        self.disk = Disk(path)
        self._lock_fd = -1
        self._kept: dict[str, dict[TopicPartition, int]] = {RECOVERY_POINTS: {}, LOG_START_OFFSETS: {}}
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._writing = threading.Lock()

    def lock(self) -> None:
        """Create the directory if needed and lock it; idempotent. Raises OSError, or ConfigError if it is in use."""
        if self._lock_fd >= 0 or self.failure:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.unlock()
            raise ConfigError(
                f"log.dirs: {self.path} is in use by another broker; stop it, or name another directory"
            ) from error

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __del__(self) -> None:
        self.unlock()

    def take_clean_mark(self) -> bool:
        """Whether the last owner stopped cleanly. Removes the mark, so that a crash does not look like a clean stop."""
        mark = self.path / CLEAN_MARK
        clean = mark.exists()
        mark.unlink(missing_ok=True)
        return clean

    def write_clean_mark(self) -> None:
        write_atomically(self.path / CLEAN_MARK, b'{"version":0}')

    def partitions(self) -> tuple[dict[TopicPartition, Path], list[Path]]:
        """(the partition directories, directories of deleted partitions to remove). Raises OSError.

        A directory without a segment is no log: a crash kept it from becoming one, or somebody has emptied it.
        """
        found: dict[TopicPartition, Path] = {}
        deleted = []
        for path in sorted(self.path.iterdir()):
            if not path.is_dir():
                continue
            if path.name.endswith(DELETED_DIRECTORY_SUFFIX):
                deleted.append(path)
                continue
            tp = partition_name(path)
            if tp is None:
                logger.debug("%s is no partition directory; it is ignored", path)
            elif not _has_segment(path):
                logger.info("%s holds no segment (*.log); it is ignored", path)
            else:
                found[tp] = path
        return found, deleted

    def read(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint; empty if the file cannot be parsed. Raises OSError."""
        try:
            found = read_offsets(self.path / name)
        except ConfigError as error:
            logger.warning("%s; continuing without it: %s", error, _WITHOUT[name])
            return {}
        if found:
            self._written[name] = found
        return found

    def keep(self, tp: TopicPartition, recovery_point: int, log_start: int | None) -> None:
        """Keep the checkpointed offsets of a partition that cannot be opened."""
        self._kept[RECOVERY_POINTS][tp] = recovery_point
        if log_start is not None:
            self._kept[LOG_START_OFFSETS][tp] = log_start

    @property
    def is_whole(self) -> bool:
        """Whether every partition was opened, so that a clean mark is true for all."""
        return not self._kept[RECOVERY_POINTS]

    def is_in_checkpoint(self, tp: TopicPartition) -> bool:
        return any(tp in offsets for offsets in self._written.values())

    def add_recovery_points(self, new: Sequence[TopicPartition]) -> None:
        """Add new logs to the recovery points, without asking for those of all others. Raises OSError."""
        if new:
            with self._writing:
                self._write(RECOVERY_POINTS, {**dict.fromkeys(new, 0), **self._written.get(RECOVERY_POINTS, {})})

    def write(self, name: str, offsets_of: OffsetsOf) -> None:
        """Write a checkpoint, if it changed since the last time. Raises OSError.

        The periodic checkpoint, DeleteRecords and truncations may write in several threads at once. `offsets_of` is
        therefore called by one after the other, so that an older result never replaces a newer one.
        """
        with self._writing:
            offsets = {**self._kept.get(name, {}), **offsets_of()}
            # There are no high watermarks before a partition is replicated.
            if offsets or name != HIGH_WATERMARKS or name in self._written:
                self._write(name, offsets)

    def _write(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        if self._written.get(name) != offsets:
            write_offsets(self.path / name, offsets)
            self._written[name] = offsets

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """Lower every checkpoint of a log that will be cut at `offset`. Raises OSError.

        Otherwise, after a crash, records that are appended there later would count as flushed, compacted or committed.
        """
        with self._writing:
            for name, offsets in list(self._written.items()):
                if offsets.get(tp, 0) > offset:
                    self._write(name, {**offsets, tp: offset})
