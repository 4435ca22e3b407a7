"""The console command `pykafka load`: an exactly-once load from a terminal or a scheduler.

The console finds it through the entry point group `pykafka.commands`. Shows the phases and Spark's tasks while it runs,
and the loaded rows per partition at the end. `--json` prints one document and nothing else. With `--watch` it is a
service (cli/service.py). PykafkaErrors are raised: the console prints them in one line. Schedulers go by the exit
status: 75 (EX_TEMPFAIL) says that the same command may succeed later, and 1 that somebody must do something first.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console

from broker.errors import ConfigError, PykafkaError
from broker.tools.client_options import BootstrapServer, ConfigFile, parse_pairs
from broker.tools.output import checking, end_check
from spark_connector import maintenance
from spark_connector.cli.load_options import (
    REWINDABLE,
    cluster_options,
    given_arguments,
    options_of,
)
from spark_connector.cli.screen import Screen, malformed_text, print_ranges, print_recovered, print_verified
from spark_connector.cli.session import (
    LazySession,
    interruptible,
    leaving_at_interrupt,
    quiet_session,
    spark_log,
)
from spark_connector.loads.addresses import hadoop_settings
from spark_connector.loads.arguments import argument, arguments_of, given_to, refuse
from spark_connector.loads.load_loop import DEFAULT_INTERVAL
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import FORMATS, LAKE_FORMATS, Load, LoadRequest, Target
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.outages import heals_by_waiting

_KEEPS_LOG = ("format", *(format for format in FORMATS if format not in LAKE_FORMATS))


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The options of `pykafka load`: the arguments of a load, as they are `given`, and those of the command itself."""

    given: Mapping[str, Any]
    bootstrap_server: BootstrapServer = None
    config: ConfigFile = None
    conf: list[str] | None = argument("Spark setting.")
    master: str = argument(
        "Spark master, such as spark://HOST:7077, yarn or sc://HOST:15002; local[*] is this host alone.",
        "URL",
        default="local[*]",
    )
    recover: bool = argument("Only finish loads that were killed; no Spark.", default=False)
    verify: bool = argument("Only recount what was loaded against the log.", default=False)
    watch: bool = argument("Go on loading until told to stop (SIGTERM, Ctrl-C).", default=False)
    interval: str | None = argument(
        f"Time between loads. Default: {DEFAULT_INTERVAL:g}s.", "TIME", goes_with=("watch",)
    )
    max_loads: int | None = argument("Loads to make.", "N", least=1, goes_with=("watch",))
    history_keep: int | None = argument(
        "Entries of the commit log to keep. Default: all.",
        "N",
        least=1,
        goes_with=_KEEPS_LOG,
        otherwise="does not go with format={format}: Delta prunes its log itself (delta.logRetentionDuration), "
        "Iceberg by keep_snapshots (--keep-snapshots)",
    )
    compact_every: int | None = argument(
        "Compact the table after so many loads; once: pykafka loads compact. Default: never.",
        "N",
        least=1,
        goes_with=("watch",),
    )
    rewindable: str | None = argument(*REWINDABLE, goes_with=("compact_every",))
    metrics: str | None = argument("Serve metrics for Prometheus there.", "HTTP://HOST:PORT", goes_with=("watch",))
    as_json: bool = argument("Print the result as JSON.", option="--json", default=False)

    @property
    def spark_settings(self) -> dict[str, str]:
        return parse_pairs(self.conf, "--conf")

    @property
    def target(self) -> Target:
        return Target.of(self.given, hadoop_settings(self.spark_settings))

    def cluster(self) -> tuple[str, dict[str, str]]:
        """Bootstrap servers, and options of the reader."""
        return cluster_options(self.bootstrap_server, self.config, self.given["options"])

    def request(self, *, is_impatient: bool = False) -> LoadRequest:
        """Raises ConfigError."""
        servers, options = self.cluster()
        given = given_to(Load, self.given) | {"bootstrap_servers": servers, "options": options}
        master = self.spark_settings.get("spark.master", self.master)
        case = self.spark_settings.get("spark.sql.caseSensitive", "false").lower() == "true"
        return LoadRequest.build(self.target, is_impatient=is_impatient, master=master, case_sensitive=case, **given)


@contextlib.contextmanager
def _telling_whether_to_run_again() -> Iterator[None]:
    """Sets the exit status of an error after which the same command may succeed, as that of the loser of two loads."""
    try:
        yield
    except (PykafkaError, OSError) as error:
        if heals_by_waiting(error) or isinstance(error, OffsetConflict):
            error.exit_status = os.EX_TEMPFAIL  # type: ignore[union-attr]
        raise


@_telling_whether_to_run_again()
def load(**typed: Any) -> None:
    """Load what is new in topics into files or a table, each record exactly once.

    \b
    Examples:
      pykafka load --topic flights --to data/flights --group etl
      pykafka load --topic flights --to data/flights-delta --group etl --format delta --watch --interval 1m
      pykafka load --topic flights --to iceberg:lake.flights --catalog prod --group etl
      pykafka load --topic flights --to postgresql://localhost/db#flights --group etl
    """
    options = LoadOptions(given=given_arguments(arguments_of(Target, Load), typed), **typed)
    as_json, target = options.as_json, options.target
    modes = {"--recover": options.recover, "--verify": options.verify, "--watch": options.watch}
    if sum(modes.values()) > 1:
        given = [name for name, wanted in modes.items() if wanted]
        raise ConfigError(f"give one of {', '.join(given)}, not {len(given)} of them")
    refuse(arguments_of(LoadOptions), {**vars(target.check()), **vars(options)})
    if options.recover:
        print_recovered(maintenance.recover(target), as_json)
    elif options.verify:
        servers, reader = options.cluster()
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
            maintenance.prune(target, options.history_keep)


_OWN = options_of(LoadOptions)
load.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*options_of(Target), *_OWN[:2], *options_of(Load, Target), *_OWN[2:]]
)


def _run(request: LoadRequest, options: LoadOptions) -> LoadResult:
    # Importing Spark takes half a second, which --help and --recover do not need.
    from spark_connector.load import run_load

    with (
        leaving_at_interrupt("interrupted; the next load loads what this one has not committed"),
        spark_log() as log,
        LazySession(f"pykafka load {request.target.group}", options.master, options.spark_settings, log) as spark,
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
    print_ranges([range for range in result.ranges if range.size])
    console.print(f"{result.format} in {result.path}", soft_wrap=True)
    if result.bad_rows:
        console.print(f"dead letters in {result.dead_letters}", soft_wrap=True)
    if result.malformed:
        console.print(malformed_text(result), style="yellow", highlight=False)
