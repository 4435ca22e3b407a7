"""One data directory: its lock, its mark of a clean stop, its checkpoints and the partitions in it.

Used by manager.py and its parts. Files, all with Kafka's names: `.lock`, `.kafka_cleanshutdown`, the recovery-point,
log-start and cleaner checkpoints, and a directory `topic-partition` per log.
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

CLEAN_MARK = ".kafka_cleanshutdown"
_LOCK = ".lock"
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")


class LogDirectory:
    """A directory this process owns from `lock` to `unlock`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure = ""
        """Why it is offline; empty while it is not."""
        self.disk = Disk(path)
        self._lock_fd = -1
        self._kept: dict[str, dict[TopicPartition, int]] = {RECOVERY_POINTS: {}, LOG_START_OFFSETS: {}}
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._writing = threading.Lock()

    def lock(self) -> None:
        """Create the directory if need be and take it; idempotent. Raises OSError, ConfigError when another has it."""
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
        """Let others take the directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __del__(self) -> None:
        self.unlock()

    def take_clean_mark(self) -> bool:
        """Whether the last owner stopped cleanly; the mark is gone then, so that a crash counts as one."""
        mark = self.path / CLEAN_MARK
        clean = mark.exists()
        mark.unlink(missing_ok=True)
        return clean

    def write_clean_mark(self) -> None:
        write_atomically(self.path / CLEAN_MARK, b'{"version":0}')

    def partitions(self) -> tuple[dict[TopicPartition, Path], list[Path]]:
        """The partition directories, and those of deleted partitions that wait to be removed."""
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
                logger.debug("%s is no partition directory and is left alone", path)
            else:
                found[TopicPartition(name[1], int(name[2]))] = path
        return found, deleted

    def read_checkpoints(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """(recovery points, log start offsets). Of a file that cannot be read nothing is known. Raises OSError."""
        return (
            self._read(RECOVERY_POINTS, "after an unclean stop all of its logs are verified"),
            self._read(LOG_START_OFFSETS, "its logs begin with their first segments"),
        )

    def read_clean_offsets(self) -> dict[TopicPartition, int]:
        """Up to where each compacted log is clean. Raises OSError."""
        return self._read(CLEAN_OFFSETS, "its compacted logs are compacted anew")

    def _read(self, name: str, otherwise: str) -> dict[TopicPartition, int]:
        """Idea: Kafka's `LogManager.loadLogs`, which goes on without, too."""
        try:
            return read_offsets(self.path / name)
        except ConfigError as error:
            logger.warning("%s; going on without: %s", error, otherwise)
            return {}

    def keep(self, tp: TopicPartition, recovery_point: int, log_start: int | None) -> None:
        """What the checkpoints say of a partition that cannot be opened stays in them."""
        self._kept[RECOVERY_POINTS][tp] = recovery_point
        if log_start is not None:
            self._kept[LOG_START_OFFSETS][tp] = log_start

    @property
    def is_whole(self) -> bool:
        """Whether every partition in it could be opened, so that a clean mark would be true of all."""
        return not self._kept[RECOVERY_POINTS]

    def write_clean_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises OSError."""
        write_offsets(self.path / CLEAN_OFFSETS, offsets)

    def write_checkpoints(
        self, recovery_points: Mapping[TopicPartition, int], log_starts: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        """Write what changed since the last time. Raises OSError."""
        self._write_changed(RECOVERY_POINTS, lambda: recovery_points)
        self.write_log_starts(log_starts)

    def write_log_starts(self, log_starts: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Write the log start offsets, if they changed since the last time. Raises OSError.

        Threads may come together, the periodic checkpoint and DeleteRecords: they are asked for one after the other, so
        that an older answer never replaces a newer one.
        """
        self._write_changed(LOG_START_OFFSETS, log_starts)

    def _write_changed(self, name: str, offsets_of: Callable[[], Mapping[TopicPartition, int]]) -> None:
        with self._writing:
            offsets = {**self._kept[name], **offsets_of()}
            if self._written.get(name) != offsets:
                write_offsets(self.path / name, offsets)
                self._written[name] = offsets
