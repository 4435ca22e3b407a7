"""Many rounds of loads into tables that are killed, and the table of what came of them.

    python -m tests.support.table_kills [--rounds 200] [--seed N] [--cells iceberg-* …] [--directory D]

A round produces records, starts the job of the cell in a process of its own, kills it with SIGKILL at a drawn moment
(held at a step between files and commit, or so long after a step), now and then beside a rival of the same group, and
runs it again until it ends well. Then the table is audited (table_works.py), by readers that are not ours. The loads
are real ones (`run_load`) over real records; they are small, so the driver writes the files itself, without Spark. The
processes are forks of one that has imported everything, so a round takes a second or two.

tests/faults/test_table_kills.py plays every cell once, and 200 rounds in the slow set. kill_matrix.py is for Spark.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.support.broker_process import BrokerProcess
from tests.support.kill_rounds import Matrix, Played, command
from tests.support.table_works import CELLS, Audit, Cell, Sites, Work, jobs

_ENDS_S = 120.0  # a round's run takes a second or two
_TRIES = 5
_AIMS = 4
_SECOND_BLOW = 0.25
_RIVAL = 0.25
_HELD = 0.5
"""Shares of the rounds with a second blow and with a rival, and of the blows that fall while the job is held."""
_FIRST_GUESS_S = 0.2
_REFUSALS = ("OffsetConflict",)
"""Errors of a job whose rival was quicker."""

_PRELOADED = [
    "deltalake",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "spark_connector.load",
    "spark_connector.maintenance",
    "tests.support.table_works",
]


def _run(
    connection: Connection, job: str, arguments: Mapping[str, Any], environment: Mapping[str, str], held: str | None
) -> None:
    """The process that is killed: runs a job, tells its steps, and stands still at the step `held`."""
    os.environ.update(environment)

    def tell(step: str) -> None:
        connection.send(("step", step))
        if step == held:
            threading.Event().wait()

    try:
        jobs()[job](arguments, tell)
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}", traceback.format_exc()))
    else:
        connection.send(("ended",))


class Run:
    """One process that runs a job. `error` is None when it ended well, "killed" when it was."""

    def __init__(self, work: Work, job: str, held: str | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._connection, theirs = context.Pipe(duplex=False)
        given = (theirs, job, work.arguments(), work.environment(), held)
        self._process = context.Process(target=_run, args=given, daemon=True)
        self._process.start()
        theirs.close()
        self.steps: list[str] = []
        self.paces: dict[str, float] = {}
        """Step → seconds from there to the end of a run that ended well."""
        self.ended = False
        self.error: str | None = None
        self.trace = ""

    def follow(self, until: float, step: str | None = None) -> bool:
        """Take in what it says until it has ended (True), or reached `step`, or the monotonic clock says `until`."""
        while not self.ended and not (step is not None and step in self.steps):
            if not self._connection.poll(max(until - time.monotonic(), 0)):
                return False
            try:
                self._note(self._connection.recv())
            except EOFError:
                self.ended, self.error = True, "killed"
        return self.ended

    def _note(self, said: tuple[str, ...]) -> None:
        now = time.monotonic()
        if said[0] == "step":
            self.steps.append(said[1])
            self.paces[said[1]] = now
        else:
            self.ended = True
            self.paces = {step: now - then for step, then in self.paces.items()}
            if said[0] == "failed":
                self.error, self.trace = said[1], said[2]

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        self._process.kill()
        self._process.join()
        self.follow(time.monotonic() + _ENDS_S)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


@dataclass
class TableKills(Played):
    """`refused` are runs whose rival was quicker."""

    rivals: int = 0
    refused: int = 0

    shown: ClassVar = {"kills": "kills", "rivals": "rivals", "refused": "refused"}


class TableMatrix(Matrix[TableKills]):
    """A broker and the places of tables, which rounds share."""

    played = TableKills

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._paces: dict[tuple[Cell, str], float] = {}

    def _play(self, played: TableKills) -> None:
        """The files of a round stay when it failed."""
        directory = self._directory / f"round-{next(self._numbers)}"
        directory.mkdir(parents=True)
        work = played.cell.work(self.broker.bootstrap, self.sites, directory, played.seed)
        _Round(self, work, played).play()
        work.close()
        if not played.problems:
            shutil.rmtree(directory)

    def pace(self, cell: Cell, step: str) -> float:
        """Seconds from the step to the end of an undisturbed run."""
        return self._paces.get((cell, step), _FIRST_GUESS_S)

    def learn(self, cell: Cell, paces: Mapping[str, float]) -> None:
        for step, seconds in paces.items():
            self._paces[cell, step] = seconds

    def __enter__(self) -> Self:
        self.broker = BrokerProcess(self._directory / "broker", standalone=True)
        self._running.callback(self.broker.kill)
        self.broker.start()
        self.sites = self._running.enter_context(Sites())
        return self


class _Round:
    """The chances and the course of one round."""

    def __init__(self, matrix: TableMatrix, work: Work, played: TableKills) -> None:
        self._matrix, self._work, self._played = matrix, work, played
        self._dice = random.Random(played.seed)

    def play(self) -> None:
        work, played = self._work, self._played
        for _ in range(work.first_loads or self._dice.randrange(2)):  # without one the first load of all is struck
            work.produce()
            self._finish(work.loading)
        blows = 1 + (self._dice.random() < _SECOND_BLOW)
        for _ in range(_AIMS):
            if played.kills >= blows:
                break
            work.produce()
            self._attempt()
            self._audit(Audit.MEANWHILE)
        self._finish(work.loading)
        if work.struck != work.loading:
            self._finish(work.struck)
        self._audit(Audit.WHOLE)
        work.produce()  # the load after a killed one's successor sweeps what may lie there
        self._finish(work.loading)
        # A rival that was discarded while it wrote may leave a file that only a sweep of orphans finds.
        self._audit(Audit.WHOLE if played.rivals else Audit.SWEPT)

    def _attempt(self) -> None:
        """One run with a blow, perhaps beside a rival."""
        job = self._work.struck
        steps = self._work.steps
        step = self._dice.choice(steps)
        is_held = self._dice.random() < _HELD
        share = self._dice.random()
        run = Run(self._work, job, step if is_held else None)
        rival = Run(self._work, job) if self._dice.random() < _RIVAL else None
        try:
            deadline = time.monotonic() + _ENDS_S
            ended = run.follow(deadline, step)
            delay = 0.0 if is_held else share * self._matrix.pace(self._work.cell, step)
            self._note(f"beside the job: {problem}" for problem in self._work.look())
            ended = ended or run.follow(time.monotonic() + delay)
            if ended:
                self._take(run, f"missed at {step}")
            else:
                assert time.monotonic() < deadline, f"the job has not reached '{step}' in {_ENDS_S:g} s"
                run.kill()
                self._played.kills += 1
                where = f"held at {step}" if is_held else f"{delay:.3f} s after {step}"
                self._played.steps.append(f"kill {where}")
            if rival is not None:
                self._played.rivals += 1
                assert rival.follow(time.monotonic() + _ENDS_S), "the rival hangs"
                self._take(rival, "rival")
        finally:
            run.close()
            if rival is not None:
                rival.close()

    def _finish(self, job: str) -> None:
        """Run the job until it ends well."""
        for _ in range(_TRIES):
            run = Run(self._work, job)
            try:
                assert run.follow(time.monotonic() + _ENDS_S), f"{job} hangs"
                self._take(run, job)
                if run.error is None:
                    if job == self._work.struck:
                        self._matrix.learn(self._work.cell, run.paces)
                    return
            finally:
                run.close()
        raise AssertionError(f"{job} did not end well in {_TRIES} tries")

    def _take(self, run: Run, what: str) -> None:
        """Note how a run ended by itself. Raises AssertionError for an error that nobody caused."""
        refused = run.error is not None and run.error.startswith(_REFUSALS)
        self._played.refused += refused
        assert run.error is None or refused, f"{what}: {run.error}\n{run.trace}"
        self._played.steps.append(f"{what}: {'refused' if refused else 'ran well'}")

    def _audit(self, audit: Audit) -> None:
        self._note(f"{audit.value}: {problem}" for problem in self._work.audit(audit))

    def _note(self, problems: Iterable[str]) -> None:
        self._played.problems += [problem for problem in problems if problem not in self._played.problems]


if __name__ == "__main__":
    command(__doc__, TableMatrix, CELLS)
