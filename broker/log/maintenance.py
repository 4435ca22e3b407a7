"""What logs need as time goes by: rolls, retention, compaction, fsyncs, unlinks, checkpoints.

Owned by manager.py. What touches a log runs in the owner's thread and is quick; what blocks on the disk is
gathered into one job, which the caller may run in a worker thread.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from broker.clock import Clock
from broker.config.setting_groups import CleanerSettings
from broker.errors import BrokerError
from broker.log.cleaner import Cleaner
from broker.log.compaction_process import Compactor
from broker.log.deleted_files import DeletedFiles
from broker.log.log import Log
from broker.log.log_directory import LogDirectory
from broker.protocol.topic_partition import TopicPartition

__all__ = ["Job", "Maintenance", "Run", "run_now"]

logger = logging.getLogger(__name__)

Job = Callable[[], None]
Run = Callable[[Job], object]
"""Runs a job, at once or in a thread; what it returns is not looked at."""


def run_now(job: Job) -> None:
    job()


class Maintenance:
    """`tick` finds what is due. Intervals are counted in ms from the first tick."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        logs: Mapping[TopicPartition, Log],
        clock: Clock,
        *,
        retention_check_interval_ms: int,
        checkpoint_interval_ms: int,
        producer_expiration_ms: int,
        cleaner: CleanerSettings,
        compactor: Compactor | None,
        threads: Executor,
    ) -> None:
        self._directories = directories
        self._logs = logs
        self._clock = clock
        self.producer_expiration_ms = producer_expiration_ms
        self._retention_check = _Interval(clock, retention_check_interval_ms)
        self._checkpoint = _Interval(clock, checkpoint_interval_ms)
        self._deleted = DeletedFiles()
        self._job_runs = False
        self._threads = threads
        self.cleaner = Cleaner(directories, logs, clock, cleaner, self.remove_later, compactor)

    def remove_later(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Unlink files, or directories with all in them, after a delay."""
        self._deleted.add(self._clock.now_ms() + delay_ms, paths)

    def tick(self, run: Run) -> None:
        check_retention = self._retention_check.is_over()
        for tp, log in self._logs.items():
            try:
                log.roll_if_aged()
                if check_retention:
                    log.apply_retention()
                    log.expire_producers(self.producer_expiration_ms)
            except BrokerError as error:
                logger.error("%s: %s", tp, error)
        self.cleaner.tick(run)
        if not self._job_runs:
            self._give_out(run)

    def _give_out(self, run: Run) -> None:
        logs = [log for log in self._logs.values() if log.flush_wanted()]
        unsaved = [log for log in self._logs.values() if not log.epochs.is_saved]
        paths = self._deleted.take(self._clock.now_ms())
        for log in self._logs.values():
            paths += log.take_deleted()
        checkpoint = self._checkpoint.is_over()
        if not (logs or unsaved or paths or checkpoint):
            return

        def job() -> None:
            try:
                self._work(logs, unsaved, paths, checkpoint)
            finally:
                self._job_runs = False

        self._job_runs = True
        try:
            run(job)
        except BaseException:
            self._job_runs = False
            raise

    def _work(self, logs: list[Log], unsaved: list[Log], paths: list[Path], checkpoint: bool) -> None:
        def work(act: Callable[[], None]) -> None:
            try:
                act()
            except BrokerError as error:
                logger.error("%s", error)

        # Many at once, which share the disk's work: so a thousand partitions keep flush.ms.
        for _ in self._threads.map(work, [*(log.flush for log in logs), *(log.save_epochs for log in unsaved)]):
            pass
        for path in paths:
            _remove(path)
        if checkpoint:
            for directory in self._online():
                try:
                    self.write_checkpoints(directory)
                except OSError as error:
                    logger.error("no checkpoint of %s: %s", directory.path, error)

    def write_checkpoints(self, directory: LogDirectory) -> None:
        """Recovery points and log start offsets of the logs in a directory. Raises OSError."""
        points = {tp: log.recovery_point for tp, log in self._logs_in(directory)}
        directory.write_checkpoints(points, lambda: self._log_starts(directory))

    def write_log_starts(self) -> None:
        """The log start offsets of all logs, from any thread. Raises OSError."""
        for directory in self._online():
            directory.write_log_starts(functools.partial(self._log_starts, directory))

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if not directory.failure]

    def _log_starts(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """The start is in the name of the first segment, unless DeleteRecords moved it on."""
        return {
            tp: log.log_start_offset
            for tp, log in self._logs_in(directory)
            if log.log_start_offset > log.segments[0].base_offset
        }

    def _logs_in(self, directory: LogDirectory) -> list[tuple[TopicPartition, Log]]:
        return [(tp, log) for tp, log in list(self._logs.items()) if log.directory.parent == directory.path]


class _Interval:
    """Is over once per so many ms."""

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._last = clock.monotonic()

    def is_over(self) -> bool:
        now = self._clock.monotonic()
        if now - self._last < self._interval_s:
            return False
        self._last = now
        return True


def _remove(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.error("cannot remove %s: %s", path, error)
