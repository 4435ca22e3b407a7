"""`pykafka load --watch`: loads as a service, under systemd or in a terminal.

All loads share one Spark session, which starts with the first record. Prints a line per load to standard output (with
`--json` one document per line), and outages and the end to standard error. Spark's messages go to a temporary file.
SIGTERM and Ctrl-C end it with status 0: a load that is writing is cancelled, a load that is committing is finished.
Errors that are not retriable are raised and become status 1.

With `--metrics` the lag is asked from the brokers at every scrape, in a thread of its own, so it also grows while loads
fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.cli.screen import Screen, malformed_text, now
from spark_connector.cli.session import LazySession, spark_log
from spark_connector.destinations import open_destination
from spark_connector.load import run_load
from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.load_loop import DEFAULT_INTERVAL, LoadLoop, Outage, Phase, parse_interval
from spark_connector.loads.record import LoadInterrupted, LoadRecord, LoadResult
from spark_connector.loads.request import Target
from spark_connector.maintenance import TableCare, prune
from spark_connector.offset_store.base import OffsetStoreUnavailable
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.selection import Position
from spark_connector.progress.prometheus import LoadMetrics
from spark_connector.read.offset_readers import open_offset_reader
from spark_connector.watch import Breaker

if TYPE_CHECKING:
    from spark_connector.cli.load_command import LoadOptions


_PATIENCE_MS = 3_000  # the longest that a scrape waits for brokers
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(options: LoadOptions) -> None:
    """Load every `interval` until stopped, or until `max_loads` loads had new records."""
    request, keep = options.request(is_impatient=True), options.history_keep
    interval = parse_interval(options.interval) if options.interval else DEFAULT_INTERVAL
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(spark_log())
        screen = stack.enter_context(Screen())
        ending = _Ending(log, screen)
        stop = stack.enter_context(StopSignal(ending.leave_unless_committing))
        name = f"pykafka load {request.target.group}"
        spark = stack.enter_context(LazySession(name, options.master, options.spark_settings, log))
        spark.on_start = stop.install
        breaker = Breaker(stop.event, spark.be_quiet)
        lag = LoadLag(request.source)
        metrics = None
        if options.metrics is not None:
            metrics = stack.enter_context(LoadMetrics(request.target.group, options.metrics, lag.behind))
        observer = LoadObserver(request.target, lag, screen.say, metrics)
        compaction = CompactionOptions.parse(options.rewindable, request.target_file_size)
        care = TableCare(request.target, options.compact_every, compaction, say=screen.say, warn=screen.say)

        def run(on_phase: Phase) -> LoadResult:
            result = run_load(request, lambda: breaker.tag(spark.session()), on_phase)
            observer.ended(result)
            return result

        with spark.shown(screen, service=True) as on_phase:
            watch = LoadLoop(
                breaker.guarded(run),
                interval=interval,
                max_loads=options.max_loads,
                max_records=request.given.max_records,
                stop=stop.event,
                on_outage=observer.outage,
                on_phase=ending.following(on_phase),
            )
            began = time.monotonic()
            for result in watch:
                _print_load(result, options.as_json, screen)
                care.loaded(result)
                if keep is not None:
                    with contextlib.suppress(LoadInterrupted, OffsetStoreUnavailable):  # the next load prunes
                        prune(request.target, keep)
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
    sizes = [range.size for range in result.ranges if range.size]
    counts = _count(result.rows, "row"), _count(sum(sizes), "offset"), _count(len(sizes), "partition")
    bad = f"; {malformed_text(result)}" if result.malformed else ""
    screen.print(f"{now()} {result.load_id}: {counts[0]}, {counts[1]} of {counts[2]}{bad}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass
class LoadObserver:
    """Prints a line when an outage begins, when its cause changes, and when it is over. For the thread that loads.

    With `metrics` it also counts loads, and reads the group's offsets when they may have changed.
    """

    target: Target
    lag: LoadLag
    say: Callable[[str], None]
    metrics: LoadMetrics | None

    def __post_init__(self) -> None:
        self._known = False
        self._printed = ""
        self._since = 0.0
        if self.metrics is not None:
            self.say(f"Metrics on {self.metrics.url}")
            self._read_offsets()

    def ended(self, result: LoadResult) -> None:
        """Called after a load, or when there was nothing to load."""
        if self.metrics is None:
            return
        self.metrics.up_to_date()
        if result.load_id is not None:
            self.metrics.loaded(result.rows)
        if result.load_id is not None or result.recovered or not self._known:
            self._read_offsets()

    def outage(self, outage: Outage) -> None:
        """Called for each failed load, and at the end of an outage."""
        if outage.delay is None:
            self.say(f"Loading again, after {outage.failures} failures in {time.monotonic() - self._since:,.0f} s.")
            self._printed = ""
            return
        if self.metrics is not None:
            self.metrics.failed()
        if not self._printed:
            self._since = time.monotonic()
        kind = f"{type(outage.error).__name__}: {_reason(outage)}"
        if kind != self._printed:
            self.say(f"Cannot load, trying again: {kind}")
            self._printed = kind

    def _read_offsets(self) -> None:
        with contextlib.suppress(PykafkaError), open_destination(self.target) as destination:
            self.lag.set_loaded(destination.log.offsets())
            self._known = True


class LoadLag:
    """How far the loads of one group are behind their topics. Thread-safe."""

    def __init__(self, source: SourceOptions) -> None:
        """`source`: the options that the loads read with."""
        self._source = replace(
            source, num_retries=1, client=replace(source.client, default_api_timeout_ms=_PATIENCE_MS)
        )
        self._loaded: Mapping[TopicPartition, int] | None = None

    def set_loaded(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The offsets of the group from now on."""
        self._loaded = offsets

    def behind(self) -> dict[str, int]:
        """Offsets by topic that are in the log and not loaded yet. Empty when they cannot be found out.

        Offsets that the log has lost are not counted, because no load can read them.
        """
        loaded = self._loaded
        if loaded is None:
            return {}
        try:
            with contextlib.closing(open_offset_reader(self._source)) as reader:
                assigned = reader.assigned()
                earliest = reader.earliest(assigned.partitions)
                latest = reader.resolve(Position.LATEST, assigned, which="end")
        except PykafkaError:
            return {}
        total: Counter[str] = Counter()
        for tp, end in latest.items():
            total[tp.topic] += max(end - max(loaded.get(tp, 0), earliest[tp]), 0)
        return dict(total)


def _reason(outage: Outage) -> str:
    """The error without the id of the load, which is different for every attempt."""
    text = str(outage.error).partition("\n")[0]
    prefix, separator, rest = text.partition(" failed: ")
    return rest if separator and prefix.startswith("load ") else text


class StopSignal:
    """SIGTERM and SIGINT as an event that threads can wait for. A context manager, for the main thread.

    The first signal sets `event`; the second one ends the process at once, which is safe because a load can be killed
    at any moment. The handlers do nothing: a handler that takes a lock could find it held by the thread that it
    interrupts. Python writes the number of each signal to a socket instead, and a thread reads it there.

    `overdue` is called, in another thread, every `grace` seconds from then on until the block is left.
    """

    def __init__(self, overdue: Callable[[], None] = lambda: None, grace: float = 20.0) -> None:
        self.event = threading.Event()
        self._overdue = overdue
        self._grace = grace
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1
        self._thread = threading.Thread(target=self._listen, name="pykafka-signals", daemon=True)

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self.install()
        self._thread.start()
        return self

    def install(self) -> None:
        """Install the handlers again after a library has replaced them, as PySpark does for SIGINT."""
        for number in _SIGNALS:
            signal.signal(number, _ignore)

    def __exit__(self, *_error: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _listen(self) -> None:
        while True:
            self._reader.settimeout(self._grace if self.event.is_set() else None)
            try:
                numbers = self._reader.recv(16)
            except TimeoutError:
                self._overdue()
                continue
            if not numbers:
                return
            for number in numbers:
                if number in _SIGNALS:
                    if self.event.is_set():
                        os._exit(128 + number)
                    self.event.set()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Without a handler the signal would end the process."""
