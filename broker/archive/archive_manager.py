"""The archives of the partitions of this broker: carries out what `ArchiveState` decides, in threads.

The replica manager says which partitions this broker leads and follows; the server calls `tick`. Of what it leads, the
broker reads the manifest, copies closed segments, and commits. The log learns from its `archived` what is archived and
where the archive starts. Lives on the event loop; every call of the store is made in a thread, and a store that is away
holds up nothing but the archive.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, Final

from broker.archive.archive_state import ArchiveState, Begin, ClosedSegment, Commit, Copy, Load, Step, Sweep
from broker.archive.copier import Copier, CopyFailed, CopyStopped, SegmentFiles, Throttle
from broker.archive.filling_disks import FillingDisks
from broker.archive.layout import is_object_name, parse_topic_id
from broker.archive.log_beginning import state_at_end, state_from
from broker.archive.manifest import Manifest
from broker.archive.manifest_store import CommitLost, ManifestStore
from broker.archive.store_threads import StoreThreads
from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.config.archive_settings import ArchiveSettings
from broker.errors import BrokerError
from broker.log.log import Log
from broker.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot, encode_snapshot
from broker.log.segment import segment_path
from broker.metrics import TopicMetrics
from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.topic_partition import TopicPartition
from broker.storage.url_secrets import text_without_secrets

if TYPE_CHECKING:
    from broker.archive.archived_read import ArchivedPartition
    from broker.archive.layout import PartitionPlace
    from broker.storage.storage import Storage

logger = logging.getLogger(__name__)

ARCHIVE_ID_KEY: Final = "archive.topic.id"
CALLS_AT_ONCE: Final = 8
"""Short calls of the store: manifests that are read, entries that are committed."""
REFRESH_S: Final = 10.0
"""How often a follower reads the manifest again, while its leader says that there is more."""
UNFENCED_S: Final = 1.0
"""The same, while its leader has not written an entry yet. Until then the follower's log has no archive."""
LOOK_S: Final = 10.0
"""How often the disks of partitions are looked at whose archives lag."""
ANSWER_S: Final = 10.0
"""A store that takes longer for a short call hangs."""
PART_S: Final = 60.0
"""The same for what a copy puts at a time: the store's client may keep tens of megabytes and send them at once."""
SMALLEST_ON_HDFS: Final = 64 << 20
"""Bytes of a segment: a name node has every file in its memory, and an archive has two of a segment."""


class _HostedArchive:
    """A partition that this broker leads or follows."""

    def __init__(self, tp: TopicPartition, log: Log, store: ManifestStore, metrics: TopicMetrics) -> None:
        self.tp = tp
        self.log = log
        self.store = store
        self.metrics = metrics
        self.archived: ArchivedPartition | None = None

    @property
    def lags(self) -> bool:
        """Whether more than the segment that was closed last waits to be archived."""
        log, segments = self.log, self.log.segments
        return log.config.copies_segments and len(segments) > 2 and segments[-2].base_offset > log.archived_end


class _LedArchive(_HostedArchive):
    """It is the `LogView` of its state, too."""

    def __init__(
        self,
        tp: TopicPartition,
        log: Log,
        store: ManifestStore,
        state: ArchiveState,
        committed: Callable[[], int],
        metrics: TopicMetrics,
    ) -> None:
        super().__init__(tp, log, store, metrics)
        self.state = state
        self._committed = committed
        self.told = ""
        """The problem that was logged last."""
        self.asked: tuple[float, float] | None = None
        """When a thread began the call of the store that runs, and when it should have ended."""

    @property
    def start(self) -> int:
        if not self.log.config.remote_storage_enable:
            # remote.log.delete.on.disable. What the disk has, too, goes with it: the archive may be turned on again.
            return self.log.log_start_offset
        return self.log.wanted_start_offset

    @property
    def local_start(self) -> int:
        return self.log.local_start_offset

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        return self.log.epochs.entries

    @property
    def is_copied(self) -> bool:
        return self.log.config.copies_segments

    def closed_after(self, offset: int) -> ClosedSegment | None:
        """Records above the recovery point may be lost with the power, and then the archive would be longer than all
        logs."""
        segments = self.log.segments
        bound: int | None = None
        for segment, following in pairwise(segments):
            end = following.base_offset
            if end > offset and segment.size:
                if bound is None:
                    bound = min(self._committed(), self.log.recovery_point)
                return ClosedSegment(segment.base_offset, end) if end <= bound else None
        return None

    def files_of(self, step: Copy) -> SegmentFiles:
        log, segment = self.log, step.segment
        found = next(one for one in log.segments if one.base_offset == segment.base)
        snapshot = segment_path(log.directory, segment.end, SNAPSHOT_SUFFIX)
        return SegmentFiles(
            log=found.path(),
            size=found.size,
            base=step.base,
            end=segment.end,
            index_interval=log.config.index_interval_bytes,
            producers=partial(_producers, snapshot.read_bytes, log.producers_before(segment.end)),
        )

    def status(self, disks: FillingDisks, clock: Clock) -> ArchiveStatus:
        state, log = self.state, self.log
        end = state.manifest.end if state.manifest is not None else 0
        behind = [one.size for one, following in pairwise(log.segments) if following.base_offset > end]
        lag = (sum(behind), len(behind)) if log.config.copies_segments else (0, 0)
        return ArchiveStatus(
            self.tp,
            archived_bytes=None if state.manifest is None else state.manifest.size,
            lag_bytes=lag[0],
            lag_segments=lag[1],
            problem=self.problem(disks, clock),
        )

    def problem(self, disks: FillingDisks, clock: Clock) -> str:
        asked, failing_since, now = self.asked, self.state.failing_since, clock.monotonic()
        hangs = f"the store has not answered for {now - asked[0]:.0f} s" if asked is not None and now > asked[1] else ""
        warning = disks.warning(self.log.directory.parent) if self.lags else ""
        failed = self.state.problem
        if failed and failing_since is not None:
            since = datetime.fromtimestamp(clock.now_ms() // 1000 - round(now - failing_since), UTC)
            failed += f" (since {since:%Y-%m-%d %H:%M:%S} UTC)"
        return "; ".join(filter(None, (failed, hangs, warning, self.log.held)))


class _FollowedArchive(_HostedArchive):
    def __init__(self, tp: TopicPartition, log: Log, store: ManifestStore, epoch: int, metrics: TopicMetrics) -> None:
        super().__init__(tp, log, store, metrics)
        self.epoch = epoch
        """Of its leader."""
        self.is_busy = False
        """Whether the manifest is being read."""
        self.next_at = 0.0
        self.manifest = Manifest()
        """As it was last read."""


class ArchiveManager:
    def __init__(
        self,
        storage: Storage,
        cluster_id: str,
        broker_id: int,
        settings: ArchiveSettings,
        clock: Clock,
        read: Callable[[PartitionPlace, Manifest, TopicMetrics], ArchivedPartition],
        *,
        on_step: Callable[[str], None] = lambda step: None,
        is_there: Callable[[], None] = lambda: None,
    ) -> None:
        """`read` makes what a log reads its archive with. `on_step` hears in a thread what is about to be done: "put",
        "block", "put aux", "commit", "committed"; tests stop there. `is_there` is called in a thread where the archive
        of a partition is empty, and raises OSError if that is because the store is not mounted."""
        self._storage = storage
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._settings = settings
        self._clock = clock
        self._read = read
        self._on_step = on_step
        self._is_there = is_there
        self.on_ready: Callable[[TopicPartition], None] = lambda tp: None
        """Called when `may_serve` is true of a partition of which it was not."""
        self._led: dict[TopicPartition, _LedArchive] = {}
        self._followed: dict[TopicPartition, _FollowedArchive] = {}
        self._stop = threading.Event()
        throttle = Throttle(lambda: self._settings.remote_log_manager_copy_max_bytes_per_second, self._stop)
        self._copier = Copier(storage, throttle, on_step)
        self._copies = StoreThreads(settings.archive_threads, "archive-copy")
        self._calls = StoreThreads(CALLS_AT_ONCE, "archive-call")
        self._tasks = BackgroundTasks()
        self._disks = FillingDisks()
        self._look_at = clock.monotonic() + LOOK_S
        """When the disks are looked at next: not before the manifests were read."""
        self._warned: set[tuple[str, int]] = set()
        """(topic, segment.bytes) of which was said that they are small."""

    # --- which partitions

    def lead(
        self,
        tp: TopicPartition,
        log: Log,
        topic_id: uuid.UUID,
        config: Mapping[str, str],
        epoch: int,
        committed: Callable[[], int],
        metrics: TopicMetrics,
    ) -> None:
        """This broker leads the partition in `epoch`. `config` are the topic's settings. `committed`: what is below the
        high watermark, and in no open transaction. Called again for the same epoch it changes nothing."""
        led = self._led.get(tp)
        if led is not None and led.state.epoch == epoch and led.log is log:
            return
        self.forget(tp)
        if not _has_archive(log):
            return
        state = ArchiveState(epoch, self._settings.archive_delete_delay_ms / 1000, self._clock.monotonic())
        self._led[tp] = led = _LedArchive(tp, log, self._store(topic_id, config, tp), state, committed, metrics)
        log.start_wanted = partial(self._advance, led)
        self._advance(led)

    def may_serve(self, tp: TopicPartition) -> bool:
        """Whether the leader may take records. An empty log of a topic that is not new waits until it is known where
        its archive ends: it has lost its disk, or was restored."""
        led = self._led.get(tp)
        if led is None or not led.log.config.remote_storage_enable or led.local_start < led.end:
            return True
        state = led.state
        return not state.must_begin(led) if state.manifest is not None else state.epoch == 0

    def follow(
        self,
        tp: TopicPartition,
        log: Log,
        topic_id: uuid.UUID,
        config: Mapping[str, str],
        epoch: int,
        metrics: TopicMetrics,
    ) -> None:
        """This broker follows another leader, of that epoch. Called again for it, it changes nothing."""
        follower = self._followed.get(tp)
        if follower is not None and follower.log is log and follower.epoch == epoch:
            return
        self.forget(tp)
        if log.config.remote_storage_enable:
            self._followed[tp] = follower = _FollowedArchive(tp, log, self._store(topic_id, config, tp), epoch, metrics)
            log.archived_state = partial(state_from, follower.store)
            self._refresh(follower)

    def forget(self, tp: TopicPartition) -> None:
        """This broker neither leads nor follows the partition any more. What runs in a thread ends by itself.

        The next leader may truncate the archive. So the log must not read what the manifest has named so far, nor
        delete a record because of it, before it is known what that leader has made of it.
        """
        hosted = self._led.pop(tp, None) or self._followed.pop(tp, None)
        if hosted is not None:
            hosted.log.start_wanted, hosted.log.archived_state, hosted.log.archived = lambda: None, None, None

    def _store(self, topic_id: uuid.UUID, config: Mapping[str, str], tp: TopicPartition) -> ManifestStore:
        """A topic that was made from the archive of another one continues that archive."""
        archive_id = parse_topic_id(config.get(ARCHIVE_ID_KEY, "").strip()) or topic_id
        return ManifestStore(self._storage, self._cluster_id, archive_id, tp.partition)

    # --- time

    def tick(self) -> None:
        """Look whether there is something to do. Call it about once a second."""
        for led in tuple(self._led.values()):
            self._advance(led)
            self._warn_of_small_segments(led)
        for follower in self._followed.values():
            self._refresh(follower)
        if self._clock.monotonic() >= self._look_at and not self._stop.is_set():
            self._look_at = self._clock.monotonic() + LOOK_S
            all_hosted = (*self._led.values(), *self._followed.values())
            lagging = {hosted.log.directory.parent for hosted in all_hosted if hosted.lags}
            self._tasks.begin("looking at the disks", asyncio.to_thread(self._disks.look, lagging))

    def _warn_of_small_segments(self, led: _LedArchive) -> None:
        found = led.tp.topic, led.log.config.segment_bytes
        if self._storage.is_hdfs and found[1] < SMALLEST_ON_HDFS and found not in self._warned:
            self._warned.add(found)
            logger.warning(
                "%s has segment.bytes=%d; the archive makes two files of each segment, and HDFS likes few large ones: "
                "set %d or more",
                *found,
                SMALLEST_ON_HDFS,
            )

    def update_config(self, settings: ArchiveSettings) -> None:
        self._settings = settings

    async def close(self) -> None:
        """Copy no more. What the store has not answered yet is left alone."""
        self._stop.set()
        for threads in (self._copies, self._calls):
            threads.shutdown()
        await self._tasks.close()

    # --- what is known

    def statuses(self) -> list[ArchiveStatus]:
        """Of all archived partitions that this broker leads."""
        led = tuple(self._led.values())
        return [one.status(self._disks, self._clock) for one in led if one.log.config.remote_storage_enable]

    @property
    def filling_disks(self) -> int:
        """Directories of logs that fill up because archives lag."""
        return self._disks.count

    @property
    def problem(self) -> str:
        """Why archives do not go on; empty while they do."""
        found = {led.tp: led.problem(self._disks, self._clock) for led in tuple(self._led.values())}
        problems = {tp: problem for tp, problem in found.items() if problem}
        if not problems:
            return ""
        tp, reason = min(problems.items())
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"{tp}{more}: {reason}"

    # --- partitions that this broker leads

    def _advance(self, led: _LedArchive) -> None:
        if self._led.get(led.tp) is not led or self._stop.is_set() or not _has_archive(led.log):
            return
        if led.log.archived is None and led.state.is_ready:
            self._show(led, led.state.manifest)  # the topic's archive was turned off, and on again
        step = led.state.next(led, self._clock.monotonic())
        if step is not None:
            self._tasks.begin(f"archiving {led.tp}", self._take(led, step))
        self._tell(led)

    async def _take(self, led: _LedArchive, step: Step) -> None:
        """Carry a step out, and tell the state what came of it."""
        threads = self._copies if isinstance(step, Copy | Sweep) else self._calls
        could_serve = self.may_serve(led.tp)
        try:
            work = self._timed(led, step, self._work(led, step))
            result = await asyncio.get_running_loop().run_in_executor(threads, work)
            self._end(led, step, result)
        except CommitLost as lost:
            logger.info("%s: %s", led.tp, lost)
            led.state.lost(lost.manifest, self._clock.monotonic())
        except CopyStopped:
            return
        except Exception as error:  # of whatever library is behind the storage
            self._count_failure(led, step)
            led.state.failed(_shown(error), self._clock.monotonic())
        if self._led.get(led.tp) is not led:
            return
        if led.state.is_ready:  # before, it may name records that this log lacks, and nothing may be deleted for it
            self._show(led, led.state.manifest)
        if not could_serve and self.may_serve(led.tp):
            self.on_ready(led.tp)
        self._advance(led)

    def _timed(self, led: _LedArchive, step: Step, work: Callable[[], Any]) -> Callable[[], Any]:
        """`work`, so that it is known since when it runs. Until a thread is free, nothing was asked."""
        patience = inf if isinstance(step, Sweep) else PART_S if isinstance(step, Copy) else ANSWER_S

        def run() -> Any:
            self._asks(led, patience)
            try:
                return work()
            finally:
                led.asked = None

        return run

    def _asks(self, led: _LedArchive, patience: float | None) -> None:
        """A thread calls the store now; with None it waits for something else."""
        now = self._clock.monotonic()
        led.asked = None if patience is None else (now, now + patience)

    def _work(self, led: _LedArchive, step: Step) -> Callable[[], Any]:
        """What a thread has to do."""
        store, manifest = led.store, led.state.manifest
        if isinstance(step, Load) or manifest is None:
            return partial(self._load, store)
        match step:
            case Begin():
                return partial(state_at_end, store, manifest)
            case Copy():
                return partial(
                    self._copier.copy,
                    led.files_of(step),
                    store.place,
                    led.state.epoch,
                    manifest.epochs,
                    lambda calls: self._asks(led, PART_S if calls else None),
                )
            case Commit():
                return partial(self._commit, store, manifest, led.state.epoch, step)
            case Sweep():
                return partial(_sweep, store, step)

    def _load(self, store: ManifestStore) -> Manifest:
        manifest = store.load()
        if manifest.next_number == 0:
            self._is_there()  # what looks empty may not be mounted
        return manifest

    def _commit(self, store: ManifestStore, manifest: Manifest, epoch: int, step: Commit) -> Manifest:
        self._storage.probe()  # the store may have been away when the broker started
        self._on_step("commit")
        after = store.commit(manifest, epoch, self._broker_id, step.change)
        self._on_step("committed")
        return after

    def _end(self, led: _LedArchive, step: Step, result: Any) -> None:
        state = led.state
        match step:
            case Load():
                state.loaded(result, self._clock.monotonic())
            case Begin():
                if self._led.get(led.tp) is led and state.must_begin(led):
                    led.log.begin_after_archive(result)
                state.begun()
            case Copy():
                led.metrics.remote_copy_bytes += result.size
                led.metrics.remote_copy_requests += 1
                state.copied(result, self._clock.monotonic())
            case Commit():
                state.committed(result, self._clock.monotonic())
            case Sweep():
                led.metrics.remote_delete_requests += result
                state.swept()

    def _count_failure(self, led: _LedArchive, step: Step) -> None:
        if isinstance(step, Sweep):
            led.metrics.remote_delete_errors += 1
        else:
            led.metrics.remote_copy_errors += 1

    def _tell(self, led: _LedArchive) -> None:
        """Log a problem once, and its end."""
        problem, asked = led.state.problem, led.asked
        if not problem and asked is not None and self._clock.monotonic() > asked[1]:
            problem = "the store does not answer"
        if problem and problem != led.told:
            logger.warning("the archive of %s does not go on: %s", led.tp, problem)
        elif led.told and not problem and led.state.is_ready:
            logger.info("the archive of %s goes on", led.tp)
        elif not problem:
            return
        led.told = problem

    # --- what the log knows

    def _show(self, hosted: _HostedArchive, manifest: Manifest | None) -> None:
        """Let the log read from what the manifest names."""
        log = hosted.log
        if manifest is None or not log.config.remote_storage_enable:
            return
        if hosted.archived is None:
            hosted.archived = self._read(hosted.store.place, manifest, hosted.metrics)
        hosted.archived.manifest = manifest
        log.archived = hosted.archived
        try:
            log.follow_archive(manifest.start if manifest.next_number else None)
        except BrokerError as error:
            logger.error("%s: %s", hosted.tp, error)

    # --- partitions that this broker follows

    def _refresh(self, follower: _FollowedArchive) -> None:
        log, now = follower.log, self._clock.monotonic()
        if not log.config.remote_storage_enable or follower.is_busy or now < follower.next_at or self._stop.is_set():
            return
        known = follower.archived if log.archived is not None else None
        if known is not None and log.told_archived_end <= known.manifest.end:
            return
        follower.is_busy, follower.next_at = True, now + REFRESH_S
        self._tasks.begin(f"reading the archive of {follower.tp}", self._reload(follower))

    async def _reload(self, follower: _FollowedArchive) -> None:
        try:
            call = partial(follower.store.refresh, follower.manifest)
            manifest = await asyncio.get_running_loop().run_in_executor(self._calls, call)
        except Exception as error:
            logger.warning("the archive of %s cannot be read: %s", follower.tp, _shown(error))
            return
        finally:
            follower.is_busy = False
        follower.manifest = manifest
        if self._followed.get(follower.tp) is not follower:
            return
        if manifest.epoch >= follower.epoch:
            self._show(follower, manifest)
        else:  # before its leader has written, records may be named that it truncates
            follower.next_at = self._clock.monotonic() + UNFENCED_S


def _has_archive(log: Log) -> bool:
    """Whether the topic has an archive, or had one that is to be deleted."""
    return log.config.remote_storage_enable or log.config.remote_log_delete_on_disable


def _producers(saved: Callable[[], bytes], rebuilt: Callable[[], Iterable[Any] | None]) -> bytes:
    """The producers' state at the end of a segment: as it was saved, or found in the log.

    Raises OSError, and CopyFailed where neither tells it now.
    """
    with suppress(FileNotFoundError, ValueError):
        decode_snapshot(data := saved(), 0)
        return data
    states = rebuilt()
    if states is None:
        raise CopyFailed("the log does not say now what its idempotent producers had done at the end of the segment")
    return encode_snapshot(states)


def _sweep(store: ManifestStore, step: Sweep) -> int:
    """Delete what a sweep takes; returns how many objects."""
    deleted = 0
    for file in store.storage.names(store.place.directory):
        name = file.partition(".")[0]
        if is_object_name(name) and step.takes(name):
            store.storage.remove(f"{store.place.directory}/{file}")
            deleted += 1
    return deleted


def _shown(error: BaseException) -> str:
    return text_without_secrets(str(error)) or type(error).__name__
