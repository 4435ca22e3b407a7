"""The console command `pykafka loads`: what a group's loads have done, and the ways back.

`pykafka loads` lists, `show` tells one load in full, `verify` recounts against the log and the files, `rewind` makes
the group stand at an earlier load, `prune` forgets old entries, `recover` finishes what was killed. `--to`, `--group`
and where the offsets are kept may stand before or behind the sub-command. No Spark. The work is loads/upkeep.py and
loads/verify.py. Exit status 1 also when `verify` finds what does not add up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from broker.errors import ConfigError
from spark_connector.cli.pairs import parse_pairs
from spark_connector.cli.tables import print_table
from spark_connector.cli.verified import print_verified
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry, LoadState
from spark_connector.loads.planner import recover as recover_loads
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import OFFSET_KINDS, Target
from spark_connector.loads.upkeep import history, prune, rewind
from spark_connector.loads.verify import verify

__all__ = ["app"]

app = typer.Typer(help="List and show loads; verify, rewind, prune and recover them.", invoke_without_command=True)

To = Annotated[str | None, typer.Option(help="Directory the loads go to: local or hdfs://.", metavar="DIR")]
Group = Annotated[str | None, typer.Option(help="Name of the sequence of loads.", metavar="NAME")]
Offsets = Annotated[
    str | None, typer.Option(help=f"Where the offsets are kept: {' or '.join(OFFSET_KINDS)}. Default: files.")
]
ZooKeeper = Annotated[str | None, typer.Option(help="ZooKeeper for --offsets zookeeper.", metavar="HOST:PORT[/CHROOT]")]
Hadoop = Annotated[
    list[str] | None, typer.Option("--hadoop", help="Hadoop client setting; may be repeated.", metavar="NAME=VALUE")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True)
class _Place:
    """The options that say which loads are meant; None: not given here."""

    to: str | None
    group: str | None
    offsets: str | None
    zookeeper: str | None
    hadoop: list[str] | None
    as_json: bool = False


@app.callback()
def loads(
    context: typer.Context,
    to: To = None,
    group: Group = None,
    offsets: Offsets = None,
    zookeeper: ZooKeeper = None,
    hadoop: Hadoop = None,
    as_json: Json = False,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.")] = None,
) -> None:
    """List what has been loaded, and what is under way."""
    context.obj = _Place(to, group, offsets, zookeeper, hadoop, as_json)
    if context.invoked_subcommand is not None:
        return
    entries = history(_target(context, context.obj))
    shown = entries[-last:] if last else entries
    if as_json:
        typer.echo(json.dumps([entry.to_json() for entry in shown], indent=2))
    else:
        _print_list(shown)


@app.command()
def show(
    context: typer.Context,
    load_id: Annotated[str, typer.Argument(help="A load, as `pykafka loads` names it.")],
    to: To = None,
    group: Group = None,
    offsets: Offsets = None,
    zookeeper: ZooKeeper = None,
    hadoop: Hadoop = None,
    as_json: Json = False,
) -> None:
    """Show one load: its ranges, its files, its state."""
    place = _Place(to, group, offsets, zookeeper, hadoop, as_json)
    entry = _find(history(_target(context, place)), load_id)
    if _as_json(context, place):
        files = None if entry.files is None else [asdict(file) for file in entry.files]
        typer.echo(json.dumps({**entry.to_json(), "file_list": files}, indent=2))
    else:
        _print_entry(entry)


@app.command("verify")
def verify_command(
    context: typer.Context,
    to: To = None,
    group: Group = None,
    bootstrap_server: Annotated[
        str, typer.Option("--bootstrap-server", "-b", help="Brokers to ask first.", metavar="HOST:PORT,…")
    ] = "127.0.0.1:9092",
    load_id: Annotated[
        list[str] | None, typer.Option("--load", help="Only this load; may be repeated.", metavar="LOAD_ID")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the reader, as the loads had it; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    offsets: Offsets = None,
    zookeeper: ZooKeeper = None,
    hadoop: Hadoop = None,
    as_json: Json = False,
) -> None:
    """Recount every committed load against the log and against its files."""
    place = _Place(to, group, offsets, zookeeper, hadoop, as_json)
    target, as_json = _target(context, place), _as_json(context, place)
    verified = verify(target, bootstrap_server, only=load_id or (), options=parse_pairs(option, "--option"))
    print_verified(verified, as_json)
    if not verified.ok:
        raise typer.Exit(1)


@app.command("rewind")
def rewind_command(
    context: typer.Context,
    to_load: Annotated[str, typer.Option("--to-load", help="The load to go back to.", metavar="LOAD_ID")],
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the later loads' output; else it is moved to _rewound/.")
    ] = False,
    yes: Yes = False,
    to: To = None,
    group: Group = None,
    offsets: Offsets = None,
    zookeeper: ZooKeeper = None,
    hadoop: Hadoop = None,
    as_json: Json = False,
) -> None:
    """Make the group stand at an earlier load again, the later loads' output taken away."""
    place = _Place(to, group, offsets, zookeeper, hadoop, as_json)
    target, as_json = _target(context, place), _as_json(context, place)
    if as_json and not yes:
        raise ConfigError("rewind asks before it does anything; with --json give --yes")

    def confirm(plan: LoadRecord) -> bool:
        if not as_json:
            _print_plan(plan)
        return yes or typer.confirm("Rewind?", default=False)

    done = rewind(target, to_load, delete=delete, confirm=confirm)
    if as_json and done is not None:
        typer.echo(json.dumps(done.to_json(), indent=2))
    elif done is None:
        typer.echo("Nothing was changed.")
        raise typer.Exit(1)
    else:
        typer.echo(f"Group {done.id.group} stands at {to_load} again (rewind {done.load_id}).")


@app.command("prune")
def prune_command(
    context: typer.Context,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest entries stay.")],
    to: To = None,
    group: Group = None,
    offsets: Offsets = None,
    zookeeper: ZooKeeper = None,
    hadoop: Hadoop = None,
    as_json: Json = False,
) -> None:
    """Forget old entries of the commit log; data is not touched."""
    place = _Place(to, group, offsets, zookeeper, hadoop, as_json)
    target, as_json = _target(context, place), _as_json(context, place)
    pruned = prune(target, keep)
    text = f"Forgot {len(pruned)} entries, {pruned[0]} to {pruned[-1]}." if pruned else "Nothing to forget."
    typer.echo(json.dumps({"pruned": pruned}) if as_json else text)


@app.command("recover")
def recover_command(
    context: typer.Context,
    to: To = None,
    group: Group = None,
    offsets: Offsets = None,
    zookeeper: ZooKeeper = None,
    hadoop: Hadoop = None,
    as_json: Json = False,
) -> None:
    """Bring loads and rewinds that were killed to their end, as the next load would."""
    place = _Place(to, group, offsets, zookeeper, hadoop, as_json)
    target, as_json = _target(context, place), _as_json(context, place)
    finished = recover_loads(target)
    lines = [f"Finished {load_id}, which had been killed." for load_id in finished] or ["Nothing to recover."]
    typer.echo(json.dumps({"recovered": finished}) if as_json else "\n".join(lines))


def _target(context: typer.Context, place: _Place) -> Target:
    """From the options behind the sub-command, else from those before it."""
    before: _Place = context.obj
    given = {field.name: getattr(place, field.name) for field in fields(place)}
    place = replace(before, **{name: value for name, value in given.items() if value not in (None, False)})
    if place.to is None or place.group is None:
        raise ConfigError("say which loads: --to DIR and --group NAME")
    hadoop = parse_pairs(place.hadoop, "--hadoop")
    offsets = place.offsets or ("zookeeper" if place.zookeeper else "files")
    return Target(place.to, place.group, offsets, place.zookeeper, hadoop)


def _as_json(context: typer.Context, place: _Place) -> bool:
    before: _Place = context.obj
    return place.as_json or before.as_json


def _find(entries: Sequence[HistoryEntry], load_id: str) -> HistoryEntry:
    for entry in entries:
        if entry.record.load_id == load_id:
            return entry
    newest = f"; the newest is {entries[-1].record.load_id}" if entries else "; there is none at all"
    raise ConfigError(f"there is no load '{load_id}'{newest}")


def _print_list(entries: Sequence[HistoryEntry]) -> None:
    console = Console()
    if not entries:
        console.print("Nothing has been loaded.")
        return
    rows = []
    for entry in entries:
        record = entry.record
        numbers = (len(record.ranges), record.rows, None if entry.files is None else len(entry.files), entry.bytes)
        cells = ["-" if number is None else f"{number:,}" for number in numbers]
        if record.rewind is not None:
            cells = ["-"] * len(cells)
        rows.append([record.load_id, _time(record), _state(entry), ", ".join(entry.topics), *cells])
    print_table(["load", "time (UTC)", "state", "topics"], ["partitions", "rows", "files", "bytes"], rows)
    for entry in entries:
        if entry.state in WHAT_TO_DO:
            console.print(f"{entry.record.load_id} {WHAT_TO_DO[entry.state]}", soft_wrap=True, highlight=False)


def _print_entry(entry: HistoryEntry) -> None:
    record = entry.record
    facts: dict[str, Any] = {
        "load": record.load_id,
        "time": f"{_time(record)} UTC",
        "state": _state(entry),
        "format": record.format,
        "output": record.output,
        "directory": entry.directory,
        "rows": f"{record.rows:,}",
        "files": None if entry.files is None else f"{len(entry.files):,} with {entry.bytes or 0:,} bytes",
        "again since": record.rerun_of,
        "process": f"{entry.owner.pid} on {entry.owner.host}" if entry.owner else None,
    }
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name + ':':12} {value}")
    console = Console()
    if record.rewind is not None:
        for undone in record.rewind.undone:
            console.print(f"took back    {undone.load_id}", soft_wrap=True, highlight=False)
    ranges = Table(title="Ranges", title_justify="left")
    ranges.add_column("topic")
    for heading in ("partition", "from", "to", "rows"):
        ranges.add_column(heading, justify="right")
    for range in record.ranges:
        rows = "-" if range.rows is None else f"{range.rows:,}"
        ranges.add_row(range.topic, str(range.partition), f"{range.start:,}", f"{range.end:,}", rows)
    console.print(ranges)
    for file in entry.files or ():
        typer.echo(f"{file.size:>14,}  {file.name}")
    if entry.state in WHAT_TO_DO:
        typer.echo(f"{record.load_id} {WHAT_TO_DO[entry.state]}")


def _print_plan(plan: LoadRecord) -> None:
    assert plan.rewind is not None
    fate = "is deleted" if plan.rewind.delete else f"is moved to _rewound/{plan.load_id}/"
    typer.echo(f"Group {plan.id.group} goes back to {plan.rewind.to_load}:")
    for undone in reversed(plan.rewind.undone):
        typer.echo(f"  {undone.output}/load={undone.load_id} {fate}")
    for range in plan.ranges:
        typer.echo(f"  {range.topic}-{range.partition}: offset {range.stored} becomes {range.end}")


def _state(entry: HistoryEntry) -> str:
    if entry.record.rewind is not None:
        return f"rewind to {entry.record.rewind.to_load}"
    if entry.state is LoadState.REWOUND and entry.directory is None:
        return "rewound, deleted"
    return entry.state.value


def _time(record: LoadRecord) -> str:
    if record.created_ms < 0:
        return "-"
    return datetime.fromtimestamp(record.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
