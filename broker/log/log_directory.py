"""One data directory: its lock, its mark of a clean stop, its checkpoints and its partitions.

Used by manager.py and cleaner.py. All files have Kafka's names: `.lock`, `.kafka_cleanshutdown`, the recovery-point,
log-start, cleaner and replication checkpoints, and a directory `topic-partition` for each log.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from broker.durable_files import write_atomically
from broker.errors import ConfigError
from broker.log.checkpoints import (
    CLEAN_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
    write_offsets,
)
from broker.log.disk import Disk
from broker.log.log import DELETED_DIRECTORY_SUFFIX
from broker.protocol.topic_partition import TopicPartition

__all__ = ["CLEAN_MARK", "LogDirectory"]

logger = logging.getLogger(__name__)

OffsetsOf = Callable[[], Mapping[TopicPartition, int]]

CLEAN_MARK = ".kafka_cleanshutdown"
_LOCK = ".lock"
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")


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
        """(the partition directories, directories of deleted partitions to remove)."""
        found: dict[TopicPartition, Path] = {}
        deleted = []
        for path in sorted(self.path.iterdir()):
            if not path.is_dir():
                continue
            if path.name.endswith(DELETED_DIRECTORY_SUFFIX):
                deleted.append(path)
                continue
            name = _PARTITION_NAME.fullmatch(path.name)
            if name is None:
                logger.debug("%s is no partition directory; it is ignored", path)
            else:
                found[TopicPartition(name[1], int(name[2]))] = path
        return found, deleted

    def read_checkpoints(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """(recovery points, log start offsets). An unreadable file counts as empty. Raises OSError."""
        return (
            self._read(RECOVERY_POINTS, "after an unclean stop all of its logs are verified"),
            self._read(LOG_START_OFFSETS, "its logs begin with their first segments"),
        )

    def read_clean_offsets(self) -> dict[TopicPartition, int]:
        """The offset up to which each compacted log is clean. Raises OSError."""
        return self._read(CLEAN_OFFSETS, "its compacted logs are compacted again")

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """Raises OSError."""
        return self._read(HIGH_WATERMARKS, "each replica learns its high watermark from the others")

    def _read(self, name: str, otherwise: str) -> dict[TopicPartition, int]:
        try:
            found = read_offsets(self.path / name)
            if found:
                self._written[name] = found
            return found
        except ConfigError as error:
            logger.warning("%s; continuing without it: %s", error, otherwise)
            return {}

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
        """Whether a checkpoint names the partition."""
        return any(tp in offsets for offsets in self._written.values())

    def write_recovery_points(self, offsets: OffsetsOf) -> None:
        """As `write_log_starts`."""
        self._write_changed(RECOVERY_POINTS, offsets)

    def write_log_starts(self, offsets: OffsetsOf) -> None:
        """Write the log start offsets, if they changed since the last time. Raises OSError.

        The periodic checkpoint, DeleteRecords and truncations may write in several threads at once. `offsets` is
        therefore called by one after the other, so that an older result never replaces a newer one.
        """
        self._write_changed(LOG_START_OFFSETS, offsets)

    def write_clean_offsets(self, offsets: OffsetsOf) -> None:
        """As `write_log_starts`."""
        self._write_changed(CLEAN_OFFSETS, offsets)

    def write_high_watermarks(self, offsets: OffsetsOf) -> None:
        """As `write_log_starts`; no file before a partition is replicated."""
        if offsets() or HIGH_WATERMARKS in self._written:
            self._write_changed(HIGH_WATERMARKS, offsets)

    def _write_changed(self, name: str, offsets_of: OffsetsOf) -> None:
        with self._writing:
            self._write(name, {**self._kept.get(name, {}), **offsets_of()})

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
