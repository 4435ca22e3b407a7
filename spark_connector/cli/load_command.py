"""The console command `pykafka load`: an exactly-once load from a terminal or a scheduler.

The console finds it through the entry point group `pykafka.commands`. Shows the phases and Spark's tasks while it runs,
and the loaded rows per partition at the end. `--json` prints one document and nothing else. With `--watch` it is a
service (cli/service.py). PykafkaErrors are raised: the console prints them in one line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from broker.errors import ConfigError
from broker.tools.client_options import parse_pairs, with_options
from broker.tools.output import checking, end_check
from spark_connector import maintenance
from spark_connector.cli.load_options import (
    WHERE,
    BootstrapServer,
    CatalogOption,
    ConfigFile,
    OffsetsOption,
    RewindableOption,
    StorageOption,
    TableOption,
    ZooKeeperOption,
    cluster_options,
)
from spark_connector.cli.screen import Screen, malformed_text, print_ranges, print_recovered, print_verified
from spark_connector.cli.session import (
    LazySession,
    interruptible,
    leaving_at_interrupt,
    quiet_session,
    spark_log,
)
from spark_connector.loads.addresses import hadoop_settings, storage_options_for
from spark_connector.loads.load_loop import DEFAULT_INTERVAL
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import FORMATS, LoadRequest, Target
from spark_connector.loads.upsert import ENVELOPES, MODES

_ARGUMENTS = (
    *("topic", "columns", "partition_by", "sort_by", "starting_offsets", "max_records", "from_load", "from_directory"),
    *("allow_changed_options", "new_group", "publish_offsets", "target_file_size", "schema_evolution"),
    *("dead_letters", "max_bad"),
    *("mode", "key", "envelope", "order_by"),
)
"""Options that are arguments of `load`, too, by the same name."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The options of `pykafka load`."""

    to: Annotated[str, typer.Option(help=WHERE, metavar="DIR|URL")]
    group: Annotated[str, typer.Option(help="Name of this sequence of loads.", metavar="NAME")]
    bootstrap_server: BootstrapServer = None
    config: ConfigFile = None
    topic: Annotated[str | None, typer.Option(help="Topics, comma-separated.", metavar="NAME,…")] = None
    offsets: OffsetsOption = None
    zookeeper: ZooKeeperOption = None
    format: Annotated[
        str | None,
        typer.Option(help=f"Output format: {', '.join(FORMATS)}. Default: by --to, or parquet.", metavar="NAME"),
    ] = None
    table: TableOption = None
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of the output, such as value.*,key,offset as position.", metavar="COLUMN,…"),
    ] = None
    partition_by: Annotated[
        str | None,
        typer.Option(
            help="Columns that become directories, such as date or day(at),bucket(16,customer).", metavar="COLUMN,…"
        ),
    ] = None
    sort_by: Annotated[
        str | None, typer.Option(help="Columns that a file is sorted by, such as customer,at desc.", metavar="COLUMN,…")
    ] = None
    target_file_size: Annotated[
        str | None, typer.Option(help="Size at which a task begins another file. Default: 128MB.", metavar="SIZE")
    ] = None
    catalog: CatalogOption = None
    keep_snapshots: Annotated[
        int | None,
        typer.Option(min=1, help="Snapshots that an Iceberg table keeps. Default: 100.", metavar="N"),
    ] = None
    schema_evolution: Annotated[
        str,
        typer.Option(help="What a load may change in its table: none, add (columns) or add,widen.", metavar="POLICY"),
    ] = "none"
    mode: Annotated[
        str | None, typer.Option(help=f"What a load does with a table: {', '.join(MODES)}.", metavar="NAME")
    ] = None
    key: Annotated[
        str | None, typer.Option(help="With --mode upsert: the table has one row per key.", metavar="COLUMN,…")
    ] = None
    envelope: Annotated[
        str | None,
        typer.Option(
            help=f"With --mode upsert: {', '.join(ENVELOPES)} around the rows. Default: none.", metavar="NAME"
        ),
    ] = None
    order_by: Annotated[
        str | None,
        typer.Option(
            help="With --mode upsert: what orders the records of a key in several partitions.", metavar="COLUMN"
        ),
    ] = None
    starting_offsets: Annotated[
        str, typer.Option(help="Where a partition begins that was never loaded: earliest or JSON.", metavar="OFFSETS")
    ] = "earliest"
    max_records: Annotated[int | None, typer.Option(min=1, help="Offsets in this load at most.", metavar="N")] = None
    from_load: Annotated[
        str | None, typer.Option("--from", help="Load again from this load on, into an empty --to.", metavar="LOAD_ID")
    ] = None
    from_directory: Annotated[
        str | None, typer.Option("--from-dir", help="Where that load lies (--offsets files).", metavar="DIR")
    ] = None
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the reader; may be repeated.", metavar="NAME=VALUE")
    ] = None
    write_option: Annotated[
        list[str] | None, typer.Option(help="Option of the output format; may be repeated.", metavar="NAME=VALUE")
    ] = None
    storage_option: StorageOption = None
    dead_letters: Annotated[
        str | None,
        typer.Option(
            help="Where records go that cannot be decoded: topic:NAME, or exactly once to delta:URL or "
            "iceberg:NAMESPACE.TABLE.",
            metavar="PLACE",
        ),
    ] = None
    max_bad: Annotated[
        str | None,
        typer.Option(help="Fail a load with more bad records: a number, or a share of them (0.1%).", metavar="N|P%"),
    ] = None
    new_group: Annotated[
        bool, typer.Option("--new-group", help="Load what other groups have loaded there, once more beside it.")
    ] = False
    publish_offsets: Annotated[
        bool,
        typer.Option(
            "--publish-offsets/--no-publish-offsets",
            help="Commit the offsets to the brokers' consumer group, too, where lag tools see them.",
        ),
    ] = True
    allow_changed_options: Annotated[
        bool,
        typer.Option(
            "--allow-changed-options", help="Go on although --option reads otherwise than the group's loads so far."
        ),
    ] = False
    conf: Annotated[list[str] | None, typer.Option(help="Spark setting; may be repeated.", metavar="NAME=VALUE")] = None
    master: Annotated[str, typer.Option(help="Spark master.", metavar="URL")] = "local[*]"
    recover: Annotated[bool, typer.Option("--recover", help="Only finish loads that were killed; no Spark.")] = False
    verify: Annotated[bool, typer.Option("--verify", help="Only recount what was loaded against the log.")] = False
    watch: Annotated[bool, typer.Option("--watch", help="Go on loading until told to stop (SIGTERM, Ctrl-C).")] = False
    interval: Annotated[
        str | None,
        typer.Option(help=f"With --watch: time between loads. Default: {DEFAULT_INTERVAL:g}s.", metavar="TIME"),
    ] = None
    max_loads: Annotated[int | None, typer.Option(min=1, help="With --watch: loads to make.", metavar="N")] = None
    history_keep: Annotated[
        int | None,
        typer.Option(min=1, help="Entries of the commit log to keep. Default: all.", metavar="N"),
    ] = None
    compact_every: Annotated[
        int | None,
        typer.Option(min=1, help="With --watch: compact the table after so many loads. Default: never.", metavar="N"),
    ] = None
    rewindable: RewindableOption = None
    metrics: Annotated[
        str | None,
        typer.Option(help="With --watch: serve metrics for Prometheus there.", metavar="HTTP://HOST:PORT"),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False

    @property
    def spark_settings(self) -> dict[str, str]:
        return parse_pairs(self.conf, "--conf")

    @property
    def target(self) -> Target:
        given = parse_pairs(self.storage_option, "--storage-option")
        storage = storage_options_for(self.to, given, hadoop_settings(self.spark_settings))
        place = (self.to, self.group, self.offsets, self.zookeeper, storage, self.format, self.table)
        return Target(*place, self.catalog, self.keep_snapshots)

    def cluster(self) -> tuple[str, dict[str, str]]:
        """Bootstrap servers, and options of the reader."""
        return cluster_options(self.bootstrap_server, self.config, parse_pairs(self.option, "--option"))

    def request(self) -> LoadRequest:
        """Raises ConfigError."""
        servers, options = self.cluster()
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=servers,
            options=options,
            write_options=parse_pairs(self.write_option, "--write-option"),
            **{name: getattr(self, name) for name in _ARGUMENTS},
        )
        prunes_itself = {
            "delta": "the table prunes its log itself (delta.logRetentionDuration)",
            "iceberg": "set --keep-snapshots",
        }
        if self.history_keep is not None and request.format in prunes_itself:
            raise ConfigError(
                f"--history-keep does not go with format={request.format}: {prunes_itself[request.format]}"
            )
        return request


@with_options
def load(options: LoadOptions) -> None:
    """Load what is new in topics into files or a table, each record exactly once.

    \b
    Examples:
      pykafka load --topic flights --to data/flights --group etl
      pykafka load --topic flights --to data/flights-delta --group etl --format delta --watch --interval 1m
      pykafka load --topic flights --to iceberg:lake.flights --catalog prod --group etl
      pykafka load --topic flights --to postgresql://localhost/db#flights --group etl
    """
    as_json = options.as_json
    modes = {"--recover": options.recover, "--verify": options.verify, "--watch": options.watch}
    if sum(modes.values()) > 1:
        given = [name for name, wanted in modes.items() if wanted]
        raise ConfigError(f"give one of {', '.join(given)}, not {len(given)} of them")
    if not options.watch and (options.interval or options.max_loads or options.metrics):
        raise ConfigError("--interval, --max-loads and --metrics go with --watch")
    if not options.watch and options.compact_every:
        raise ConfigError("--compact-every goes with --watch; to compact once: pykafka loads compact")
    if not options.compact_every and options.rewindable:
        raise ConfigError("--rewindable goes with --compact-every")
    if options.recover:
        print_recovered(maintenance.recover(options.target), as_json)
    elif options.verify:
        (servers, reader), target = options.cluster(), options.target
        with (
            checking(as_json),
            leaving_at_interrupt("interrupted"),
            quiet_session("pykafka load --verify", target.hadoop) as session,
        ):
            verified = maintenance.verify(target, servers, options=reader, session=session)
        print_verified(verified, as_json)
        end_check(verified.verdict)
    elif options.watch:
        # Importing Spark takes half a second, which --help and --recover do not need.
        from spark_connector.cli.service import serve

        serve(options)
    else:
        result = _run(options.request(), options)
        typer.echo(json.dumps(result.to_json())) if as_json else _print_result(result)
        if options.history_keep is not None:
            maintenance.prune(options.target, options.history_keep)


def _run(request: LoadRequest, options: LoadOptions) -> LoadResult:
    # Importing Spark takes half a second, which --help and --recover do not need.
    from spark_connector.load import run_load

    with (
        leaving_at_interrupt("interrupted; the next load loads what this one has not committed"),
        spark_log() as log,
        LazySession(f"pykafka load {options.group}", options.master, options.spark_settings, log) as spark,
        Screen(quiet=options.as_json) as screen,
        spark.shown(screen) as on_phase,
        interruptible(spark),
    ):
        return run_load(request, spark.session, on_phase)


def _print_result(result: LoadResult) -> None:
    console = Console()
    for load_id in result.recovered:
        console.print(f"Finished load [bold]{load_id}[/bold], which had been killed.")
    if result.load_id is None:
        console.print(f"Nothing new for group [bold]{result.group}[/bold]; {result.output} is up to date.")
        return
    bad = f", {result.bad_rows:,} dead letters" if result.bad_rows is not None else ""
    console.print(f"Load {result.load_id}: {result.rows:,} rows{bad}")
    print_ranges(result.ranges)
    console.print(f"{result.format} in {result.path}", soft_wrap=True)
    if result.bad_rows:
        console.print(f"dead letters in {result.dead_letters}", soft_wrap=True)
    if result.malformed:
        console.print(malformed_text(result), style="yellow", highlight=False)
