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
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.support.soak_readers import Copier, GroupReader, Visitors

# --- The producers of the soak test: each writes as fast as it can until it is given a rate, and counts what it wrote.
# Run by soak_load.py, one thread each. Every kind of producer a broker meets is there: plain, idempotent,
# transactional (with aborts), and one that writes few keys again and again, with tombstones, to a compacted topic.

VALUE_BYTES, KEYED_VALUE_BYTES = 4096, 1024
AT_ONCE = 50  # records per look at the clock
KEYS = 5_000  # of the compacted topic
ABORTED_SHARE, TOMBSTONE_SHARE = 0.1, 0.05
BUFFER_KIB = 8_192  # a producer's queue: small, so that a peak is what the broker takes and not what is buffered
PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # what an abort finds unsent


class TokenBucket:
    """Lets `rate` records per second through, and all there are while `rate` is None. Used by one thread."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._due = time.monotonic()

    def take(self, records: int) -> None:
        """Return when they may be sent. What was not used for a second is gone: no burst makes up for a pause."""
        if self.rate is None:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 1.0) + records / self.rate
        if self._due > now:
            time.sleep(self._due - now)


class Writer:
    """Writes to one topic until `ending` is set, then waits for what is under way. Pauses while `is_far_ahead()`."""

    value_bytes = VALUE_BYTES

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        ending: threading.Event,
        is_far_ahead: Callable[[], bool] = lambda: False,
        **settings: object,
    ) -> None:
        self.name = name
        self._is_far_ahead = is_far_ahead
        self.bucket = TokenBucket()
        self.sent = 0
        self.held_s = 0.0
        """Seconds it paused for its readers since it was given a rate: what they would have been behind otherwise."""
        self.failures: list[str] = []
        self._topic = topic
        self._ending = ending
        self._dice = random.Random(name)
        self._value = self._dice.randbytes(self.value_bytes)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "linger.ms": 10,
                "queue.buffering.max.kbytes": BUFFER_KIB,
                "delivery.report.only.error": True,
                "on_delivery": self._failed,
                **settings,
            }
        )

    @property
    def delivered(self) -> int:
        """Records that the broker has; those of a transaction under way are counted."""
        return self.sent - len(self._producer) - len(self.failures)

    def run(self) -> None:
        self.prepare()
        while not self._ending.is_set():
            if self._is_far_ahead():
                self._hold()
                continue
            self.bucket.take(AT_ONCE)
            self.write()
            self._producer.poll(0)
        left = self._producer.flush(60)
        assert left == 0, f"{self.name}: {left} records were not acknowledged within 60 s"

    def _hold(self) -> None:
        began = time.monotonic()
        self._ending.wait(0.01)
        if self.bucket.rate is not None:
            self.held_s += time.monotonic() - began

    def prepare(self) -> None:
        pass

    def write(self) -> None:
        """`AT_ONCE` records."""
        for _ in range(AT_ONCE):
            self.send(None, self._value)

    def send(self, key: bytes | None, value: bytes | None) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key)
                break
            except BufferError:
                self._producer.poll(0.01)
        self.sent += 1

    def _failed(self, error: KafkaError | None, _: object) -> None:
        if error is not None and error.code() not in PURGED:
            self.failures.append(str(error))


class KeyedWriter(Writer):
    """The same keys again and again."""

    value_bytes = KEYED_VALUE_BYTES

    def write(self) -> None:
        for _ in range(AT_ONCE):
            key = b"key-%d" % self._dice.randrange(KEYS)
            self.send(key, None if self._dice.random() < TOMBSTONE_SHARE else self._value)


class TransactionalWriter(Writer):
    """A transaction of `AT_ONCE` records at a time, each tenth aborted; only committed ones count as sent."""

    value_bytes = KEYED_VALUE_BYTES

    def prepare(self) -> None:
        self._producer.init_transactions(30)

    def write(self) -> None:
        before = self.sent
        try:
            self._producer.begin_transaction()
            for number in range(AT_ONCE):
                self.send(b"key-%d" % (number % 10), self._value)
            if self._dice.random() < ABORTED_SHARE:
                self._producer.abort_transaction(30)
                self.sent = before
            else:
                self._producer.commit_transaction(30)
        except KafkaException as failure:
            self.failures.append(str(failure))
            self._producer.abort_transaction(30)
            self.sent = before


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
