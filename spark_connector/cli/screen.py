"""What a command of loads shows: one console for the progress line and for all other lines, so that they never mix.

On a terminal there is a line that moves, and others appear above it. Elsewhere (a pipe, a log) each phase is a plain
line on standard error. What is asked for goes to standard output in either case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class ProgressLine:
    """The line that moves: a phase, and how many of Spark's tasks are done."""

    def __init__(self, screen: Screen, progress: Progress | None) -> None:
        self._screen = screen
        self._progress = progress
        self._line = progress.add_task("", total=None, tasks="") if progress else None
        self._text = ""

    def phase(self, text: str, *, plain: bool) -> None:
        """A new phase. `plain`: worth a line of its own where nothing moves."""
        if text == self._text:
            return
        self._text = text
        if self._progress is not None and self._line is not None:
            self._progress.update(self._line, description=text, total=None, completed=0, tasks="", refresh=True)
        elif plain:
            self._screen.say(text)

    def tasks(self, done: int, total: int) -> None:
        if self._progress is not None and self._line is not None:
            self._progress.update(self._line, total=total, completed=done, tasks=f"{done}/{total} tasks")


class Screen:
    """A context manager. `quiet`: no progress, for output that a program reads."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console: Console | None = None

    def __enter__(self) -> Self:
        if not self._quiet and os.isatty(2):
            # A copy: standard error itself goes to a file while Spark starts.
            self._console = Console(file=os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding or "utf-8"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console is not None:
            self.release()
            console, self._console = self._console, None
            console.file.close()

    def release(self) -> None:
        """Give the terminal back as it was, before the process ends at once."""
        if self._console is not None:
            self._console.show_cursor(True)

    def say(self, text: str) -> None:
        """A line with the time, beside the output: standard error."""
        self._write(f"{now()} {text}", err=True)

    def print(self, text: str) -> None:
        """A line of the output."""
        self._write(text, err=False)

    @contextmanager
    def progress(self) -> Iterator[ProgressLine]:
        """The line that moves, for as long as the block runs."""
        if self._console is None:
            yield ProgressLine(self, None)
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[tasks]}", markup=False),
            TimeElapsedColumn(),
        )
        console = self._console
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
            yield ProgressLine(self, progress)

    def _write(self, text: str, *, err: bool) -> None:
        if self._console is not None and (err or sys.stdout.isatty()):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif not (err and self._quiet):
            typer.echo(text, err=err)


def now() -> str:
    """UTC with seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
