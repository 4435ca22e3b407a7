"""A Spark session for a console command, and a progress line that follows its tasks.

Spark starts only when it is first used, so that an error or "nothing new" appears at once. The progress line goes to
standard error.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

import typer

from broker.tools.main import INTERRUPTED
from broker.zookeeper.java import find_java
from spark_connector.cli.screen import ProgressLine, Screen
from spark_connector.loads.record import LoadRecord

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession


_POLL_SECONDS = 0.2
_PHASES = {
    "repair": "looking for unfinished loads",
    "plan": "asking the brokers what is new",
    "write": "writing",
    "commit": "committing",
    "done": "done",
    "wait": "waiting for new records",
}
_SLOW = ("write", "commit")
_SETTINGS_OF_SESSIONS = {"spark.sql.session.timeZone": "UTC"}
"""Those that a server of Spark Connect has for each of its sessions."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    **_SETTINGS_OF_SESSIONS,
}


class LazySession:
    """A Spark session that `session()` starts, and that is stopped at the end of the `with` block.

    Spark's messages go to the file `log`, if one is given. After a KeyboardInterrupt Spark is not stopped: it ends with
    this process.
    """

    def __init__(self, app_name: str, master: str, settings: Mapping[str, str], log: Path | None = None) -> None:
        self._app_name = app_name
        self._master = master
        self._remote = master.startswith("sc://")
        self._settings = settings
        self._log = log
        self._session: SparkSession | None = None
        self.on_start: Callable[[], object] = lambda: None
        self._starting: Callable[[], object] = lambda: None
        self._started: Callable[[], object] = lambda: None

    def session(self) -> SparkSession:
        if self._session is None:
            self._starting()
            # Importing Spark takes half a second, which --help and --recover do not need.
            from pyspark.sql import SparkSession

            # By default Spark's workers run the python3 of the PATH, which may not have the connector.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            if self._remote:
                builder, settings = SparkSession.builder.remote(self._master), _SETTINGS_OF_SESSIONS
            else:
                find_java(for_spark=True)
                builder, settings = SparkSession.builder.master(self._master), _SETTINGS
            builder = builder.appName(self._app_name)
            for name, value in {**settings, **self._settings}.items():
                builder = builder.config(name, value)
            with standard_error_to(self._log) if self._log else nullcontext():
                self._session = builder.getOrCreate()
            self.on_start()
            self._started()
        return self._session

    def be_quiet(self) -> None:
        """Switch Spark's log off before jobs are cancelled on purpose: it would log pages about it."""
        if self._session is not None and not self._remote:
            self._session.sparkContext.setLogLevel("OFF")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if self._session is not None and not isinstance(error, KeyboardInterrupt):
            self._session.stop()

    @contextmanager
    def shown(self, screen: Screen, *, service: bool = False) -> Iterator[Callable[[str, LoadRecord | None], None]]:
        """A progress line, which follows the session when it has started; gives the function that sets the phase.

        `service`: where nothing moves, only the start of Spark is told, for loads have lines of their own.
        """
        stopped = threading.Event()
        with screen.progress() as line:

            def on_phase(phase: str, record: LoadRecord | None) -> None:
                offsets = sum(range.size for range in record.ranges) if record else 0
                text = f"{_PHASES[phase]} {offsets:,} offsets" if phase == "write" else _PHASES[phase]
                line.phase(text, plain=not service and phase in _SLOW)
                self._starting = functools.partial(line.phase, "starting Spark", plain=True)
                self._started = functools.partial(line.phase, text, plain=False)

            on_phase("repair", None)
            follower = threading.Thread(target=self._follow, args=(line, stopped), daemon=True)
            follower.start()
            try:
                yield on_phase
            finally:
                stopped.set()
                follower.join()

    def _follow(self, line: ProgressLine, stopped: threading.Event) -> None:
        """Follow the tasks of the running Spark job until `stopped` is set, or Spark is gone.

        Ctrl-C ends Spark's Java process, too, and may do so before this thread is told.
        """
        while not stopped.wait(_POLL_SECONDS):
            try:
                running = self._active_stages()
            except Exception:  # errors of py4j and of its socket, which have no class in common
                return
            if running:
                line.tasks(sum(one.numCompletedTasks for one in running), sum(one.numTasks for one in running))

    def _active_stages(self) -> list[SparkStageInfo]:
        if self._session is None or self._remote:  # a server does not tell its clients of tasks
            return []
        tracker = self._session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return [stage for stage in stages if stage is not None]


@contextmanager
def quiet_session(name: str, hadoop: Mapping[str, str]) -> Iterator[Callable[[], SparkSession]]:
    """Gives the function that starts a local Spark without any output. `hadoop` are Hadoop client settings."""
    settings = {f"spark.hadoop.{key}": value for key, value in hadoop.items()}
    with spark_log() as log, LazySession(name, "local[*]", settings, log) as spark, interruptible(spark):
        yield spark.session


@contextmanager
def interruptible(spark: LazySession) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt within the block, also when Spark has started; a process that ignores it goes on.

    PySpark's handler cancels jobs over the connection that waits for them, and fails. Ctrl-C may end Spark's Java
    process, too, and what cleans up then fails with an error of its own: that becomes the interrupt.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        logging.disable()  # py4j logs the interrupt with a traceback
        raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    spark.on_start = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else interrupt)
    try:
        yield
    except Exception as error:
        if not interrupted:
            raise
        raise KeyboardInterrupt from error


@contextmanager
def leaving_at_interrupt(told: str) -> Iterator[None]:
    """A KeyboardInterrupt ends the process at once, and with it Spark: stopping it takes longer than a person waits."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"pykafka: {told}", err=True)
        sys.stderr.flush()
        os._exit(INTERRUPTED)


@contextmanager
def standard_error_to(log: Path) -> Iterator[None]:
    """Redirect standard error to a file. A JVM that starts meanwhile keeps it, and the terminal stays readable."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def spark_log() -> Iterator[Path]:
    """A temporary file for Spark's messages. After an error it is kept, unless it is empty, and a line names it."""
    descriptor, name = tempfile.mkstemp(prefix="pykafka-load-", suffix=".log")
    os.close(descriptor)
    log = Path(name)
    try:
        yield log
    except Exception:
        if log.stat().st_size:
            typer.echo(f"What Spark said is in {log}", err=True)
        else:
            log.unlink()
        raise
    except BaseException:
        log.unlink()
        raise
    log.unlink()
