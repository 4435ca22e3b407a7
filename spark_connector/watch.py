"""`load` as a service from Python: one load after the other until it is stopped.

    from spark_connector.watch import watch
    for result in watch(spark, bootstrap_servers="localhost:9092", topic="flights", to="/data", group="nightly"):
        print(result.load_id, result.rows)

loads/load_loop.py decides when the next load starts and what an outage is. This module adds Spark: it cancels the Spark
jobs of a load when the service is stopped, and ends the service when Spark has ended. The console's
`pykafka load --watch` is cli/service.py.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from spark_connector.load import load
from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.load_loop import DEFAULT_INTERVAL, LoadLoop, Outage, Phase, parse_interval
from spark_connector.loads.record import LoadError, LoadResult
from spark_connector.loads.request import Target
from spark_connector.maintenance import TableCare

__all__ = ["Breaker", "watch"]

logger = logging.getLogger("pykafka.spark")

_LOOK_SECONDS = 0.3


def watch(
    spark: SparkSession,
    *,
    interval: float | str = DEFAULT_INTERVAL,
    max_loads: int | None = None,
    stop: threading.Event | None = None,
    on_outage: Callable[[Outage], None] = lambda outage: None,
    compact_every: int | None = None,
    rewindable: str | None = None,
    **arguments: Any,
) -> Iterator[LoadResult]:
    """Run a load every `interval` (seconds, or text like `5m`), and at once after a load of `max_records`; gives each
    result.

    `arguments` are those of `load`. Ends after `max_loads` loads with new records, or soon after `stop` is set in
    another thread: a load that is writing is cancelled, a load that is committing is finished. In an outage it retries
    and calls `on_outage`. Raises errors that are not retriable: ConfigError, DataLoss, OffsetConflict, LoadError. While
    no broker answers, a stop takes up to `kafka.default.api.timeout.ms` (in `options`; a minute).
    `compact_every`: compact the table (delta, iceberg) after so many loads, without the files of loads that are younger
    than `rewindable` (24h). What is compacted, and a failure of it, is logged.
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

    loop = LoadLoop(
        breaker.guarded(run),
        interval=seconds,
        max_loads=max_loads,
        max_records=arguments.get("max_records"),
        stop=stopped,
        on_outage=on_outage,
        on_phase=tell,
    )
    if compact_every is None:
        return iter(loop)
    options = CompactionOptions.parse(rewindable, arguments.get("target_file_size"))
    target = Target.of(arguments).check()
    return _cared_for(loop, TableCare(target, compact_every, options, say=logger.info, warn=logger.warning))


def _cared_for(loop: LoadLoop, care: TableCare) -> Iterator[LoadResult]:
    for result in loop:
        care.loaded(result)
        yield result


class Breaker:
    """Cancels the Spark jobs of a load, and no others, when `stop` is set. Notices when Spark has ended."""

    def __init__(self, stop: threading.Event, before_cancelling: Callable[[], None] = lambda: None) -> None:
        self._stop = stop
        self._before_cancelling = before_cancelling
        self._tag = f"pykafka-watch-{secrets.token_hex(6)}"
        self._session: SparkSession | None = None

    def tag(self, session: SparkSession) -> SparkSession:
        """Make the jobs that this thread starts in the session cancellable; gives the session."""
        if _is_connect(session):
            session.addTag(self._tag)
        else:  # only the thread that sets a session's own tags can interrupt them
            session.sparkContext.addJobTag(self._tag)
        self._session = session
        return session

    def untag(self, session: SparkSession) -> None:
        with contextlib.suppress(Exception):  # Spark may have ended; its last job has raised that
            session.removeTag(self._tag) if _is_connect(session) else session.sparkContext.removeJobTag(self._tag)

    def guarded(self, run: Callable[[Phase], LoadResult]) -> Callable[[Phase], LoadResult]:
        """`run`, cancelled when `stop` is set. Raises a LoadError that says so when Spark has ended."""

        def guarded_run(on_phase: Phase) -> LoadResult:
            over = threading.Event()
            threading.Thread(target=self._cancel_when_stopped, args=(over,), daemon=True).start()
            try:
                return run(on_phase)
            except LoadError as error:
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
