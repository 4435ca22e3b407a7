"""The console command `pykafka loads`: lists, shows, verifies, rewinds, prunes and recovers the loads of a group, and
compacts their table.

The work is done in maintenance.py. Spark starts only when `verify` meets orc or json. The exit status of `verify` is
that of its verdict (broker/verdict.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from broker.errors import ConfigError
from broker.tools.client_options import BootstrapServer, ConfigFile, parse_pairs
from broker.tools.client_options import option as an_option
from broker.tools.output import checking, end_check
from spark_connector.cli.load_options import (
    REWINDABLE,
    Place,
    cluster_options,
    placed,
)
from spark_connector.cli.screen import print_ranges, print_recovered, print_table, print_verified
from spark_connector.cli.session import leaving_at_interrupt, quiet_session
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry, LoadedTable, LoadState
from spark_connector.loads.record import BEGINNING, LoadRecord
from spark_connector.loads.rewind import fates
from spark_connector.maintenance import compact, history, prune, recover, rewind, tables, verify

app = typer.Typer(
    help="List and show loads; verify, rewind, prune, compact and recover them.\n\n\b\nExamples:\n"
    "  pykafka loads --to data/flights --group etl\n"
    "  pykafka loads verify --to data/flights --group etl\n"
    "  pykafka loads --catalog prod",
    invoke_without_command=True,
)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.callback()
@placed
def loads(
    context: typer.Context,
    place: Place,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.", metavar="N")] = None,
    namespace: Annotated[
        str | None, typer.Option(help="With --catalog and without --to: only the tables in it.", metavar="NAME")
    ] = None,
) -> None:
    """List what has been loaded, and what is under way; or all tables of a catalog that loads write."""
    if context.invoked_subcommand is not None:
        return
    catalog = place.given.get("catalog")
    if catalog is not None and place.given.get("to") is None:
        _list_tables(tables(catalog, namespace), as_json=place.as_json)
        return
    if namespace is not None:
        raise ConfigError("--namespace goes with --catalog, without --to")
    known = history(place.target)
    shown = known.entries[-last:] if last else known.entries
    if place.as_json:
        typer.echo(json.dumps([entry.to_json() for entry in shown], indent=2))
    else:
        _print_list(shown)
    if forgotten := known.describe_forgotten():
        typer.echo(forgotten, err=place.as_json)


@app.command()
@placed
def show(
    place: Place,
    load_id: Annotated[str, typer.Argument(help="A load, as `pykafka loads` names it.", metavar="LOAD_ID")],
) -> None:
    """Show one load: its ranges, its files, its state.

    \b
    Examples:
      pykafka loads show --to data/flights --group etl etl-000042-5f0c7a1e
    """
    entry = _find(history(place.target).entries, load_id)
    if place.as_json:
        files = None if entry.files is None else [asdict(file) for file in entry.files]
        typer.echo(json.dumps({**entry.to_json(), "file_list": files}, indent=2))
    else:
        _print_entry(entry)


@app.command("verify")
@placed
def verify_command(
    place: Place,
    bootstrap_server: BootstrapServer = None,
    config: ConfigFile = None,
    load_id: Annotated[
        list[str] | None, typer.Option("--load", help="Only this load; may be repeated.", metavar="LOAD_ID")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the reader, such as a login; wins over what the loads have kept. May be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
) -> None:
    """Recount every committed load: its rows against Kafka's log.

    The exit status is 1 for a mismatch, and 3 if something could not be compared: records that the log no longer has, a
    column that is missing, a file or broker that does not answer. --load checks one load for itself.

    \b
    Examples:
      pykafka loads verify --to data/flights --group etl
    """
    servers, options = cluster_options(bootstrap_server, config, parse_pairs(option, "--option"))
    target = place.target
    with (
        checking(place.as_json),
        leaving_at_interrupt("interrupted"),
        quiet_session("pykafka loads verify", target.hadoop) as session,
    ):
        verified = verify(target, servers, only=load_id or (), options=options, session=session)
    print_verified(verified, place.as_json)
    end_check(verified.verdict)


@app.command("rewind")
@placed
def rewind_command(
    place: Place,
    to_load: Annotated[str | None, typer.Option("--to-load", help="The load to go back to.", metavar="LOAD_ID")] = None,
    all_loads: Annotated[bool, typer.Option("--all", help="Take back all loads, the first one, too.")] = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete the later loads' output; else files are moved to _rewound/."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Set the group back to an earlier load, and take back the output of the later loads.

    \b
    Examples:
      pykafka loads rewind --to data/flights --group etl --to-load etl-000042-5f0c7a1e
      pykafka loads rewind --to data/flights --group etl --all
    """
    if all_loads == (to_load is not None):
        raise ConfigError("say how far: --to-load LOAD_ID or --all")
    if place.as_json and not yes:
        raise ConfigError("rewind asks before it does anything; with --json give --yes")

    def confirm(plan: LoadRecord) -> bool:
        if not place.as_json:
            _print_plan(plan)
        return yes or typer.confirm("Rewind?", default=False)

    done = rewind(place.target, to_load, delete=delete, confirm=confirm)
    if place.as_json and done is not None:
        typer.echo(json.dumps(done.to_json(), indent=2))
    elif done is None:
        typer.echo("Nothing was changed.")
        raise typer.Exit(1)
    else:
        typer.echo(f"Group {done.id.group} stands at {to_load or BEGINNING} again (rewind {done.load_id}).")


@app.command("prune")
@placed
def prune_command(
    place: Place,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest entries stay.", metavar="N")],
) -> None:
    """Forget old entries of the commit log; data is not touched.

    \b
    Examples:
      pykafka loads prune --to data/flights --group etl --keep 100
    """
    pruned = prune(place.target, keep)
    text = f"Forgot {len(pruned)} entries, {pruned[0]} to {pruned[-1]}." if pruned else "Nothing to forget."
    typer.echo(json.dumps({"pruned": pruned}) if place.as_json else text)


@app.command("compact")
@placed
def compact_command(
    place: Place,
    rewindable: Annotated[str | None, an_option(*REWINDABLE)] = None,
    target_file_size: Annotated[str | None, an_option("Size of the new files. Default: 128MB.", "SIZE")] = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Delete the files that the table has not needed for its retention time.")
    ] = False,
) -> None:
    """Make large files of the small ones in a Delta or Iceberg table; its rows stay as they are.

    \b
    Examples:
      pykafka loads compact --to data/flights-delta --group etl
    """
    done = compact(place.target, rewindable=rewindable, target_file_size=target_file_size, vacuum=vacuum)
    typer.echo(json.dumps(done.to_json(), indent=2) if place.as_json else str(done))


@app.command("recover")
@placed
def recover_command(place: Place) -> None:
    """Finish loads and rewinds that were killed, as the next load would.

    \b
    Examples:
      pykafka loads recover --to data/flights --group etl
    """
    print_recovered(recover(place.target), place.as_json)


def _list_tables(found: Sequence[LoadedTable], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in found], indent=2))
        return
    rows = []
    for one in found:
        numbers = (one.number or None, one.rows, one.files)
        topics = ", ".join(f"{topic} ({len(offsets)})" for topic, offsets in one.offsets.items())
        cells = ["-" if number is None else f"{number:,}" for number in numbers]
        rows.append([one.table, one.group or "-", one.load_id or "-", _moment(one.created_ms), topics, *cells])
    print_table(["table", "group", "newest", "time (UTC)", "topics (partitions)"], ["number", "rows", "files"], rows)
    for one in found:
        if one.error:
            typer.echo(f"{one.table} cannot be read: {one.error}")


def _find(entries: Sequence[HistoryEntry], load_id: str) -> HistoryEntry:
    for entry in entries:
        if entry.record.load_id == load_id:
            return entry
    raise ConfigError(f"there is no load '{load_id}'; the newest is {entries[-1].record.load_id}")


def _print_list(entries: Sequence[HistoryEntry]) -> None:
    rows = []
    has_bad = any(entry.record.bad_rows is not None for entry in entries)
    for entry in entries:
        record = entry.record
        bad = [record.bad_rows] if has_bad else []
        files = None if entry.files is None else len(entry.files)
        partitions = sum(range.size > 0 for range in record.ranges)
        numbers = (partitions, record.rows, *bad, files, entry.bytes)
        cells = ["-" if number is None else f"{number:,}" for number in numbers]
        if record.rewind is not None:
            cells = ["-"] * len(cells)
        rows.append([record.load_id, _time(record), _state(entry), ", ".join(entry.topics), *cells])
    counted = ["partitions", "rows", *(["dead letters"] if has_bad else []), "files", "bytes"]
    print_table(["load", "time (UTC)", "state", "topics"], counted, rows)
    for entry in entries:
        if entry.state in WHAT_TO_DO:
            typer.echo(f"{entry.record.load_id} {WHAT_TO_DO[entry.state]}")


def _print_entry(entry: HistoryEntry) -> None:
    record = entry.record
    facts: dict[str, Any] = {
        "load": record.load_id,
        "time": f"{_time(record)} UTC",
        "state": _state(entry),
        "format": record.format or None,
        "output": record.output,
        "directory": entry.directory,
        "rows": f"{record.rows:,}",
        "bad": None if record.bad_rows is None else f"{record.bad_rows:,} in {', '.join(record.dead_letters)}",
        "files": None if entry.files is None else f"{len(entry.files):,} with {entry.bytes or 0:,} bytes",
        "from": record.origin,
        "read with": ", ".join(f"{name}={value}" for name, value in (record.reading or {}).items()) or None,
        "columns": ", ".join(record.columns) or None,
        "partitioned": ", ".join(record.partition_by) or None,
        "again since": record.rerun_of,
        "process": f"{entry.owner.pid} on {entry.owner.host}" if entry.owner else None,
    }
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name + ':':12} {value}")
    for undone in record.rewind.undone if record.rewind else ():
        typer.echo(f"took back    {undone.load_id}")
    print_ranges(record.ranges)
    for file in entry.files or ():
        typer.echo(f"{file.size:>14,}  {file.name}")
    if entry.state in WHAT_TO_DO:
        typer.echo(f"{record.load_id} {WHAT_TO_DO[entry.state]}")


def _print_plan(plan: LoadRecord) -> None:
    assert plan.rewind is not None
    typer.echo(f"Group {plan.id.group} goes back to {plan.rewind.to_load}:")
    for fate in fates(plan):
        typer.echo(f"  {fate}")
    for range in plan.ranges:
        typer.echo(f"  {range.topic}-{range.partition}: offset {range.stored} becomes {range.end}")


def _state(entry: HistoryEntry) -> str:
    if entry.record.rewind is not None:
        return f"rewind to {entry.record.rewind.to_load}"
    if entry.state is LoadState.REWOUND and entry.directory is None:
        return "rewound, deleted"
    return entry.state.value


def _time(record: LoadRecord) -> str:
    return _moment(record.created_ms)


def _moment(created_ms: int) -> str:
    if created_ms < 0:
        return "-"
    return datetime.fromtimestamp(created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
