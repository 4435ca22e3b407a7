"""What a command of loads shows: one console for the progress line and for all other lines, so that they never mix.

On a terminal there is a line that moves, and others appear above it. Elsewhere (a pipe, a log) each phase is a plain
line on standard error. What is asked for goes to standard output in either case.

Tables are never cut to the width of the terminal, which breaks long lines by itself: rich would break names and cut
numbers in a narrow terminal, and in a pipe, which it takes for 80 columns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker.tools.spelling import spoken
from broker.verdict import Verdict
from spark_connector.loads.audit.verify import Verification
from spark_connector.loads.record import LoadRange, LoadResult

_LONGEST = 60  # characters of a text, such as many topics
_WIDE = 1000  # more than any line needs
_STYLES = {Verdict.OK: "green", Verdict.MISMATCH: "red", Verdict.UNKNOWN: "yellow"}


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

    def __exit__(self, *_error: object) -> None:
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
        self._write(f"{now()} {spoken(text)}", err=True)

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


def print_table(texts: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with the headings `texts` (the first is a name, and never breaks), then `numbers`."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(texts[0], no_wrap=True)
    for heading in texts[1:]:
        table.add_column(heading, overflow="fold", max_width=_LONGEST)
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, _WIDE)
    console.print(table)


def print_ranges(ranges: Sequence[LoadRange]) -> None:
    """Print a row per range; a dash for the rows of a load that is not written yet."""
    has_bad = any(range.bad is not None for range in ranges)
    numbers = ((range.partition, range.start, range.end, range.rows, range.bad) for range in ranges)
    cells = (["-" if number is None else f"{number:,}" for number in row] for row in numbers)
    rows = [[range.topic, *row[: 5 if has_bad else 4]] for range, row in zip(ranges, cells, strict=True)]
    print_table(["topic"], ["partition", "from", "to", "rows", *(["dead letters"] if has_bad else [])], rows)


def malformed_text(result: LoadResult) -> str:
    """How many records of a load could not be decoded."""
    return f"{result.malformed:,} of {result.read:,} malformed"


def print_recovered(finished: Sequence[str], as_json: bool) -> None:
    """Print the loads and rewinds that a recovery has finished."""
    lines = [f"Finished {load_id}, which had been killed." for load_id in finished] or ["Nothing to recover."]
    typer.echo(json.dumps({"recovered": finished}) if as_json else "\n".join(lines))


def print_verified(verified: Verification, as_json: bool) -> None:
    """Print a row per load with its counts, then what is wrong, unread or good to know; or one JSON document."""
    if as_json:
        typer.echo(json.dumps(verified.to_json(), indent=2))
        return
    console = Console()
    told = [*verified.problems, *_unread(verified.unread), *verified.notes]
    if not verified.loads:  # nothing, or a table with one row per key
        for text in told or ("Nothing has been loaded.",):
            console.print(text, soft_wrap=True, highlight=False, markup=False)
        return
    headings = ["partitions", "committed", "found", "dead letters", "in the log", "gone from the log"]
    totals = [list(load.totals) for load in verified.loads]
    if all(load.totals.bad == 0 for load in verified.loads):
        headings, totals = [*headings[:3], *headings[4:]], [[*row[:3], *row[4:]] for row in totals]
    rows = [
        [load.load_id, f"[{_STYLES[load.verdict]}]{load.verdict}[/]", *(f"{number:,}" for number in row)]
        for load, row in zip(verified.loads, totals, strict=True)
    ]
    print_table(["load", "verdict"], headings, rows)
    for load in verified.loads:
        for text in (*load.problems, *_unread(load.unread), *load.notes):
            console.print(f"{load.load_id}: {text}", soft_wrap=True, highlight=False, markup=False)
    for text in told:
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    if verified.ok:
        total = sum(load.totals.found for load in verified.loads)
        loads, agree = ("1 load", "agrees") if len(verified.loads) == 1 else (f"{len(verified.loads):,} loads", "agree")
        bad = sum(load.totals.bad for load in verified.loads)
        letters = f" and {bad:,} dead letters" if bad else ""
        console.print(f"{loads} with {total:,} rows{letters} {agree} with what is left of the log.")
    elif verified.verdict is Verdict.UNKNOWN:
        console.print("What could be compared agrees; the rest is unknown.")


def _unread(texts: Sequence[str]) -> list[str]:
    return [f"{Verdict.UNKNOWN}: {text}" for text in texts]
