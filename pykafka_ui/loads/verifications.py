"""Verifies the loads of a group in a process of its own, and tells how far it has come.

A process, because it takes 8 bytes of memory for each row of a load and a core for as long as it runs; so both are
given back, and it can be stopped. One at a time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from broker.errors import ConfigError
from broker.verdict import Verdict
from spark_connector.cli.session import quiet_session
from spark_connector.loads.audit.verify import LoadCheck, Verification
from spark_connector.loads.request import Target
from spark_connector.maintenance import verify

_MOST_TEXTS = 20
"""Problems and notes of one load that are kept."""


@dataclass(frozen=True)
class LogSource:
    """The brokers that have the log: their addresses, and the reader's options for them (`kafka.…`)."""

    bootstrap_servers: str
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class VerificationState:
    """`done` of `loads` are checked. `error`: why it ended before its end. The verdicts are there at the end, and the
    verdict on all of them; after an error nothing is known."""

    is_running: bool = True
    done: int = 0
    loads: int = 0
    error: str = ""
    verdicts: Mapping[str, LoadCheck] | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    verdict: Verdict = Verdict.UNKNOWN

    @property
    def is_ok(self) -> bool:
        """Whether it has ended, and everything was compared and agrees."""
        return self.verdict is Verdict.OK

    def to_json(self) -> dict[str, Any]:
        verdicts = None if self.verdicts is None else {name: _to_json(one) for name, one in self.verdicts.items()}
        return {**asdict(replace(self, verdicts=None)), "verdicts": verdicts, "is_ok": self.is_ok}


class Verifications:
    """The newest verification of each group. Thread-safe."""

    def __init__(self, log: LogSource) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._states: dict[tuple[str, str], VerificationState] = {}
        self._stopped = False
        self._running: tuple[tuple[str, str], multiprocessing.process.BaseProcess] | None = None

    def state(self, url: str, group: str) -> VerificationState | None:
        """None if it was not verified since the start."""
        return self._states.get((url, group))

    def start(self, url: str, target: Target) -> None:
        """Begin to verify. Does nothing while the same is being verified. Raises ConfigError while another is."""
        key = url, target.group
        with self._lock:
            if self._running is not None:
                if self._running[0] == key:
                    return
                raise ConfigError(f"one at a time: {' '.join(reversed(self._running[0]))} is being verified")
            spawn = multiprocessing.get_context("spawn")
            ours, theirs = spawn.Pipe(duplex=False)
            process = spawn.Process(target=_verify, args=(theirs, target, self._log), daemon=True)
            process.start()
            theirs.close()
            self._running = key, process
            self._states[key] = VerificationState()
        threading.Thread(target=self._follow, args=(key, process, ours), name="ui-verification", daemon=True).start()

    def stop(self, url: str | None = None, group: str | None = None) -> None:
        """End the verification of a group, or whatever runs. It is then shown as stopped."""
        with self._lock:
            if self._running is not None and (url is None or self._running[0] == (url, group)):
                self._stopped = True
                self._running[1].terminate()

    def _follow(self, key: tuple[str, str], process: multiprocessing.process.BaseProcess, news: Connection) -> None:
        last: VerificationState | None = None
        try:
            with news, contextlib.suppress(EOFError, OSError):  # it has ended, perhaps while it was speaking
                while True:
                    told: VerificationState = news.recv()
                    if told.is_running:
                        self._states[key] = told
                    else:
                        last = told  # shown when another one may begin: the end of its Spark takes a while
        finally:
            process.join()
            with self._lock:
                state, why = last or self._states[key], "it was stopped"
                if not self._stopped:
                    why = f"its process ended with {process.exitcode}; was there enough memory?"
                self._states[key] = replace(state, is_running=False, error=why) if state.is_running else state
                self._running, self._stopped = None, False


def _verify(news: Connection, target: Target, log: LogSource) -> None:
    """The process. Ctrl-C ends its parent, which ends it; then it tidies up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    def on_load(done: int, loads: int) -> None:
        news.send(VerificationState(done=done, loads=loads))

    try:
        with quiet_session("pykafka ui", target.hadoop) as session:
            found = verify(target, log.bootstrap_servers, options=log.options, session=session, on_load=on_load)
    except Exception as error:  # whatever it is, it belongs on the page
        news.send(VerificationState(is_running=False, error=str(error) or type(error).__name__))
    else:
        news.send(_ended(found))


def _ended(found: Verification) -> VerificationState:
    return VerificationState(
        is_running=False,
        done=len(found.loads),
        loads=len(found.loads),
        verdicts={check.load_id: _shortened(check) for check in found.loads},
        problems=_some(found.problems),
        notes=_some(found.notes),
        unread=_some(found.unread),
        verdict=found.verdict,
    )


def _shortened(check: LoadCheck) -> LoadCheck:
    """Without the counts of its partitions, and with some of its texts."""
    problems, notes, unread = map(_some, (check.problems, check.notes, check.unread))
    return replace(check, partitions=(), whole=check.totals, problems=problems, notes=notes, unread=unread)


def _to_json(check: LoadCheck) -> dict[str, Any]:
    texts = {"problems": check.problems, "notes": check.notes, "unread": check.unread}
    return {"verdict": check.verdict, "totals": check.totals._asdict(), **texts}


def _some(texts: tuple[str, ...]) -> tuple[str, ...]:
    more = len(texts) - _MOST_TEXTS
    return (*texts[:_MOST_TEXTS], f"… and {more:,} more") if more > 0 else texts
