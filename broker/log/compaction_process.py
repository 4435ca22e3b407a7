"""Compaction in another process, as seen from the broker: the plan it gets, the results it sends, and the process.

Used by cleaner.py. Work on single records is Python code, and a thread that runs it would block the event loop for
milliseconds at a time. A process of low priority uses idle CPU, and its memory is freed when it ends. It starts with
the first plan and ends when there is nothing more to compact. Plans and results are pickled. A plan is a snapshot: if
the log loses segments meanwhile, the compacted ones are thrown away.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from broker.log.segment_swap import CLEANED_SUFFIX
from broker.records.aborted_entries import AbortedEntry

_WORKER = "broker.log.compaction"
_ROOT = Path(__file__).resolve().parents[2]


class CompactionProcess:
    """Carries out plans in at most one worker process. Tests replace it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
        """Yield every segment that is ready, then the result. Blocks. Raises OSError and CorruptBatch."""
        import pickle

        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(plan, process.stdin)
            process.stdin.flush()
            while True:
                answer = pickle.load(process.stdout)
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                if isinstance(answer, CompactionResult):
                    return
        except (EOFError, ValueError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise OSError(f"the compaction process ended: {error}") from error

    @property
    def is_running(self) -> bool:
        """Whether `rest` would end a process."""
        return self._process is not None

    def rest(self) -> None:
        """End the process, because there is nothing to compact for now. Called when no compaction runs; may block."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def close(self) -> None:
        """Stop a running compaction and take no more plans. Any thread may call this."""
        self._is_closed = True
        self.rest()

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise OSError("closed")
            if self._process is not None and self._process.poll() is not None:
                _end(self._process)
                self._process = None
            if self._process is None:
                # In a process group of its own: a Ctrl-C in the terminal reaches the broker, which then ends it.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _WORKER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=_ROOT,
                    process_group=0,
                )
            return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            try:
                stream.close()
            except OSError:
                pass


class PlannedSegment(NamedTuple):
    """A closed segment: all its batches are in the first `size` bytes of its file."""

    base_offset: int
    size: int


class LastOfProducer(NamedTuple):
    """The batch that must stay so that a producer's epoch and sequence survive: the one that ends at `last_offset`.

    None means that the producer wrote only markers; then its markers of `epoch` stay.
    """

    last_offset: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Everything a compaction of one log needs. Times in ms, sizes in bytes."""

    directory: Path
    segments: tuple[PlannedSegment, ...]
    """From the log's first segment to the last that may be cleaned."""
    first_dirty_offset: int
    """Where the last compaction ended; keys are collected from here on."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval: int
    producers: dict[int, LastOfProducer] = field(default_factory=dict)
    aborted: tuple[AbortedEntry, ...] = ()
    """The aborted transactions with records in the segments."""
    map_bytes: int = 128 << 20
    """Memory for the keys of the dirty part; when it is full, the next run compacts the rest."""
    bytes_per_second: float = float("inf")
    """Limit on reads and writes together."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Makes the directory's name unique, so that files of an orphaned worker are never taken for a later run's."""

    @property
    def cleaned_directory(self) -> Path:
        return self.directory / f"compaction-{self.token}{CLEANED_SUFFIX}"


class Compacted(NamedTuple):
    """The segments [first, end) of a plan, rewritten into one of `size` bytes.

    It is in the plan's `cleaned_directory`, synced, under the base offset of the first segment.
    """

    first: int
    end: int
    base_offset: int
    size: int


class CompactionResult(NamedTuple):
    """The outcome of a compaction: the log is clean before `clean_offset`."""

    clean_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
