"""What commands print: text for people, JSON for programs, progress on the side.

Called by every command that prints more than a line. Standard output holds the result and nothing else: with `--json`
one document, or one object per line. A progress bar goes to standard error, and only when that is a terminal.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["as_time", "note", "print_json", "print_lines", "print_rows", "print_table", "progress_bar", "report"]

_GAP = "  "


def print_json(document: Any) -> None:
    """One document."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_rows(rows: Iterable[Any]) -> None:
    """One object per line, each as soon as there is one."""
    for row in rows:
        typer.echo(json.dumps(row, ensure_ascii=False))


def print_lines(lines: Iterable[str]) -> None:
    """Text."""
    for line in lines:
        typer.echo(line)


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str = "") -> None:
    """Columns under capitals, numbers to the right; None is shown as a dash. Without rows `nothing`, as a note."""
    given = list(rows)
    if not given:
        if nothing:
            note(nothing)
        return
    cells = [["-" if cell in (None, "") else str(cell) for cell in row] for row in given]
    numeric = [all(isinstance(row[i], (int, float, type(None))) for row in given) for i in range(len(head))]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    for row in [[name.upper() for name in head], *cells]:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        typer.echo(_GAP.join(aligned).rstrip())


def report(as_json: bool, message: str, document: Any) -> None:
    """What was done, as a sentence or as a document."""
    if as_json:
        print_json(document)
    else:
        typer.echo(message)


def note(message: str) -> None:
    """A line on standard error, for a person who watches."""
    typer.echo(message, err=True)


def as_time(ms: int) -> str | None:
    """`2026-01-31 12:00:00.000`, UTC; None for what is no time (-1)."""
    if ms < 0:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


@contextlib.contextmanager
def progress_bar(description: str, total: float | None) -> Iterator[Callable[[float, str], None]]:
    """A bar for long work: `advance(done_so_far, what to say beside it)`. `total` None: not known."""
    if not sys.stderr.isatty():
        yield lambda done, text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total, text="")
        yield lambda done, text: progress.update(task, completed=done, text=text)
