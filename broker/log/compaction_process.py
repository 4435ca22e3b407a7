"""Compaction in another process, as seen from the broker.

Owned by cleaner.py. Work on single records is Python, and a thread that does it would take the interpreter from the
event loop for milliseconds at a time; a process of low priority takes what is left of the machine, and its memory goes
with it. It is started with the first plan and ended when there is nothing more to do.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from broker.log.compaction_plan import Compacted, CompactionPlan, CompactionResult

__all__ = ["CompactionProcess", "Compactor"]

_WORKER = "broker.log.compaction_worker"
_ROOT = Path(__file__).resolve().parents[2]


class Compactor(Protocol):
    """Who carries out plans. `compact` blocks between what it yields; it is called in a worker thread."""

    def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
        """Every segment that is ready, then the result. Raises OSError and CorruptBatch."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether `rest` would free anything."""
        ...

    def rest(self) -> None:
        """Nothing more is to be done for now. Called when no compaction runs; may block."""
        ...

    def close(self) -> None:
        """End what runs, and take no more plans. May be called from any thread."""
        ...


class CompactionProcess:
    """One worker process at most."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
        """See `Compactor`."""
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
        """See `Compactor`."""
        return self._process is not None

    def rest(self) -> None:
        """See `Compactor`; the next plan starts another process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def close(self) -> None:
        """See `Compactor`."""
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
                # Of its own process group: a Ctrl-C in the terminal is the broker's, which then ends it.
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
