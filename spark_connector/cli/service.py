"""`pykafka load --watch`: loads as a service, under systemd or in a terminal.

All loads share one Spark session, which starts with the first record. Prints a line per load to standard output (with
`--json` one document per line), and outages and the end to standard error. Spark's messages go to a temporary file.
SIGTERM and Ctrl-C end it with status 0: a load that is writing is cancelled, a load that is committing is finished.
Errors that are not retriable are raised and become status 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from spark_connector.cli.screen import Screen, now
from spark_connector.cli.service_metrics import observe_loads
from spark_connector.cli.session import LazySession, spark_log
from spark_connector.cli.stop_signal import StopSignal
from spark_connector.load import run_load
from spark_connector.loads.load_loop import LoadLoop, Phase
from spark_connector.loads.record import LoadInterrupted, LoadRecord, LoadResult
from spark_connector.loads.request import LoadRequest
from spark_connector.maintenance import prune
from spark_connector.offset_store.base import OffsetStoreUnavailable
from spark_connector.watch import Breaker


def serve(
    request: LoadRequest,
    master: str,
    settings: Mapping[str, str],
    *,
    interval: float,
    max_loads: int | None,
    history_keep: int | None,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Load every `interval` seconds until stopped, or until `max_loads` loads had new records."""
    request = request.impatient()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(spark_log())
        screen = stack.enter_context(Screen())
        ending = _Ending(log, screen)
        stop = stack.enter_context(StopSignal(ending.leave_unless_committing))
        name = f"pykafka load {request.target.group}"
        spark = stack.enter_context(LazySession(name, master, settings, log))
        spark.on_start = stop.install
        breaker = Breaker(stop.event, spark.be_quiet)
        observer = stack.enter_context(observe_loads(request, metrics, screen.say))

        def run(on_phase: Phase) -> LoadResult:
            result = run_load(request, lambda: breaker.tag(spark.session()), on_phase)
            observer.ended(result)
            return result

        with spark.shown(screen, service=True) as on_phase:
            watch = LoadLoop(
                breaker.guarded(run),
                interval=interval,
                max_loads=max_loads,
                max_records=request.max_records,
                stop=stop.event,
                on_outage=observer.outage,
                on_phase=ending.following(on_phase),
            )
            began = time.monotonic()
            for result in watch:
                _print_load(result, as_json, screen)
                if history_keep is not None:
                    with contextlib.suppress(LoadInterrupted, OffsetStoreUnavailable):  # the next load prunes
                        prune(request.target, history_keep)
        ending_text = "Stopped." if stop.event.is_set() else "Done."
        screen.say(f"{ending_text} The service ran for {time.monotonic() - began:,.0f} s.")


class _Ending:
    """Ends the process when a stop takes long: nothing can cancel Spark's planning or the wait for a server."""

    def __init__(self, log: Path, screen: Screen) -> None:
        self._log = log
        self._screen = screen
        self._phase = ""

    def following(self, on_phase: Phase) -> Phase:
        def follow(phase: str, record: LoadRecord | None) -> None:
            self._phase = phase
            on_phase(phase, record)

        return follow

    def leave_unless_committing(self) -> None:
        """An uncommitted load can be abandoned at any moment; the next load removes it."""
        if self._phase != "commit":
            self._screen.say("Stopped. The load that was being written is abandoned; nothing of it is visible.")
            self._screen.release()
            sys.stdout.flush()
            self._log.unlink(missing_ok=True)
            os._exit(0)


def _print_load(result: LoadResult, as_json: bool, screen: Screen) -> None:
    if as_json:
        screen.print(json.dumps({"time": now(), **result.to_json()}))
        return
    for load_id in result.recovered:
        screen.print(f"{now()} finished {load_id}, which had been cut short")
    if result.load_id is None:
        return
    offsets = sum(range.size for range in result.ranges)
    counts = _count(result.rows, "row"), _count(offsets, "offset"), _count(len(result.ranges), "partition")
    screen.print(f"{now()} {result.load_id}: {counts[0]}, {counts[1]} of {counts[2]}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
