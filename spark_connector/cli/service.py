"""`pykafka load --watch`: loads as a service, under systemd or in a terminal.

Called by cli/load.py with a request that is checked. One Spark session for all loads, started with the first record.
A line per load on standard output (with `--json` one document per line); outages and the end on standard error; what
Spark says goes to a temporary file. SIGTERM and Ctrl-C end it with status 0: what writes is broken off, what commits is
finished. What cannot heal is raised, and so becomes status 1. With `--metrics` it serves what becomes of the loads over
HTTP.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console

from broker.errors import PykafkaError
from spark_connector.cli.session import LazySession, spark_log
from spark_connector.cli.stop_signal import StopSignal
from spark_connector.cli.watching import Watching
from spark_connector.load import LoadResult, run_load
from spark_connector.loads.lag import LoadLag
from spark_connector.loads.planner import open_destination
from spark_connector.loads.record import LoadInterrupted, LoadRecord
from spark_connector.loads.request import LoadRequest
from spark_connector.loads.upkeep import prune
from spark_connector.loads.watch import Outage, Phase, Watch
from spark_connector.offset_store.base import OffsetStoreUnavailable
from spark_connector.progress.prometheus import LoadMetrics
from spark_connector.watch import Breaker

__all__ = ["serve"]


def serve(
    request: LoadRequest,
    master: str,
    settings: Mapping[str, str],
    watching: Watching,
    *,
    as_json: bool,
) -> None:
    """Load until told to stop, or `watching.max_loads` times."""
    request = request.impatient()
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(spark_log())
        ending = _Ending(log)
        stop = stack.enter_context(StopSignal(ending.leave_unless_committing))
        name = f"pykafka load {request.target.group}"
        spark = stack.enter_context(LazySession(name, master, settings, log))
        spark.on_start = stop.install
        breaker = Breaker(stop.event, spark.be_quiet)
        observer = stack.enter_context(_observer(request, watching.metrics))

        def run(on_phase: Phase) -> LoadResult:
            result = run_load(request, lambda: breaker.tag(spark.session()), on_phase)
            observer.ended(result)
            return result

        with spark.shown(console if console.is_terminal and not as_json else Console(quiet=True)) as on_phase:
            watch = Watch(
                breaker.guarded(run),
                interval=watching.interval,
                max_loads=watching.max_loads,
                max_records=request.max_records,
                stop=stop.event,
                on_outage=observer.outage,
                on_phase=ending.following(on_phase),
            )
            began = time.monotonic()
            for result in watch:
                _print_load(result, as_json)
                if watching.history_keep is not None:
                    with contextlib.suppress(LoadInterrupted, OffsetStoreUnavailable):  # the next load prunes
                        prune(request.target, watching.history_keep)
        loads_over = "Told to stop." if stop.event.is_set() else "Done."
        _say(f"{loads_over} The service ran for {time.monotonic() - began:,.0f} s.")


@contextlib.contextmanager
def _observer(request: LoadRequest, address: str | None) -> Iterator[_Observer]:
    """What hears of the loads, with metrics when they are asked for."""
    if address is None:
        yield _Observer()
        return
    lag = LoadLag(request.source)
    with LoadMetrics(request.target.group, address, lag.behind) as metrics:
        _say(f"Metrics on {metrics.url}")
        yield _Measured(request, metrics, lag)


class _Observer:
    """Hears how loads end, in the thread that loads; tells of outages."""

    def __init__(self) -> None:
        self._outages = _Outages()

    def ended(self, result: LoadResult) -> None:
        """A load ended well, or there was nothing to load."""

    def outage(self, outage: Outage) -> None:
        """See Watch."""
        self._outages(outage)


class _Measured(_Observer):
    """Counts them, and finds out where the group stands, when that may have changed."""

    def __init__(self, request: LoadRequest, metrics: LoadMetrics, lag: LoadLag) -> None:
        super().__init__()
        self._request = request
        self._metrics = metrics
        self._lag = lag
        self._known = False
        self._look()

    def ended(self, result: LoadResult) -> None:
        self._metrics.up_to_date()
        if result.load_id is not None:
            self._metrics.loaded(result.rows)
        if result.load_id is not None or result.recovered or not self._known:
            self._look()

    def outage(self, outage: Outage) -> None:
        super().outage(outage)
        if outage.delay is not None:
            self._metrics.failed()

    def _look(self) -> None:
        with contextlib.suppress(PykafkaError), open_destination(self._request.target) as site:
            self._lag.loaded(site.log.offsets())
            self._known = True


class _Ending:
    """What to do when the end takes long: Spark plans, or a server does not answer, and nothing can cancel that."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._phase = ""

    def following(self, on_phase: Phase) -> Phase:
        def follow(phase: str, record: LoadRecord | None) -> None:
            self._phase = phase
            on_phase(phase, record)

        return follow

    def leave_unless_committing(self) -> None:
        """What is not committed may be left as it lies at any moment; the next load removes it."""
        if self._phase != "commit":
            _say("Told to stop. What was being written is abandoned; nothing of it is visible.")
            sys.stdout.flush()
            self._log.unlink(missing_ok=True)
            os._exit(0)


class _Outages:
    """A line when an outage begins, when its cause changes, and when it is over."""

    def __init__(self) -> None:
        self._told = ""
        self._since = 0.0

    def __call__(self, outage: Outage) -> None:
        if outage.delay is None:
            _say(f"Loading again, after {outage.failures} failures in {time.monotonic() - self._since:,.0f} s.")
            self._told = ""
            return
        if not self._told:
            self._since = time.monotonic()
        kind = f"{type(outage.error).__name__}: {_reason(outage)}"
        if kind != self._told:
            _say(f"Cannot load, trying again: {kind}")
            self._told = kind


def _reason(outage: Outage) -> str:
    """Without the name of the load, which is another one with every attempt."""
    text = str(outage.error).partition("\n")[0]
    prefix, separator, rest = text.partition(" failed: ")
    return rest if separator and prefix.startswith("load ") else text


def _print_load(result: LoadResult, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"time": _now(), **result.to_json()}))
        return
    for load_id in result.recovered:
        typer.echo(f"{_now()} finished {load_id}, which had been cut short")
    if result.load_id is None:
        return
    offsets = sum(range.size for range in result.ranges)
    counts = _count(result.rows, "row"), _count(offsets, "offset"), _count(len(result.ranges), "partition")
    typer.echo(f"{_now()} {result.load_id}: {counts[0]}, {counts[1]} of {counts[2]}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _say(text: str) -> None:
    typer.echo(f"{_now()} {text}", err=True)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
