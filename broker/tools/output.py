"""What commands print: tables for people, JSON for programs.

Standard output holds the result and nothing else: with `--json` one document, or one object per line. Notes and the
progress bar go to standard error, the bar only if that is a terminal. Lines are never wrapped or cut. Clients choose
some of the names; their control characters are escaped.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from broker.control_characters import escaped, escaped_json
from broker.errors import ConfigError, PykafkaError
from broker.verdict import CheckFailed, Verdict

_GAP = "  "
_CAPITAL, _HYPHENED = re.compile("[A-Z]"), r"-\g<0>"
_WORD = re.compile("[-_](.)")


def print_json(document: Any) -> None:
    typer.echo(escaped_json(json.dumps(document, indent=2, ensure_ascii=False)))


def print_json_lines(rows: Iterable[Any]) -> None:
    """Print one object per line, each as soon as it is known."""
    for row in rows:
        typer.echo(escaped_json(json.dumps(row, ensure_ascii=False)))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people. A name in them stays on its line."""
    for line in lines:
        typer.echo(_shown(line))


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str = "") -> None:
    """Print columns under capitals: numbers right-aligned, None as a dash. Without rows, note `nothing` instead."""
    given = list(rows)
    if not given:
        if nothing:
            note(nothing)
        return
    cells = [["-" if cell in (None, "") else escaped(str(cell)) for cell in row] for row in given]
    numeric = [all(isinstance(row[i], (int, float, type(None))) for row in given) for i in range(len(head))]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    for row in [[name.upper() for name in head], *cells]:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        typer.echo(_GAP.join(aligned).rstrip())


def print_view(
    documents: Iterable[Mapping[str, Any]],
    columns: str,
    as_json: bool = False,
    *,
    shown: Mapping[str, Callable[[Any], object]] | None = None,
    nothing: str = "",
) -> None:
    """Print fields of documents as a table, or with `as_json` the documents themselves.

    `columns`: the headings, with commas between. One that is not its field's name with hyphens has that behind it:
    `consumer-id=memberId`. `shown`: how the table shows the field under a heading.
    """
    given = list(documents)
    if as_json:
        print_json(given)
        return
    texts = shown or {}
    cells = []
    for column in columns.split(","):
        heading, _, field = column.strip().partition("=")
        cells.append((heading, field or _camel_case(heading), texts.get(heading)))
    rows = [[one[field] if text is None else text(one[field]) for _, field, text in cells] for one in given]
    print_table([heading for heading, *_ in cells], rows, nothing=nothing)


def print_rows(names: Sequence[str], rows: Iterable[Sequence[object]], as_json: bool, *, nothing: str = "") -> None:
    """Print documents with fields of these names, all of them also in the table."""
    columns = ",".join(f"{_CAPITAL.sub(_HYPHENED, name)}={name}" for name in names)
    print_view((dict(zip(names, row, strict=True)) for row in rows), columns, as_json, nothing=nothing)


def document(row: Any) -> dict[str, Any]:
    """A named tuple with JSON's names of its fields. A partition `tp` is its topic and its number."""
    fields = row._asdict()
    tp = fields.pop("tp")._asdict() if "tp" in fields else {}
    return tp | {_camel_case(name): value for name, value in fields.items()}


def _camel_case(name: str) -> str:
    return _WORD.sub(lambda match: match[1].upper(), name)


def report(as_json: bool, message: str, document: Any) -> None:
    """Print what was done, as a sentence or as a document."""
    if as_json:
        print_json(document)
    else:
        typer.echo(_shown(message))


def note(message: str) -> None:
    """Print a line on standard error, for a person who watches."""
    typer.echo(_shown(message), err=True)


def _shown(text: str) -> str:
    """With its tabs, which stand between columns."""
    return "\t".join(map(escaped, text.split("\t")))


@contextlib.contextmanager
def checking(as_json: bool) -> Iterator[None]:
    """A block that checks: an error in it says that nothing could be looked at. With `as_json` a document says so.

    Raises CheckFailed for an error; a ConfigError, which is wrong usage, goes on.
    """
    try:
        yield
    except (ConfigError, CheckFailed):
        raise
    except (PykafkaError, OSError) as error:
        if as_json:
            print_json({"verdict": Verdict.UNKNOWN, "unread": [str(error)]})
        raise CheckFailed(f"{Verdict.UNKNOWN}, nothing could be checked: {error}") from error


def end_check(verdict: Verdict) -> None:
    """End the command with the status of the verdict."""
    if verdict is not Verdict.OK:
        raise typer.Exit(verdict.exit_status)


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 topic`, `2,000 topics`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def as_time(ms: int) -> str | None:
    """`2026-01-31 12:00:00.000`, UTC; None for -1, which means "no timestamp"."""
    if ms < 0:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


@contextlib.contextmanager
def progress_bar(description: str, total: float | None) -> Iterator[Callable[[float, str], None]]:
    """Show a bar; the caller calls `advance(done so far, text beside the bar)`. `total` is None if unknown."""
    if not sys.stderr.isatty():
        yield lambda done, text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total, text="")
        yield lambda done, text: progress.update(task, completed=done, text=text)
