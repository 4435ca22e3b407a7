"""The load of the soak test, in a process of its own: `python -m tests.support.soak_load BOOTSTRAP PEAK_S SHARE MOST`.

All producers first write as fast as they can for PEAK_S seconds; from then on each keeps to SHARE of what it reached,
or to less: all together to MOST MB/s.
Those of the plain topic pause while its readers are too far behind, and say for how long.
A line of JSON per second tells the state: phase (`peak`, `steady`, `ended`), MB/s asked for, records by client,
failures. On its standard input the word `drain` ends the writers and those who come and go, `end` (or the end of the
input) the readers too. tests/faults/test_soak.py starts it through `SoakLoad`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from tests.support.soak_readers import Copier, GroupReader, Visitors
from tests.support.soak_writers import KeyedWriter, TransactionalWriter, Writer

PLAIN, TRANSACTIONAL, COPIES, COMPACTED = "plain", "transactional", "copies", "compacted"
COMMITTED_ONLY = {"isolation.level": "read_committed"}
THREADS = 32
JOIN_S = 90
MOST_BEHIND = 38_000
"""Records that writers may be ahead of who reads the plain topic: what retention leaves of one partition. A reader that
gets no core would lose what is beyond, whatever the broker does; and a peak that nobody follows is none."""
LEAST_RATE = 2_000.0
"""Records per second of a writer that the others leave little at the peak: transactions wait for answers, 40 times a
second at this rate."""


class SoakLoad:
    """Starts the process and holds what it said last."""

    def __init__(self, bootstrap: str, peak_s: float, share: float, log: Path, *, most_mb_s: float = math.inf) -> None:
        numbers = [str(number) for number in (peak_s, share, most_mb_s)]
        command = [sys.executable, "-m", "tests.support.soak_load", bootstrap, *numbers]
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self.process = psutil.Process(self._process.pid)
        self.state: dict[str, Any] = {"phase": "starting"}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.state = json.loads(line)

    @property
    def phase(self) -> str:
        assert self._process.poll() in (None, 0), self._log.read_text()[-3000:]
        return str(self.state["phase"])

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """After `end`: until the process is gone and all it said is read."""
        assert self._process.wait(JOIN_S) == 0, self._log.read_text()[-3000:]
        self._listener.join(JOIN_S)
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class _Load:
    """All clients and their threads."""

    def __init__(self, bootstrap: str) -> None:
        self.draining, self.ending = threading.Event(), threading.Event()
        settings: dict[str, Any] = {"enable.idempotence": True}
        transactional: dict[str, Any] = {"transactional.id": "t"}
        self.writers: list[Writer] = [
            Writer("plain", bootstrap, PLAIN, self.draining, self._is_far_ahead, acks=1),
            Writer("idempotent", bootstrap, PLAIN, self.draining, self._is_far_ahead, **settings),
            KeyedWriter("keyed", bootstrap, COMPACTED, self.draining, **settings),
            TransactionalWriter("in-transactions", bootstrap, TRANSACTIONAL, self.draining, **transactional),
        ]
        self.readers: list[GroupReader | Copier] = [
            GroupReader("reader-1", bootstrap, PLAIN, "readers", self.ending),
            GroupReader("reader-2", bootstrap, PLAIN, "readers", self.ending),
            GroupReader("committed-1", bootstrap, TRANSACTIONAL, "committed", self.ending, **COMMITTED_ONLY),
            GroupReader("keyed-1", bootstrap, COMPACTED, "keyed", self.ending),
            Copier("copier", bootstrap, TRANSACTIONAL, COPIES, self.ending),
        ]
        self.visitors = Visitors(bootstrap, PLAIN, TRANSACTIONAL, self.draining)
        self.phase = "peak"
        self._pool = ThreadPoolExecutor(THREADS)
        self._leaving: list[Future[None]] = []
        self._staying: list[Future[None]] = []

    def _is_far_ahead(self) -> bool:
        written, read = self.writers[:2], self.readers[:2]
        return sum(writer.sent for writer in written) - sum(reader.read for reader in read) > MOST_BEHIND

    def start(self) -> None:
        """The readers first: what is written before they have joined would count as the peak's."""
        self._staying = [self._pool.submit(reader.run) for reader in self.readers]
        for reader in self.readers:
            assert reader.joined.wait(JOIN_S), f"{reader.name} has not joined its group"
        self._leaving = [self._pool.submit(writer.run) for writer in self.writers]

    def hold(self, peak_s: float, share: float, most_mb_s: float) -> None:
        """End the peak: every writer keeps to `share` of its own from here on; now visitors come and go as well."""
        peak_mb_s = sum(writer.delivered * writer.value_bytes for writer in self.writers) / peak_s / 1e6
        share = min(share, most_mb_s / max(peak_mb_s, 1))
        for writer in self.writers:
            writer.bucket.rate = max(share * writer.delivered / peak_s, LEAST_RATE)
        self._leaving += [self._pool.submit(self.visitors.run, kind) for kind in self.visitors.kinds]
        self.phase = "steady"

    def drain(self) -> None:
        self.draining.set()
        for future in self._leaving:
            future.result(JOIN_S)
        self.phase = "drained"

    def end(self) -> None:
        self.ending.set()
        for future in self._staying:
            future.result(JOIN_S)
        self._pool.shutdown()
        self.phase = "ended"

    def failed(self) -> BaseException | None:
        """What ended a client before its time."""
        done = (future for future in (*self._leaving, *self._staying) if future.done())
        return next((failure for future in done if (failure := future.exception())), None)

    def say(self) -> None:
        target = sum((writer.bucket.rate or 0.0) * writer.value_bytes for writer in self.writers)
        failures = [f"{c.name}: {text}" for c in (*self.writers, *self.readers) for text in c.failures[-3:]]
        state = {
            "phase": self.phase,
            "target_mb_s": round(target / 1e6, 2),
            "sent": {writer.name: writer.sent for writer in self.writers},
            "read": {reader.name: reader.read for reader in self.readers},
            "held_s": {writer.name: round(writer.held_s, 1) for writer in self.writers},
            "visits": dict(self.visitors.visits),
            "failures": failures,
        }
        print(json.dumps(state), flush=True)


def main() -> None:
    bootstrap, peak_s, share, most_mb_s = sys.argv[1], *map(float, sys.argv[2:])
    load = _Load(bootstrap)
    load.start()
    load.say()
    time.sleep(peak_s)
    load.hold(peak_s, share, most_mb_s)
    told = threading.Thread(target=_obey, args=(load,), daemon=True)
    told.start()
    while told.is_alive():
        load.say()
        told.join(1.0)
        if (failure := load.failed()) is not None:
            load.draining.set()
            load.ending.set()
            raise failure
    load.say()


def _obey(load: _Load) -> None:
    for line in sys.stdin:
        if line.strip() == "drain":
            load.drain()
        else:
            break
    load.draining.set()
    load.end()


if __name__ == "__main__":
    main()
