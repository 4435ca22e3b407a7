"""The console command `pykafka load`: an exactly-once load from a terminal or a scheduler.

Found by the console through the entry point group `pykafka.commands`; the work is `spark_connector.load`. Shows the
phases and Spark's tasks while it runs, and what was loaded per partition at the end. `--json` prints one document and
nothing else. PykafkaErrors pass: the console makes one line of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker.errors import ConfigError
from spark_connector.loads.planner import recover as recover_loads
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import FORMATS, OFFSET_KINDS, LoadRequest, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_connector.load import LoadResult

__all__ = ["load"]

_POLL_SECONDS = 0.2
_PHASES = {
    "repair": "looking for unfinished loads",
    "plan": "asking the brokers what is new",
    "write": "writing",
    "commit": "committing",
    "done": "done",
}
_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def load(
    to: Annotated[str, typer.Option(help="Directory the loads go to: local or hdfs://.", metavar="DIR")],
    group: Annotated[str, typer.Option(help="Name of this sequence of loads.", metavar="NAME")],
    bootstrap_server: Annotated[
        str, typer.Option("--bootstrap-server", "-b", help="Brokers to ask first.", metavar="HOST:PORT,…")
    ] = "127.0.0.1:9092",
    topic: Annotated[str | None, typer.Option(help="Topics, comma-separated.", metavar="NAME,…")] = None,
    offsets: Annotated[str, typer.Option(help=f"Where the offsets are kept: {' or '.join(OFFSET_KINDS)}.")] = "files",
    zookeeper: Annotated[
        str | None, typer.Option(help="ZooKeeper for --offsets zookeeper.", metavar="HOST:PORT[/CHROOT]")
    ] = None,
    format: Annotated[str, typer.Option(help=f"Output format: {', '.join(FORMATS)}.")] = "parquet",
    starting_offsets: Annotated[
        str, typer.Option(help="Where a partition begins that was never loaded: earliest or JSON.")
    ] = "earliest",
    max_records: Annotated[int | None, typer.Option(min=1, help="At most so many offsets in this load.")] = None,
    from_load: Annotated[
        str | None, typer.Option("--from", help="Load again from this load on, into an empty --to.", metavar="LOAD_ID")
    ] = None,
    from_directory: Annotated[
        str | None, typer.Option("--from-dir", help="Where that load lies (--offsets files).", metavar="DIR")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the reader; may be repeated.", metavar="NAME=VALUE")
    ] = None,
    write_option: Annotated[
        list[str] | None, typer.Option(help="Option of the output format; may be repeated.", metavar="NAME=VALUE")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help="Spark setting; may be repeated.", metavar="NAME=VALUE")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    recover: Annotated[bool, typer.Option("--recover", help="Only finish loads that were killed; no Spark.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Load what is new in a topic into files, each record exactly once."""
    settings = _pairs(conf, "--conf")
    target = Target(to, group, offsets, zookeeper, _hadoop(settings))
    if recover:
        _print_recovered(target, as_json)
        return
    request = LoadRequest.build(
        target,
        bootstrap_servers=bootstrap_server,
        topic=topic,
        format=format,
        starting_offsets=starting_offsets,
        max_records=max_records,
        options=_pairs(option, "--option"),
        write_options=_pairs(write_option, "--write-option"),
        from_load=from_load,
        from_directory=from_directory,
    )
    result = _run(request, master, settings, Console(stderr=True, quiet=as_json))
    typer.echo(json.dumps(result.to_json())) if as_json else _print_result(result)


def _run(request: LoadRequest, master: str, settings: Mapping[str, str], console: Console) -> LoadResult:
    """Spark starts only when there is something to load: an error or "nothing new" comes at once."""
    # Half a second of imports that --help and --recover need not pay.
    from pyspark.sql import SparkSession

    from spark_connector.load import run_load

    sessions: list[SparkSession] = []

    def start() -> SparkSession:
        # Spark would take the python3 of the PATH for its workers, which may be another one, without the connector.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(master).appName(f"pykafka load {request.target.group}")
        for name, value in {**_SESSION, **settings}.items():
            builder = builder.config(name, value)
        sessions.append(builder.getOrCreate())
        return sessions[0]

    try:
        with _shown(sessions, console) as on_phase:
            return run_load(request, start, on_phase)
    finally:
        for session in sessions:
            session.stop()


@contextmanager
def _shown(sessions: Sequence[SparkSession], console: Console) -> Iterator[Any]:
    """A progress line that follows the first of `sessions` once it is there; gives the function to tell the phase."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    stopped = threading.Event()
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task(_PHASES["repair"], total=None)

        def on_phase(phase: str, record: LoadRecord | None) -> None:
            offsets = sum(range.size for range in record.ranges) if record else 0
            text = f"{_PHASES[phase]} {offsets:,} offsets" if phase == "write" else _PHASES[phase]
            progress.update(line, description=text)

        watcher = threading.Thread(target=_watch, args=(sessions, progress, line, stopped), daemon=True)
        watcher.start()
        try:
            yield on_phase
        finally:
            stopped.set()
            watcher.join()


def _watch(sessions: Sequence[SparkSession], progress: Progress, line: Any, stopped: threading.Event) -> None:
    """Follow the tasks of the running Spark job until told to stop."""
    while not stopped.wait(_POLL_SECONDS):
        tracker = sessions[0].sparkContext.statusTracker() if sessions else None
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()] if tracker else []
        running = [stage for stage in stages if stage is not None]
        if running:
            total = sum(stage.numTasks for stage in running)
            progress.update(line, total=total, completed=sum(stage.numCompletedTasks for stage in running))


def _print_result(result: LoadResult) -> None:
    console = Console()
    for load_id in result.recovered:
        console.print(f"Finished load [bold]{load_id}[/bold], which had been killed.")
    if result.load_id is None:
        console.print(f"Nothing new for group [bold]{result.group}[/bold]; {result.output} is up to date.")
        return
    table = Table(title=f"Load {result.load_id}: {result.rows:,} rows", title_justify="left")
    table.add_column("topic")
    for heading in ("partition", "from", "to", "rows"):
        table.add_column(heading, justify="right")
    for range in result.ranges:
        numbers = (range.partition, range.start, range.end, range.rows or 0)
        table.add_row(range.topic, *(f"{number:,}" for number in numbers))
    console.print(table)
    console.print(f"{result.format} in {result.path}", soft_wrap=True)


def _print_recovered(target: Target, as_json: bool) -> None:
    finished = recover_loads(target)
    if as_json:
        typer.echo(json.dumps({"recovered": finished}))
        return
    for load_id in finished:
        typer.echo(f"Finished load {load_id}, which had been killed.")
    if not finished:
        typer.echo("Nothing to recover.")


def _pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"{option} {text}: expected NAME=VALUE")
        pairs[name] = value
    return pairs


def _hadoop(settings: dict[str, str]) -> dict[str, str]:
    """`--conf spark.hadoop.x=y` as the Hadoop setting x, for work without Spark."""
    prefix = "spark.hadoop."
    return {name[len(prefix) :]: value for name, value in settings.items() if name.startswith(prefix)}
