"""Loads for as long as nobody says stop: `load` as a service, from Python.

    from spark_connector.watch import watch
    for result in watch(spark, bootstrap_servers="localhost:9092", topic="flights", to="/data", group="nightly"):
        print(result.load_id, result.rows)

When the next load is due and what an outage is, is loads/watch.py's to say; here is what Spark adds: a load that writes
when the service is told to stop is cancelled in Spark, and a Spark that has ended ends the service. The console's
`pykafka load --watch` is cli/service.py.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from spark_connector.load import LoadResult, load
from spark_connector.loads.record import LoadError, LoadInterrupted
from spark_connector.loads.watch import DEFAULT_INTERVAL, Outage, Phase, Watch, parse_interval

__all__ = ["Breaker", "watch"]

_LOOK_SECONDS = 0.3


def watch(
    spark: SparkSession,
    *,
    interval: float | str = DEFAULT_INTERVAL,
    max_loads: int | None = None,
    stop: threading.Event | None = None,
    on_outage: Callable[[Outage], None] = lambda outage: None,
    **arguments: Any,
) -> Iterator[LoadResult]:
    """A load every `interval` (seconds, or text like `5m`), at once while it takes `max_records`; gives what each did.

    `arguments` are those of `load`. Ends after `max_loads` loads that loaded something, or soon after `stop` is set in
    another thread: what writes is broken off, what commits is finished. Outages are waited out, `on_outage` hears of
    them. Raises what cannot heal: ConfigError, DataLoss, OffsetConflict, LoadError. While no broker answers, a stop is
    heeded after `kafka.default.api.timeout.ms` (among `options`; a minute).
    """
    seconds = parse_interval(interval) if isinstance(interval, str) else interval
    tell: Phase = arguments.pop("on_phase", None) or (lambda phase, record: None)
    stopped = stop or threading.Event()

    breaker = Breaker(stopped)

    def run(on_phase: Phase) -> LoadResult:
        breaker.tag(spark)
        try:
            return load(spark, **arguments, on_phase=on_phase)
        finally:
            breaker.untag(spark)

    return iter(
        Watch(
            breaker.guarded(run),
            interval=seconds,
            max_loads=max_loads,
            max_records=arguments.get("max_records"),
            stop=stopped,
            on_outage=on_outage,
            on_phase=tell,
        )
    )


class Breaker:
    """Cancels the Spark jobs of a load when `stop` is set, and no others; tells a Spark that has ended."""

    def __init__(self, stop: threading.Event, before_cancelling: Callable[[], None] = lambda: None) -> None:
        self._stop = stop
        self._before_cancelling = before_cancelling
        self._tag = f"pykafka-watch-{secrets.token_hex(6)}"
        self._session: SparkSession | None = None

    def tag(self, session: SparkSession) -> SparkSession:
        """The session; jobs that this thread starts in it from now on can be cancelled."""
        if _is_connect(session):
            session.addTag(self._tag)
        else:  # a session's own tags can be interrupted only by the thread that has set them
            session.sparkContext.addJobTag(self._tag)
        self._session = session
        return session

    def untag(self, session: SparkSession) -> None:
        with contextlib.suppress(Exception):  # Spark may have ended, which its last job has told
            session.removeTag(self._tag) if _is_connect(session) else session.sparkContext.removeJobTag(self._tag)

    def guarded(self, run: Callable[[Phase], LoadResult]) -> Callable[[Phase], LoadResult]:
        """`run`, looked after while it runs. Raises LoadError instead of LoadInterrupted when Spark has ended."""

        def guarded_run(on_phase: Phase) -> LoadResult:
            over = threading.Event()
            threading.Thread(target=self._cancel_when_stopped, args=(over,), daemon=True).start()
            try:
                return run(on_phase)
            except LoadInterrupted as error:
                if self._session is not None and not _is_alive(self._session):
                    raise LoadError(f"{error}; Spark itself has ended, start the service anew") from error
                raise
            finally:
                over.set()

        return guarded_run

    def _cancel_when_stopped(self, over: threading.Event) -> None:
        """Again and again: the job to cancel may be yet to begin."""
        while not over.is_set():
            if self._stop.wait(_LOOK_SECONDS):
                self._cancel()
                over.wait(_LOOK_SECONDS)

    def _cancel(self) -> None:
        session = self._session
        if session is None:
            return
        with contextlib.suppress(Exception):  # a Spark that has ended needs no cancelling
            self._before_cancelling()
            if _is_connect(session):
                session.interruptTag(self._tag)
            else:
                session.sparkContext.cancelJobsWithTag(self._tag)


def _is_connect(session: SparkSession) -> bool:
    return not hasattr(session, "_jsparkSession")


def _is_alive(session: SparkSession) -> bool:
    try:
        stopped = False if _is_connect(session) else bool(session._jsparkSession.sparkContext().isStopped())
        return bool(session.version) and not stopped
    except Exception:  # py4j's and grpc's errors have no class in common
        return False
