"""Runs one load after the other until it is stopped: when the next load starts, and what happens in an outage.

`LoadLoop` is an iterator of the results of `run`, which makes one load. spark_connector/watch.py (Python) and
cli/service.py (the console) use it and add Spark and signals. A load can be cancelled before it writes, and a failed
load leaves nothing behind, so an outage never loses or doubles a record.

A `retriable` error (brokers, ZooKeeper, HDFS or Spark's tasks do not answer, a full disk) is an outage: `on_outage` is
called for each attempt, and the delay before the next one grows. Any other error ends the loop: ConfigError, DataLoss,
OffsetConflict (another process loads for this group), a refused login, a missing right, a damaged commit log.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

from broker.errors import ConfigError, PykafkaError
from spark_connector.loads.record import LoadRecord, LoadResult

DEFAULT_INTERVAL = 30.0
"""Seconds from the start of a load to the start of the next."""

_FIRST_DELAY = 1.0  # seconds after the first failure
_LONGEST_DELAY = 30.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Phase = Callable[[str, LoadRecord | None], None]
"""Called when a load enters a phase (repair, plan, write, commit, done), with the load as soon as it is planned."""


class Stopped(PykafkaError):
    """A load was cancelled before it wrote anything, because the loop was stopped."""


@dataclass(frozen=True)
class Outage:
    """A load failed and is retried in `delay` seconds. A `delay` of None: the outage is over, after `failures`."""

    error: PykafkaError
    failures: int
    delay: float | None


@dataclass
class LoadLoop:
    """Iterate over it in the thread that loads; `stop.set()` in another thread ends it soon.

    Gives the result of every load that loaded or recovered something. After `stop.set()` no load starts to write, a
    load that is writing is cancelled if `run` fails because of it, and a load that is committing is finished.

    `interval`: seconds. After a load of `max_records`, its limit, the next load starts at once. `max_loads`: end after
    this number of loads with new records. Raises ConfigError.
    """

    run: Callable[[Phase], LoadResult]
    _: KW_ONLY
    stop: threading.Event
    interval: float = DEFAULT_INTERVAL
    max_loads: int | None = None
    max_records: int | None = None
    on_outage: Callable[[Outage], None] = lambda outage: None
    on_phase: Phase = lambda phase, record: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise ConfigError(f"interval must be more than 0 seconds, not {self.interval:g}")
        if self.max_loads is not None and self.max_loads < 1:
            raise ConfigError(f"max_loads must be at least 1, not {self.max_loads}")
        self._failures = 0
        self._last_error: PykafkaError | None = None

    def __iter__(self) -> Iterator[LoadResult]:
        """Ends when it is stopped or after `max_loads`. Raises errors that are not retriable."""
        loads = 0
        while not self.stop.is_set():
            started = self.clock()
            result = self._load_once()
            if result is None:
                continue  # an outage, or stopped
            if result.load_id is not None or result.recovered:
                yield result
            loads += result.load_id is not None
            if self.max_loads is not None and loads >= self.max_loads:
                return
            taken = sum(range.size for range in result.ranges)
            if self.max_records is None or taken < self.max_records:
                self.on_phase("wait", None)
                self.stop.wait(max(0.0, started + self.interval - self.clock()))

    def _load_once(self) -> LoadResult | None:
        try:
            result = self.run(self._phase)
        except Stopped:
            return None
        except PykafkaError as error:
            if self.stop.is_set():
                return None  # it was cancelled and has left nothing behind
            if not error.retriable:
                raise
            self._wait_out(error)
            return None
        if self._last_error is not None:
            self.on_outage(Outage(self._last_error, self._failures, None))
        self._failures, self._last_error = 0, None
        return result

    def _wait_out(self, error: PykafkaError) -> None:
        """Double the delay from try to try. Only one process loads for a group, so the delay needs no jitter."""
        delay = min(_FIRST_DELAY * 2 ** min(self._failures, 10), _LONGEST_DELAY)
        self._failures, self._last_error = self._failures + 1, error
        self.on_outage(Outage(error, self._failures, delay))
        self.stop.wait(delay)

    def _phase(self, phase: str, record: LoadRecord | None) -> None:
        if phase == "write" and self.stop.is_set():
            raise Stopped("stopped before anything was written")
        self.on_phase(phase, record)


def parse_interval(text: str, what: str = "interval (--interval)", *, least: float = 1e-9) -> float:
    """`30s`, `5m`, `500ms`, `1h`, or a plain number of seconds. Raises ConfigError, naming the option `what`."""
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.strip().endswith(unit)), "")
    with contextlib.suppress(ValueError):
        seconds = float(text.strip().removesuffix(unit)) * _UNITS.get(unit, 1.0)
        if least <= seconds < float("inf"):
            return seconds
    raise ConfigError(f"{what} must be like 30s, 500ms, 5m or 1h, not '{text}'")
