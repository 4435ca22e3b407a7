"""All logs of a broker: found at start, created and deleted, looked after in the background, closed at the end.

Called by the server (load, tick, close) and by cluster/ (get, create, delete, update_config). The event loop's
thread owns it; the blocking part of `tick` can be handed to a worker thread. Idea: Kafka's `LogManager`.
"""

from __future__ import annotations

import logging
import resource
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from broker.clock import Clock
from broker.config.broker_config import BrokerConfig
from broker.config.setting_groups import CleanerSettings
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError
from broker.log.checkpoints import PARTITION_METADATA, read_topic_id
from broker.log.compaction_process import Compactor
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.log_directory import LogDirectory
from broker.log.maintenance import Maintenance, Run, run_now
from broker.log.open_segments import DESCRIPTORS_PER_SEGMENT, OpenSegments
from broker.metrics import CleanerMetrics
from broker.protocol.topic_partition import TopicPartition

__all__ = ["LogManager"]

logger = logging.getLogger(__name__)

MOST_OPEN_SEGMENTS = 4096
FLUSHES_AT_ONCE = 16
APPENDS_AT_ONCE = 8


class LogManager:
    """The logs in one or more data directories. Nothing is locked or read before `load`."""

    def __init__(
        self,
        directories: Sequence[Path],
        clock: Clock,
        *,
        retention_check_interval_ms: int = 300_000,
        checkpoint_interval_ms: int = 60_000,
        producer_expiration_ms: int = 86_400_000,
        max_open_segments: int | None = None,
        cleaner: CleanerSettings | None = None,
        compactor: Compactor | None = None,
    ) -> None:
        """`max_open_segments` bounds descriptors; by default they take half of what the process may open. `compactor`
        carries out compactions; by default a process of its own."""
        self._directories = [LogDirectory(path) for path in dict.fromkeys(directories)]
        self._clock = clock
        self._opened = OpenSegments(max_open_segments or _most_open_segments())
        self._logs: dict[TopicPartition, Log] = {}
        self.offline: dict[TopicPartition, str] = {}
        """Partitions that cannot be served, with the reason."""
        self.threads = ThreadPoolExecutor(FLUSHES_AT_ONCE, "disk")
        """Threads for what blocks on the disk: fsyncs that wait at the same time share its work."""
        self.append_threads = ThreadPoolExecutor(APPENDS_AT_ONCE, "appends")
        """For the writes of appends while a disk is slow, which do not wait for fsyncs."""
        self._loaded = False
        self._maintenance = Maintenance(
            self._directories,
            self._logs,
            clock,
            retention_check_interval_ms=retention_check_interval_ms,
            checkpoint_interval_ms=checkpoint_interval_ms,
            producer_expiration_ms=producer_expiration_ms,
            cleaner=cleaner or CleanerSettings(),
            compactor=compactor,
            threads=self.threads,
        )

    def lock(self) -> None:
        """Take the directories, before anything else is done in them; one that cannot be used goes offline.

        Raises ConfigError when another broker has one, or none can be used; none is taken then.
        """
        try:
            for directory in self._directories:
                try:
                    directory.lock()
                except OSError as error:
                    self.take_offline(directory.path, f"cannot use {directory.path}: {error.strerror}")
        except BaseException:
            self._unlock()
            raise

    def load(self, config_of: Callable[[str], LogConfig]) -> None:
        """Lock the directories and open every log in them, recovering those that were not closed cleanly.

        `config_of(topic)` gives a topic's settings. A partition or a directory that cannot be read goes offline alone
        (`offline`). Raises ConfigError (a directory in use, or none that can be used); the locks are free again then.
        """
        self.lock()
        try:
            for directory in self._directories:
                if directory.failure:
                    continue
                try:
                    self._load_directory(directory, config_of)
                except OSError as error:
                    self.take_offline(directory.path, f"cannot read {error.filename}: {error.strerror}")
        except BaseException:
            self._unlock()
            raise
        self._loaded = True

    def _load_directory(self, directory: LogDirectory, config_of: Callable[[str], LogConfig]) -> None:
        partitions, deleted = directory.partitions()
        for path in deleted:
            shutil.rmtree(path, ignore_errors=True)
        points, starts = directory.read_checkpoints()
        self._maintenance.cleaner.load(directory)
        clean = directory.take_clean_mark()
        if partitions and not clean:
            logger.info("%s was not closed cleanly: recovering %d logs", directory.path, len(partitions))
        for tp, path in partitions.items():
            if tp in self._logs:
                logger.error("%s is left alone: %s holds the same partition", path, self._logs[tp].directory)
                continue
            try:
                log = Log.open(
                    path,
                    config_of(tp.topic),
                    self._clock,
                    clean=clean,
                    recovery_point=points.get(tp, 0),
                    log_start_offset=starts.get(tp, 0),
                    opened=self._opened,
                    disk=directory.disk,
                )
                log.release()  # who is never asked for anything needs no descriptor
            except Exception as error:
                # Whatever is wrong with its files concerns this partition alone (Kafka takes its directory offline).
                unknown = not isinstance(error, PykafkaError)
                logger.error("%s is offline, its files in %s stay as they are: %s", tp, path, error, exc_info=unknown)
                self.offline[tp] = f"{tp} is offline: {getattr(error, 'message', '') or error}"
                directory.keep(tp, points.get(tp, 0), starts.get(tp))
                continue
            self._logs[tp] = log

    def take_offline(self, path: Path, reason: str) -> None:
        """Do without a directory until the next start (Kafka: `LogDirFailure`). Raises ConfigError for the last one."""
        for directory in self._directories:
            if directory.path == path:
                directory.failure = reason
                directory.unlock()
        for tp in [tp for tp, log in self._logs.items() if log.directory.parent == path]:
            del self._logs[tp]
        logger.error(
            "log.dirs: %s is offline, its partitions answer KAFKA_STORAGE_ERROR: %s; repair it and restart the broker",
            path,
            reason,
        )
        if all(directory.failure for directory in self._directories):
            raise ConfigError(f"log.dirs: {self._directories[0].failure}")

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """What was led here before this start and has no log now lies in a directory that is offline, if one is."""
        failures = "; ".join(directory.failure for directory in self._directories if directory.failure)
        if failures:
            for tp in partitions:
                if tp not in self._logs:
                    self.offline.setdefault(tp, f"{tp} is offline: {failures}")

    def holds_any(self, path: Path, topic_ids: Collection[uuid.UUID]) -> bool:
        """Whether a directory has partitions of these topics, or none at all. Raises OSError."""
        found = set()
        for directory in LogDirectory(path).partitions()[0].values():
            try:
                found.add(read_topic_id(directory / PARTITION_METADATA))
            except ConfigError:
                continue
        return not found or not found.isdisjoint(topic_ids)

    @property
    def directories(self) -> list[Path]:
        """All of log.dirs."""
        return [directory.path for directory in self._directories]

    def disk_failures(self) -> dict[Path, str]:
        """The directories whose disk takes no appends now, and why. Blocks for a try to write."""
        return {directory.path: directory.disk.failure for directory in self._directories if not directory.disk.works()}

    @property
    def failures(self) -> dict[Path, str]:
        """The directories that are offline, and why."""
        return {directory.path: directory.failure for directory in self._directories if directory.failure}

    @property
    def cleaner_metrics(self) -> CleanerMetrics:
        return self._maintenance.cleaner.metrics

    def get(self, tp: TopicPartition) -> Log | None:
        return self._logs.get(tp)

    def logs(self) -> Mapping[TopicPartition, Log]:
        """A live view of every log."""
        return MappingProxyType(self._logs)

    def create(self, tp: TopicPartition, config: LogConfig, topic_id: uuid.UUID | None = None) -> Log:
        """The log of a new partition, in the directory with the fewest; the one there is, if there is one.

        Raises BrokerError `kafka_storage_error`.
        """
        log = self._logs.get(tp)
        if log is None:
            if tp in self.offline:
                raise BrokerError(ErrorCode.kafka_storage_error, self.offline[tp])
            directory = self._emptiest_directory()
            log = Log.open(
                directory.path / str(tp), config, self._clock, clean=True, opened=self._opened, disk=directory.disk
            )
            self._logs[tp] = log
        if topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    def _emptiest_directory(self) -> LogDirectory:
        online = [directory for directory in self._directories if not directory.failure]
        counts = Counter(log.directory.parent for log in self._logs.values()) if len(online) > 1 else {}
        return min(online, key=lambda directory: counts.get(directory.path, 0))

    def delete(self, tp: TopicPartition) -> None:
        """Take a partition away; its files are unlinked file.delete.delay.ms later. Nothing to do for an unknown one.

        Raises BrokerError `kafka_storage_error`.
        """
        self.offline.pop(tp, None)
        log = self._logs.get(tp)
        if log is not None:
            path = log.delete()
            del self._logs[tp]
            self._maintenance.cleaner.forget(tp)
            self._maintenance.remove_later([path], log.config.file_delete_delay_ms)

    def update_config(self, topic: str, config: LogConfig) -> None:
        """Give new settings to every log of a topic."""
        for tp, log in self._logs.items():
            if tp.topic == topic:
                log.update_config(config)

    def update_broker_config(self, config: BrokerConfig) -> None:
        """Take over what can be altered while the broker runs, and is not a topic's default."""
        self._maintenance.producer_expiration_ms = config.producer_id_expiration_ms
        self._maintenance.cleaner.settings = config

    def write_log_starts(self) -> None:
        """Make the log start offsets, as DeleteRecords moved them, durable; from any thread.

        Raises BrokerError `kafka_storage_error`.
        """
        try:
            self._maintenance.write_log_starts()
        except OSError as error:
            raise BrokerError(ErrorCode.kafka_storage_error, f"no checkpoint of log start offsets: {error}") from error

    def tick(self, run: Run = run_now) -> None:
        """Do what time asks for; to be called about every second.

        Rolls, retention and forgetting of producers happen here and are quick. fsyncs, unlinks and checkpoints
        block: they go into one job that is given to `run`, which may pass it on to a worker thread. While a job
        runs no other is given out, except that a compaction, which takes longer, is a job of its own.
        """
        self._maintenance.tick(run)

    def close(self) -> None:
        """Flush and close every log, and mark each directory whose logs all closed well as clean."""
        if not self._loaded:
            self._end_threads()
            self._unlock()
            return
        self._loaded = False
        self._maintenance.cleaner.close()
        unclean = set()
        self._flush_together()
        for tp, log in self._logs.items():
            try:
                log.close()
            except BrokerError as error:
                logger.error("%s is not closed cleanly: %s", tp, error)
                unclean.add(log.directory.parent)
        for directory in self._directories:
            if directory.failure:
                continue
            try:
                self._maintenance.write_checkpoints(directory)
                if directory.path not in unclean and directory.is_whole:
                    directory.write_clean_mark()
            except OSError as error:
                logger.error("%s is not marked as closed cleanly: %s", directory.path, error)
        self._end_threads()
        self._unlock()

    def _end_threads(self) -> None:
        self.threads.shutdown()
        self.append_threads.shutdown()

    def _flush_together(self) -> None:
        """One that fails will fail again in `close`."""
        waiting = [log for log in self._logs.values() if log.recovery_point < log.log_end_offset]
        for done in [self.threads.submit(log.flush) for log in waiting]:
            done.exception()

    def _unlock(self) -> None:
        for directory in self._directories:
            directory.unlock()


def _most_open_segments() -> int:
    """Half of the descriptors: the other half is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_OPEN_SEGMENTS
    return min(max(soft // 2 // DESCRIPTORS_PER_SEGMENT, 16), MOST_OPEN_SEGMENTS)
