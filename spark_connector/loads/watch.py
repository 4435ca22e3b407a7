"""Loads one after the other, for as long as nobody says stop: when the next is due, and what to do about an outage.

`Watch` is an iterator of what `run` returns; `run` makes one load. Used by spark_connector/watch.py (Python) and
cli/watch.py (the console), which add Spark and signals. Nothing of a load is known here but that it may be broken off
before it writes, and that a load which failed has left nothing behind: so an outage loses and doubles nothing, whatever
it hits.

An error that may heal (`retriable`: brokers, ZooKeeper, HDFS or Spark's tasks out of reach, a full disk) is an outage:
`on_outage` hears of each attempt, and the next one waits longer each time. Any other ends the service: ConfigError,
DataLoss, OffsetConflict (somebody else loads for this group), a login that was refused, a right that is missing, a log
that makes no sense.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from broker.errors import ConfigError, PykafkaError
from spark_connector.loads.record import LoadRange, LoadRecord

__all__ = ["DEFAULT_INTERVAL", "Loaded", "Outage", "Phase", "Stopped", "Watch", "parse_interval"]

DEFAULT_INTERVAL = 30.0
"""Seconds from the start of a load to the start of the next."""

_FIRST_DELAY = 1.0  # seconds after the first failure
_LONGEST_DELAY = 30.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Phase = Callable[[str, LoadRecord | None], None]


class Loaded(Protocol):
    """What is asked of the result of a load; `load_id` is None when there was nothing new.

    `recovered`: earlier loads that it has brought to their end, such as one whose commit an outage has cut short.
    """

    @property
    def load_id(self) -> str | None: ...
    @property
    def ranges(self) -> Sequence[LoadRange]: ...
    @property
    def recovered(self) -> Sequence[str]: ...


T = TypeVar("T", bound=Loaded)


class Stopped(PykafkaError):
    """A load was broken off, because the service was told to stop, before it wrote anything."""


@dataclass(frozen=True)
class Outage:
    """A load that failed and will be tried again in `delay` seconds; None: the outage, after `failures`, is over."""

    error: PykafkaError
    failures: int
    delay: float | None


class Watch(Generic[T]):
    """The service. Iterate over it in the thread that loads; `stop.set()` in another ends it soon.

    A result is given for every load that loaded or recovered something. When `stop` is set, a load that has not begun
    to write is not begun, one that writes is broken off when `run` fails upon it, one that commits is finished.
    """

    def __init__(
        self,
        run: Callable[[Phase], T],
        *,
        interval: float = DEFAULT_INTERVAL,
        max_loads: int | None = None,
        max_records: int | None = None,
        stop: threading.Event,
        on_outage: Callable[[Outage], None] = lambda outage: None,
        on_phase: Phase = lambda phase, record: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval`: seconds; a load that took `max_records`, its limit, is followed by the next at once.

        `max_loads`: end after so many loads that loaded something. Raises ConfigError.
        """
        if not interval > 0:
            raise ConfigError(f"interval must be more than 0 seconds, not {interval:g}")
        if max_loads is not None and max_loads < 1:
            raise ConfigError(f"max_loads must be at least 1, not {max_loads}")
        self._run = run
        self._interval = interval
        self._max_loads = max_loads
        self._max_records = max_records
        self._stop = stop
        self._on_outage = on_outage
        self._on_phase = on_phase
        self._clock = clock
        self._failures = 0
        self._last_error: PykafkaError | None = None

    def __iter__(self) -> Iterator[T]:
        """Ends when told to stop or after `max_loads`. Raises what cannot heal."""
        loads = 0
        while not self._stop.is_set():
            started = self._clock()
            result = self._load_once()
            if result is None:
                continue  # an outage, or told to stop
            if result.load_id is not None or result.recovered:
                yield result
            loads += result.load_id is not None
            if self._max_loads is not None and loads >= self._max_loads:
                return
            if not self._is_behind(result):
                self._on_phase("wait", None)
                self._stop.wait(max(0.0, started + self._interval - self._clock()))

    def _load_once(self) -> T | None:
        try:
            result = self._run(self._phase)
        except Stopped:
            return None
        except PykafkaError as error:
            if self._stop.is_set():
                return None  # it was broken off, and has left nothing behind
            if not error.retriable:
                raise
            self._wait_out(error)
            return None
        if self._last_error is not None:
            self._on_outage(Outage(self._last_error, self._failures, None))
        self._failures, self._last_error = 0, None
        return result

    def _wait_out(self, error: PykafkaError) -> None:
        """Twice as long from try to try; nobody else tries in step with us, so there is no need for chance in it."""
        delay = min(_FIRST_DELAY * 2 ** min(self._failures, 10), _LONGEST_DELAY)
        self._failures, self._last_error = self._failures + 1, error
        self._on_outage(Outage(error, self._failures, delay))
        self._stop.wait(delay)

    def _is_behind(self, result: T) -> bool:
        taken = sum(range.size for range in result.ranges)
        return self._max_records is not None and taken >= self._max_records

    def _phase(self, phase: str, record: LoadRecord | None) -> None:
        if phase == "write" and self._stop.is_set():
            raise Stopped("told to stop before anything was written")
        self._on_phase(phase, record)


def parse_interval(text: str) -> float:
    """`30s`, `5m`, `500ms`, `1h`, or a plain number of seconds. Raises ConfigError."""
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.strip().endswith(unit)), "")
    with contextlib.suppress(ValueError):
        seconds = float(text.strip().removesuffix(unit)) * _UNITS.get(unit, 1.0)
        if 0 < seconds < float("inf"):
            return seconds
    raise ConfigError(f"interval (--interval) must be like 30s, 500ms, 5m or 1h, not '{text}'")
