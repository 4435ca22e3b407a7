"""Tables on standard output that are never cut to the width of the terminal.

rich would break names and cut numbers in a narrow terminal, and in a pipe, which it takes for 80 columns. A terminal
breaks long lines by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table

from spark_connector.loads.audit.verify import Verification
from spark_connector.loads.record import LoadRange

_LONGEST = 60  # characters of a text, such as many topics
_WIDE = 1000  # more than any line needs
_STYLES = {"ok": "green", "mismatch": "red", "unverifiable": "yellow"}


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
    numbers = ((range.partition, range.start, range.end, range.rows) for range in ranges)
    cells = (["-" if number is None else f"{number:,}" for number in row] for row in numbers)
    rows = [[range.topic, *row] for range, row in zip(ranges, cells, strict=True)]
    print_table(["topic"], ["partition", "from", "to", "rows"], rows)


def print_recovered(finished: Sequence[str], as_json: bool) -> None:
    """Print the loads and rewinds that a recovery has finished."""
    lines = [f"Finished {load_id}, which had been killed." for load_id in finished] or ["Nothing to recover."]
    typer.echo(json.dumps({"recovered": finished}) if as_json else "\n".join(lines))


def print_verified(verified: Verification, as_json: bool) -> None:
    """Print a row per load with its counts, then problems and notes; or one JSON document."""
    if as_json:
        typer.echo(json.dumps(verified.to_json(), indent=2))
        return
    console = Console()
    if not verified.loads and verified.ok:
        console.print("Nothing has been loaded.")
        return
    rows = [
        [load.load_id, f"[{_STYLES[load.verdict]}]{load.verdict}[/]", *(f"{number:,}" for number in load.totals)]
        for load in verified.loads
    ]
    print_table(["load", "verdict"], ["partitions", "committed", "found", "in the log", "gone from the log"], rows)
    for load in verified.loads:
        for text in (*load.problems, *load.notes):
            console.print(f"{load.load_id}: {text}", soft_wrap=True, highlight=False, markup=False)
    for text in (*verified.problems, *verified.notes):
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    if verified.ok:
        total = sum(count.file_rows for load in verified.loads for count in load.partitions)
        loads, agree = ("1 load", "agrees") if len(verified.loads) == 1 else (f"{len(verified.loads):,} loads", "agree")
        console.print(f"{loads} with {total:,} rows {agree} with what is left of the log.")
