"""What `pykafka loads verify` and `pykafka load --verify` print: a table of counts, then what does not add up."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from spark_connector.cli.tables import print_table
from spark_connector.loads.verify import LoadCheck, Verification

__all__ = ["print_verified"]

_STYLES = {"ok": "green", "mismatch": "red", "unverifiable": "yellow"}


def print_verified(verified: Verification, as_json: bool) -> None:
    """One document, or a row per load; problems and what could not be checked in words below."""
    if as_json:
        typer.echo(json.dumps(verified.to_json(), indent=2))
        return
    console = Console()
    if not verified.loads and verified.ok:
        console.print("Nothing has been loaded.")
        return
    rows = [
        [load.load_id, f"[{_STYLES[load.verdict]}]{load.verdict}[/]", *(f"{number:,}" for number in _numbers(load))]
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


def _numbers(load: LoadCheck) -> tuple[int, int, int, int, int]:
    counts = load.partitions
    return (
        len(counts),
        sum(count.rows for count in counts),
        sum(count.file_rows for count in counts),
        sum(count.log_rows or 0 for count in counts),
        sum(count.gone for count in counts),
    )
