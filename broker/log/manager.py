"""All logs of a broker: opened at start, created and deleted, maintained in the background, closed at the end.

Called by the server (load, tick, close) and by the replica manager and topics (get, create, delete, update_config).
The event loop's thread owns it. Work that blocks on the disk is collected in jobs that the caller may run in worker
threads. Idea: Kafka's `LogManager`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import resource
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from broker.clock import Clock
from broker.config.broker_config import BrokerConfig
from broker.config.setting_groups import CleanerSettings
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError
from broker.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_topic_id,
)
from broker.log.cleaner import Cleaner, Run, SingleJob
from broker.log.compaction_process import CompactionProcess
from broker.log.disk import wrap_disk_errors
from broker.log.log import DELETED_DIRECTORY_SUFFIX, Log
from broker.log.log_config import LogConfig
from broker.log.log_directory import (
    STRAY_SUFFIX,
    EarlierLogs,
    LogDirectory,
    partition_name,
    refuse_same,
    set_aside,
    take_out_earlier,
)
from broker.log.segment import DESCRIPTORS_PER_SEGMENT, OpenSegments
from broker.log.segments import DeletedFiles
from broker.metrics import CleanerMetrics
from broker.protocol.topic_partition import TopicPartition, some_of

logger = logging.getLogger(__name__)

MOST_OPEN_SEGMENTS = 4096
FLUSH_THREADS = 16
APPEND_THREADS = 8
_NO_IDS: Mapping[str, uuid.UUID] = {}


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
        compactor: CompactionProcess | None = None,
    ) -> None:
        """`max_open_segments` bounds open files; the default uses half of the process's limit. `compactor` runs
        compactions; the default is a process of its own."""
        self._directories = [LogDirectory(path) for path in directories]
        self._clock = clock
        self._opened = OpenSegments(max_open_segments or _most_open_segments())
        self._logs: dict[TopicPartition, Log] = {}
        self.offline: dict[TopicPartition, str] = {}
        """Partitions that cannot be served, with the reason."""
        self.threads = ThreadPoolExecutor(FLUSH_THREADS, "disk")
        """For fsyncs and other blocking work. Concurrent fsyncs are cheaper than the same ones in turn."""
        self.append_threads = ThreadPoolExecutor(APPEND_THREADS, "appends")
        """For the writes of appends to a slow disk, so that they do not queue behind fsyncs."""
        self._loaded = False
        self._left_by_deleted: Collection[TopicPartition] = ()
        """Partitions whose checkpoints are of logs that the last start found, of topics that were deleted."""
        self._deleted = DeletedFiles()
        self.high_watermarks: Callable[[], Mapping[TopicPartition, int]] = dict
        """The high watermarks of the replicated partitions, for their checkpoint. The owner of the partitions sets
        it; it is called in the event loop's thread."""
        self._known_watermarks: dict[TopicPartition, int] = {}
        """As last read or asked for."""
        self._producer_expiration_ms = producer_expiration_ms
        self._retention_check = _Interval(clock, retention_check_interval_ms)
        self._checkpoint = _Interval(clock, checkpoint_interval_ms)
        self._job = SingleJob()
        self._cleaner = Cleaner(
            self._directories, self._logs, clock, cleaner or CleanerSettings(), self._remove_later, compactor
        )

    # --- starting

    def lock(self) -> None:
        """Lock the directories; one that cannot be used goes offline.

        Raises ConfigError, and locks none, when another broker has one, one is named twice or none can be used.
        """
        refuse_same(self.directories)
        try:
            for directory in self._directories:
                try:
                    directory.lock()
                except OSError as error:
                    self.take_offline(directory.path, f"cannot use {directory.path}: {error.strerror}")
        except BaseException:
            self._unlock()
            raise

    def load(
        self,
        config_of: Callable[[str], LogConfig],
        topic_ids: Mapping[str, uuid.UUID] = _NO_IDS,
        deleted_ids: Collection[uuid.UUID] = (),
    ) -> None:
        """Lock the directories and open every log in them, recovering those that were not closed cleanly.

        `config_of(topic)` returns a topic's settings; `topic_ids` are those of the cluster, `deleted_ids` those of
        deleted topics. The log of an earlier topic of the same name is none of this one: it is deleted if its topic
        was, and otherwise kept under another name. A partition or a directory that cannot be read goes offline, the
        others do not. Raises ConfigError as `lock`, or when a partition is in two directories, and releases the locks.
        """
        self.lock()
        try:
            found: dict[LogDirectory, tuple[dict[TopicPartition, Path], list[Path]]] = {}
            for directory in self._online():
                with self._offline_on_error(directory):
                    found[directory] = directory.partitions()
            earlier = take_out_earlier([partitions for partitions, _ in found.values()], topic_ids, deleted_ids)
            self._left_by_deleted = {tp for path in earlier.deleted if (tp := partition_name(path)) is not None}
            for directory, (partitions, deleted) in found.items():
                with self._offline_on_error(directory):
                    deleted += self._set_aside(directory, earlier)
                    self._load_directory(directory, partitions, deleted, config_of)
        except BaseException:
            self._unlock()
            raise
        self._loaded = True

    def _set_aside(self, directory: LogDirectory, earlier: EarlierLogs) -> list[Path]:
        """Free the names of earlier topics' logs in a directory; returns those to remove. Raises OSError."""
        for path in [path for path in earlier.strays if path.parent == directory.path]:
            kept = set_aside(path, STRAY_SUFFIX)
            text = "%s is of another topic of that name, and nothing says that this one was deleted; it is kept as %s"
            logger.error(text, path, kept.name)
        here = [path for path in earlier.deleted if path.parent == directory.path]
        for path in here:
            logger.info("%s: its topic was deleted while this broker was away; deleting it", path)
        return [set_aside(path, DELETED_DIRECTORY_SUFFIX) for path in here]

    @contextlib.contextmanager
    def _offline_on_error(self, directory: LogDirectory) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.take_offline(directory.path, f"cannot read {error.filename}: {error.strerror}")

    def _load_directory(
        self,
        directory: LogDirectory,
        partitions: Mapping[TopicPartition, Path],
        deleted: Iterable[Path],
        config_of: Callable[[str], LogConfig],
    ) -> None:
        for path in deleted:
            shutil.rmtree(path, ignore_errors=True)
        points, starts = directory.read(RECOVERY_POINTS), directory.read(LOG_START_OFFSETS)
        self._known_watermarks |= directory.read(HIGH_WATERMARKS)
        self._cleaner.load(directory)
        clean = directory.take_clean_mark()
        if partitions and not clean:
            logger.info("%s was not closed cleanly: recovering %d logs", directory.path, len(partitions))
        for tp, path in partitions.items():
            try:
                log = Log.open(
                    path,
                    config_of(tp.topic),
                    self._clock,
                    clean=clean,
                    recovery_point=points.get(tp, 0),
                    log_start_offset=starts.get(tp),
                    opened=self._opened,
                    disk=directory.disk,
                )
                log.release()  # an idle partition needs no open file
            except Exception as error:
                # Damaged files take only this partition offline. (Kafka takes the whole directory offline.)
                unknown = not isinstance(error, PykafkaError)
                logger.error("%s is offline, its files in %s stay as they are: %s", tp, path, error, exc_info=unknown)
                self.offline[tp] = f"{tp} is offline: {getattr(error, 'message', '') or error}"
                directory.keep(tp, points.get(tp, 0), starts.get(tp))
                continue
            self._add(tp, log, directory)

    def take_offline(self, path: Path, reason: str) -> None:
        """Stop using a directory until the next start (Kafka: `LogDirFailure`). Raises ConfigError for the last one."""
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

    def may_be_offline(self, tp: TopicPartition) -> bool:
        """Whether the partition's files may be there, though its log cannot be opened."""
        return tp in self.offline or bool(self.failures)

    def may_have_had(self, tp: TopicPartition) -> bool:
        """Whether the partition has a log, may have one that is offline, or is named in a checkpoint, which says that
        it had one, unless it is that of an earlier topic."""
        if tp in self._logs or self.may_be_offline(tp):
            return True
        named = any(directory.is_in_checkpoint(tp) for directory in self._directories)
        return named and tp not in self._left_by_deleted

    def expect(self, partitions: Iterable[TopicPartition], lost: Collection[TopicPartition] = ()) -> None:
        """Mark partitions that this broker had before the start, and that have no log, as offline: all of them while a
        directory is offline, as the log may be there, and always those that are `lost`."""
        failures = "; ".join(self.failures.values())
        reason = failures or (
            f"its log is gone, and no other broker has one. Mount the disk that has it and restart the broker, or "
            f"accept the loss with `pykafka log dirs --adopt {self._directories[0].path}` and restart: it begins anew, "
            "empty, or where its archive ends"
        )
        gone = [tp for tp in partitions if tp not in self._logs and tp not in self.offline and (failures or tp in lost)]
        for tp in gone:
            self.offline[tp] = f"{tp} is offline: {reason}"
        if gone:
            logger.error("offline, in no directory of log.dirs that can be used: %s. %s", some_of(gone), reason)

    def holds_any(self, path: Path, topic_ids: Collection[uuid.UUID]) -> bool:
        """Whether a directory has partitions of these topics, or no partitions at all. Raises OSError."""
        found = set()
        for directory in LogDirectory(path).partitions()[0].values():
            try:
                found.add(read_topic_id(directory / PARTITION_METADATA))
            except ConfigError:
                continue
        return not found or not found.isdisjoint(topic_ids)

    @property
    def directories(self) -> list[Path]:
        return [directory.path for directory in self._directories]

    def disk_failures(self) -> dict[Path, str]:
        """The directories whose disk takes no appends now, and why. Blocks: it tries to write."""
        return {directory.path: directory.disk.failure for directory in self._directories if not directory.disk.works()}

    @property
    def failures(self) -> dict[Path, str]:
        return {directory.path: directory.failure for directory in self._directories if directory.failure}

    @property
    def cleaner_metrics(self) -> CleanerMetrics:
        return self._cleaner.metrics

    def get(self, tp: TopicPartition) -> Log | None:
        return self._logs.get(tp)

    def logs(self) -> Mapping[TopicPartition, Log]:
        """A live view of every log."""
        return MappingProxyType(self._logs)

    def create(self, tp: TopicPartition, config: LogConfig, topic_id: uuid.UUID | None = None) -> Log:
        """The log of a new partition, in the directory with the fewest partitions; or the log that exists already.

        Raises BrokerError `kafka_storage_error`.
        """
        log = self._logs.get(tp)
        if log is None:
            if tp in self.offline:
                raise BrokerError(ErrorCode.kafka_storage_error, self.offline[tp])
            directory = self._emptiest_directory()
            with wrap_disk_errors("create", directory.path / str(tp)):
                directory.lower(tp, 0)  # checkpoints may still name an earlier topic of that name
            log = Log.open(
                directory.path / str(tp), config, self._clock, clean=True, opened=self._opened, disk=directory.disk
            )
            self._add(tp, log, directory)
            self._checkpoint.end()
        if topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    def _add(self, tp: TopicPartition, log: Log, directory: LogDirectory) -> None:
        log.before_truncation = functools.partial(self._before_truncation, tp, directory)
        self._logs[tp] = log

    def _before_truncation(self, tp: TopicPartition, directory: LogDirectory, offset: int) -> None:
        """Let no checkpoint say more than `offset` of the log. Raises OSError."""
        self._cleaner.truncated(tp, offset)
        if self._known_watermarks.get(tp, 0) > offset:
            self._known_watermarks[tp] = offset
        directory.lower(tp, offset)

    def high_watermark(self, tp: TopicPartition) -> int:
        """The high watermark in the checkpoint, at most the log's end; 0 if it is not known."""
        log = self._logs.get(tp)
        return 0 if log is None else min(self._known_watermarks.get(tp, 0), log.log_end_offset)

    def _emptiest_directory(self) -> LogDirectory:
        online = self._online()
        counts = Counter(log.directory.parent for log in self._logs.values()) if len(online) > 1 else {}
        return min(online, key=lambda directory: counts.get(directory.path, 0))

    def delete(self, tp: TopicPartition) -> None:
        """Delete a partition, if it exists; its files are unlinked file.delete.delay.ms later.

        Raises BrokerError `kafka_storage_error`.
        """
        self.offline.pop(tp, None)
        log = self._logs.get(tp)
        if log is not None:
            path = log.delete()
            del self._logs[tp]
            self._known_watermarks.pop(tp, None)
            self._checkpoint.end()
            self._cleaner.forget(tp)
            self._remove_later([path], log.config.file_delete_delay_ms)

    def _remove_later(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Unlink files and remove directories after a delay."""
        self._deleted.add(self._clock.now_ms() + delay_ms, paths)

    def update_config(self, topic: str, config: LogConfig) -> None:
        """Apply new settings to every log of a topic."""
        for tp, log in self._logs.items():
            if tp.topic == topic:
                log.update_config(config)

    def update_broker_config(self, config: BrokerConfig) -> None:
        """Apply the dynamic settings that are not topic defaults."""
        self._producer_expiration_ms = config.producer_id_expiration_ms
        self._cleaner.settings = config

    # --- maintenance

    def tick(self, run: Run = lambda job: job()) -> None:
        """Do what is due; to be called about every second.

        Rolls, retention and expiry of producers are quick and happen here. fsyncs, unlinks and checkpoints block, so
        they go into one job that is given to `run`, which may run it in a worker thread. There is one such job at a
        time; a compaction takes longer and is a job of its own.
        """
        check_retention = self._retention_check.is_over()
        for tp, log in self._logs.items():
            try:
                log.roll_if_aged()
                if check_retention:
                    log.apply_retention()
                    log.producers.expire(self._clock.now_ms(), self._producer_expiration_ms)
            except Exception as error:  # the other logs, and the flushes below, go on
                logger.error("%s: %s", tp, error, exc_info=not isinstance(error, BrokerError))
        self._cleaner.tick(run)
        if not self._job.is_running:
            self._start_job(run)

    def _start_job(self, run: Run) -> None:
        flushes = [log.flush for log in self._logs.values() if log.needs_background_flush()]
        flushes += [log.save_epochs for log in self._logs.values() if not log.epochs.is_saved]
        paths = self._deleted.take(self._clock.now_ms())
        for log in self._logs.values():
            paths += log.take_deleted()
        checkpoint = self._checkpoint.is_over()
        if not (flushes or paths or checkpoint):
            return
        if checkpoint:
            self._known_watermarks.update(self.high_watermarks())

        self._job.start(run, lambda: self._do_blocking_work(flushes, paths, checkpoint))

    def _do_blocking_work(self, flushes: list[Callable[[], None]], paths: list[Path], checkpoint: bool) -> None:
        def log_failure(flush: Callable[[], None]) -> None:
            try:
                flush()
            except BrokerError as error:
                logger.error("%s", error)

        # Many fsyncs at once share the disk's work, so a thousand partitions keep flush.ms.
        for _ in self.threads.map(log_failure, flushes):
            pass
        for path in paths:
            _remove(path)
        if checkpoint:
            for directory in self._online():
                try:
                    self._write_checkpoints(directory)
                except OSError as error:
                    logger.error("no checkpoint of %s: %s", directory.path, error)

    def _write_checkpoints(self, directory: LogDirectory) -> None:
        """Write recovery points, log start offsets and high watermarks of the logs in a directory. Raises OSError."""
        directory.write(RECOVERY_POINTS, lambda: {tp: log.recovery_point for tp, log in self._logs_in(directory)})
        directory.write(LOG_START_OFFSETS, functools.partial(self._log_starts, directory))
        directory.write(HIGH_WATERMARKS, functools.partial(self._watermarks, directory))

    def note_new(self, partitions: Iterable[TopicPartition]) -> None:
        """Let a checkpoint name new logs, so that a start without their files knows that they are lost. From any
        thread. What cannot be written is written by the next checkpoint."""
        places = {tp: log.directory.parent for tp in partitions if (log := self._logs.get(tp)) is not None}
        for directory in self._online():
            try:
                directory.add_recovery_points([tp for tp, path in places.items() if path == directory.path])
            except OSError as error:
                logger.error("no checkpoint of %s: %s", directory.path, error)

    def write_log_starts(self) -> None:
        """Make the log start offsets durable after DeleteRecords; from any thread.

        Raises BrokerError `kafka_storage_error`.
        """
        try:
            for directory in self._online():
                directory.write(LOG_START_OFFSETS, functools.partial(self._log_starts, directory))
        except OSError as error:
            raise BrokerError(ErrorCode.kafka_storage_error, f"no checkpoint of log start offsets: {error}") from error

    def _log_starts(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """Those that DeleteRecords moved, and those of archived logs, which start before their first segment, if they
        are known. The others are in the name of that segment."""
        return {
            tp: log.log_start_offset
            for tp, log in self._logs_in(directory)
            if log.log_start_offset > log.segments[0].base_offset
            or (log.config.remote_storage_enable and log.is_start_known)
        }

    def _watermarks(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        known = self._known_watermarks.copy()  # the event loop may delete a partition meanwhile
        return {tp: known[tp] for tp, _ in self._logs_in(directory) if tp in known}

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if not directory.failure]

    def _logs_in(self, directory: LogDirectory) -> list[tuple[TopicPartition, Log]]:
        return [(tp, log) for tp, log in list(self._logs.items()) if log.directory.parent == directory.path]

    # --- stopping

    def close(self) -> None:
        """Flush and close every log; mark a directory as clean if all its logs were closed. Whatever raises, the locks
        are released."""
        with contextlib.ExitStack() as last:
            last.callback(self._unlock)
            last.callback(self.append_threads.shutdown)
            last.callback(self.threads.shutdown)
            if self._loaded:
                self._loaded = False
                last.callback(self._close_logs)
                last.callback(self._cleaner.close)
                self._known_watermarks.update(self.high_watermarks())

    def _close_logs(self) -> None:
        unclean = set()
        self._flush_together()
        for tp, log in self._logs.items():
            try:
                log.close()
            except Exception as error:
                logger.error(
                    "%s is not closed cleanly: %s", tp, error, exc_info=not isinstance(error, (BrokerError, OSError))
                )
                unclean.add(log.directory.parent)
        for directory in self._online():
            try:
                self._write_checkpoints(directory)
                if directory.path not in unclean and directory.is_whole:
                    directory.write_clean_mark()
            except OSError as error:
                logger.error("%s is not marked as closed cleanly: %s", directory.path, error)

    def _flush_together(self) -> None:
        """Ignores errors: a flush that fails here fails again in `close`."""
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


class _Interval:
    """Is over once every `interval_ms`."""

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._last = clock.monotonic()

    def end(self) -> None:
        """Let it be over now."""
        self._last = -math.inf

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
