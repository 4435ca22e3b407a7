"""Chunks of archived segments as files of this machine, and the threads that download them.

One cache serves all partitions of a broker; archived_read.py asks it. A chunk that is missing is downloaded once,
however many readers ask for it, is checked as a whole (chunk_index.py), and only then becomes a file, from which
`sendfile` serves it. The promises:

- The event loop never waits: `find` and `fetch` look at the memory only.
- The files never hold more than `max_bytes` (A10): room is made before a download begins, and one that finds no room
  waits. Only a chunk larger than that is taken nevertheless, alone.
- What was downloaded for a reader stays until he has read it to its end, or has not come back for `UNUSED_S`. So many
  readers at once cannot take each other's chunks away before anybody has read them.
- At most `threads` chunks are in memory, those that are being downloaded.
- What takes no room comes first: a reader may need it before it gives back the room of its chunk.
- Then come the chunks that somebody waits for. Those ahead of a reader are fetched only while a thread is idle.

Files of an earlier process are deleted at the start. A file that vanishes, shrinks or cannot be read is downloaded
again. Safe to call from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from broker.archive.chunk_index import Chunk, ChunkIndex, index_chunk
from broker.clock import Clock
from broker.errors import BrokerError, ConfigError, CorruptBatch, ErrorCode
from broker.log.download import Download
from broker.log.segment_file import ColdRead, SegmentFile
from broker.metrics import TopicMetrics
from broker.storage.url_secrets import text_without_secrets

logger = logging.getLogger(__name__)

UNUSED_S: Final = 10.0
"""A chunk that nobody has asked for since may go, although nobody has read it to its end."""
FORGOTTEN_S: Final = 40.0
"""A chunk that waits for its download, and that nobody has asked for since, is not downloaded."""
FIRST_RETRY_S: Final = 1.0
"""After a failure readers get the error at once, and the next one after this time tries again. Doubles each time."""
LAST_RETRY_S: Final = 60.0
_MOST_FAILURES = 10_000
_FILE = re.compile(r"[0-9]+\.chunk", re.ASCII)


class RangeStore(Protocol):
    """A `Storage`, as far as it is needed here."""

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Those bytes of an object, fewer where it ends. Blocks. Raises whatever a store raises."""


Key = tuple[str | int, ...]
"""Begins with the path of the object."""


class StoreRead(ColdRead):
    """A read has to wait for the archive's store, which is being asked. Repeat it when `download` is done."""

    download: Download

    def __init__(self, download: Download) -> None:
        self.download = download

    def warm(self) -> None:
        self.download.wait()


@dataclass(slots=True)
class CachedChunk:
    chunk: Chunk
    path: Path
    index: ChunkIndex
    used_s: float
    is_finished: bool = False
    """Whether a reader has got its last byte."""

    def open(self) -> ChunkFile | None:
        """Its file; None if it is not there any more as a whole. Raises OSError."""
        try:
            file = ChunkFile(self)
        except FileNotFoundError:
            return None
        return file if os.fstat(file.fileno()).st_size == self.chunk.length else None


class ChunkFile(SegmentFile):
    """The file of a chunk. Whoever sends from it keeps it, also when the cache has deleted it."""

    __slots__ = ("cached",)

    def __init__(self, cached: CachedChunk) -> None:
        super().__init__(cached.path, writable=False)
        self.cached = cached

    def failed(self, position: int, error: OSError) -> None:
        """What this disk cannot read is downloaded again."""
        self.cached.path.unlink(missing_ok=True)


@dataclass(slots=True)
class _Task:
    key: Key
    size: int
    """Bytes of the cache that it needs."""
    work: Callable[[], None]
    asked_s: float
    is_ahead: bool
    metrics: TopicMetrics
    is_running: bool = False
    done: Download = field(default_factory=Download)


@dataclass(slots=True)
class _Failure:
    reason: str
    pause_s: float
    retry_at_s: float


class ChunkCache:
    def __init__(self, directory: Path, store: RangeStore, *, max_bytes: int, threads: int, clock: Clock) -> None:
        """Empties `directory`, which is this cache's alone. Raises ConfigError if it cannot be used."""
        self._directory = directory
        self._store = store
        self._max_bytes = max_bytes
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: OrderedDict[Key, CachedChunk] = OrderedDict()
        """The least recently used is the first."""
        self._size = 0
        """Bytes of the files, with those that are being downloaded."""
        self._finished = 0
        """How many of them a reader has read to the end."""
        self._tasks: dict[Key, _Task] = {}
        self._small: deque[_Task] = deque()
        """Tasks that need no room."""
        self._waiting: deque[_Task] = deque()
        self._ahead: deque[_Task] = deque()
        self._workers = 0
        self._failures: OrderedDict[Key, _Failure] = OrderedDict()
        self._next_file = 0
        self._is_closed = False
        self.downloads = 0
        """Since the start."""
        _empty(directory)

    @property
    def size(self) -> int:
        """Bytes that the files take, with those that are being downloaded."""
        return self._size

    @property
    def waiting(self) -> int:
        """Reads of the store that wait for a thread or for room."""
        return len(self._small) + len(self._waiting)

    # --- for readers; the store is asked on account of the topic with these `metrics`

    def find(self, chunk: Chunk) -> CachedChunk | None:
        """The chunk if it is on this disk. Raises BrokerError `kafka_storage_error` if a download failed just now."""
        key = chunk.key
        with self._lock:
            found = self._cached.get(key)
            if found is not None:
                self._cached.move_to_end(key)
                found.used_s = self._clock.monotonic()
                return found
            self._raise_failure(key)
        return None

    def fetch(self, chunk: Chunk, metrics: TopicMetrics) -> Download:
        """Begin to download a chunk, or join its download. When it ends it is worth looking again."""
        return self._ask(chunk.key, chunk.length, lambda: self._download(chunk, metrics), metrics)

    def fetch_ahead(self, chunk: Chunk, metrics: TopicMetrics) -> None:
        """Download a chunk that nobody has asked for yet, if a thread has nothing else to do."""
        key = chunk.key
        with self._lock:
            is_idle = not self.waiting and len(self._ahead) < self._threads
            if is_idle and key not in self._cached and key not in self._tasks and key not in self._failures:
                now = self._clock.monotonic()
                self._add(_Task(key, chunk.length, lambda: self._download(chunk, metrics), now, True, metrics))

    def run(self, key: Key, work: Callable[[], None], metrics: TopicMetrics) -> Download:
        """Run other work that asks the store in these threads, once for all that ask. `work` keeps its result.

        Raises BrokerError `kafka_storage_error` if it failed just now.
        """
        with self._lock:
            self._raise_failure(key)
        return self._ask(key, 0, work, metrics)

    def finish(self, cached: CachedChunk) -> None:
        """A reader has got the last byte of a chunk: it may give way to others."""
        with self._lock:
            if not cached.is_finished:
                cached.is_finished = True
                self._finished += self._cached.get(cached.chunk.key) is cached
                self._employ()

    def drop(self, cached: CachedChunk, error: Exception | None = None) -> None:
        """Forget a chunk of which this disk does not have what was written, and delete its file. With an `error` its
        readers get that, before it is downloaded again."""
        with self._lock:
            if self._cached.get(cached.chunk.key) is cached:
                self._forget(cached)
                with contextlib.suppress(OSError):
                    cached.path.unlink(missing_ok=True)
                if error is not None:
                    self._note_failure(cached.chunk.key, error)
                self._employ()

    def close(self) -> None:
        """Begin nothing more, and delete the files. Downloads that are under way are not waited for."""
        with self._lock:
            self._is_closed = True
            tasks, self._tasks = list(self._tasks.values()), {}
            for queue in (self._small, self._waiting, self._ahead):
                queue.clear()
        for task in tasks:
            if not task.is_running:
                task.done.end()
        with contextlib.suppress(OSError):
            _empty(self._directory)

    # --- the queue; the lock is held

    def _ask(self, key: Key, size: int, work: Callable[[], None], metrics: TopicMetrics) -> Download:
        with self._lock:
            now, task = self._clock.monotonic(), self._tasks.get(key)
            if task is None:
                task = _Task(key, size, work, now, is_ahead=False, metrics=metrics)
                if key in self._cached:  # it came after the caller has looked
                    task.done.end()
                    return task.done
                self._add(task)
            elif task.is_ahead and not task.is_running:
                task.is_ahead = False
                self._waiting.append(task)
            task.asked_s = now
            self._employ()  # a chunk may have become unused
            return task.done

    def _add(self, task: _Task) -> None:
        if self._is_closed:
            task.done.end()
            return
        self._tasks[task.key] = task
        (self._ahead if task.is_ahead else self._waiting if task.size else self._small).append(task)
        self._employ()

    def _employ(self) -> None:
        """Begin the next task, if a thread and room are free for it. The threads end when there is nothing to do."""
        if self._workers < self._threads and (taken := self._take()) is not None:
            self._workers += 1
            threading.Thread(target=self._work, args=taken, name="archive-read", daemon=True).start()

    def _take(self) -> tuple[_Task, list[CachedChunk]] | None:
        """The next task, which has its room now, and the chunks to delete for it; None if there is none with room."""
        now = self._clock.monotonic()
        while not self._is_closed and (queue := self._small or self._waiting or self._ahead):
            task = queue[0]
            if task.is_running or task.done.has_ended or task.is_ahead is not (queue is self._ahead):
                queue.popleft()  # it was asked for since it was fetched ahead, and is in the other queue, too
            elif not task.is_ahead and now - task.asked_s > FORGOTTEN_S:
                queue.popleft()
                del self._tasks[task.key]
                task.done.end()
            elif (deleted := self._make_room(task.size, now)) is not None:
                queue.popleft()
                task.is_running = True
                task.metrics.remote_fetch_requests += 1
                return task, deleted
            elif task.is_ahead:
                queue.popleft()
                del self._tasks[task.key]
                task.done.end()
            else:
                return None
        return None

    def _make_room(self, size: int, now: float) -> list[CachedChunk] | None:
        """Take `size` bytes of the cache, and give the chunks that must be deleted for them; None if they must stay."""
        missing, deleted, finished = self._size + size - self._max_bytes, [], self._finished
        if size and missing > 0:
            for cached in self._cached.values():
                if not finished and now - cached.used_s <= UNUSED_S:
                    break  # so are all that follow
                finished -= cached.is_finished
                if cached.is_finished or now - cached.used_s > UNUSED_S:
                    deleted.append(cached)
                    missing -= cached.chunk.length
                    if missing <= 0:
                        break
            if missing > 0 and self._size > sum(cached.chunk.length for cached in deleted):
                return None
        for cached in deleted:
            self._forget(cached)
        self._size += size
        return deleted

    def _forget(self, cached: CachedChunk) -> None:
        del self._cached[cached.chunk.key]
        self._size -= cached.chunk.length
        self._finished -= cached.is_finished

    def _raise_failure(self, key: Key) -> None:
        failure = self._failures.get(key)
        if failure is not None and self._clock.monotonic() < failure.retry_at_s:
            raise BrokerError(ErrorCode.kafka_storage_error, failure.reason)

    # --- in the threads

    def _work(self, task: _Task, deleted: list[CachedChunk]) -> None:
        while True:
            for cached in deleted:
                cached.path.unlink(missing_ok=True)
            self._run(task)
            with self._lock:
                taken = self._take()
                if taken is None:
                    self._workers -= 1
                    return
            task, deleted = taken

    def _run(self, task: _Task) -> None:
        failed: Exception | None = None
        try:
            task.work()
        except Exception as error:  # of whatever library is behind the store
            failed = error
        with self._lock:
            if failed is None:
                self._failures.pop(task.key, None)
            else:
                self._size -= task.size
                task.metrics.remote_fetch_errors += 1
                self._note_failure(task.key, failed)
            self._tasks.pop(task.key, None)
        task.done.end()

    def _download(self, chunk: Chunk, metrics: TopicMetrics) -> None:
        data = self._store.read_range(chunk.path, chunk.position, chunk.position + chunk.length)
        with self._lock:
            self.downloads += 1
            metrics.remote_fetch_bytes += len(data)
        index = index_chunk(chunk, data)
        with self._lock:
            self._next_file += 1
            path = self._directory / f"{self._next_file}.chunk"
        try:
            path.write_bytes(data)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OSError(f"cannot write to archive.cache.dir {self._directory}: {error.strerror}") from error
        with self._lock:
            self._cached[chunk.key] = CachedChunk(chunk, path, index, self._clock.monotonic())

    def _note_failure(self, key: Key, error: Exception) -> None:
        """Log it, but not each time again."""
        before = self._failures.pop(key, None)
        reason = error.message if isinstance(error, BrokerError) else text_without_secrets(f"{error}" or repr(error))
        if isinstance(error, FileNotFoundError):
            reason = "the object is missing"
        text = f"archived object {key[0]}: {reason}"
        if before is None or before.reason != text:
            kind = "is damaged" if isinstance(error, CorruptBatch) else "cannot be read"
            logger.error("%s (it %s; fetches of it get KAFKA_STORAGE_ERROR)", text, kind)
        pause = FIRST_RETRY_S if before is None else min(2 * before.pause_s, LAST_RETRY_S)
        self._failures[key] = _Failure(text, pause, self._clock.monotonic() + pause)
        if len(self._failures) > _MOST_FAILURES:
            self._failures.popitem(last=False)


def _empty(directory: Path) -> None:
    """Delete the files of an earlier process, and no others."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(directory):
            if _FILE.fullmatch(entry.name):
                os.unlink(entry.path)
    except OSError as error:
        raise ConfigError(f"archive.cache.dir: cannot use {directory}: {error.strerror}; name another one") from error
