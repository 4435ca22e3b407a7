"""`pykafka doctor`: look at this machine, at a cluster, and at Spark's executors, for what stops people in their first
hours.

What looks at executors belongs to the connector, and is found by the entry point group `pykafka.checkups`.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from broker.errors import ConfigError
from broker.tools.checkup import Finding, look_at_machine
from broker.tools.client_options import (
    BOOTSTRAP_VARIABLE,
    BootstrapServer,
    ConfigFile,
    JsonOutput,
    client_settings,
    flag,
    given_properties,
    option,
    parse_pairs,
)
from broker.tools.cluster_checkup import look_at_cluster
from broker.tools.output import end_check, print_json
from broker.verdict import Verdict

CHECKUP_GROUP = "pykafka.checkups"
_COLOURS = {
    "ok": typer.colors.GREEN,
    "warning": typer.colors.YELLOW,
    "error": typer.colors.RED,
    "unknown": typer.colors.MAGENTA,
}


def doctor(
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
    clock: Annotated[
        bool, flag("Compare the clocks, too, by a topic that is made and deleted again.", "--clock")
    ] = False,
    directory: Annotated[Path, option("Where a broker would keep its data.", "DIR", "--dir")] = Path("data/broker"),
    master: Annotated[
        str | None, option("Look at each host with executors of this Spark, too, by small jobs.", "URL")
    ] = None,
    conf: Annotated[
        list[str] | None, option("Setting of that Spark, as your jobs have it. May be repeated.", "NAME=VALUE")
    ] = None,
    to: Annotated[
        str | None,
        option("Destination of loads: may each executor write there, and do driver and executors share it?", "DIR|URL"),
    ] = None,
    storage_option: Annotated[
        list[str] | None, option("Option of the object store in --to. May be repeated.", "NAME=VALUE")
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Look at this machine and a cluster: a line for each check, with the command that mends it: ok, warning, error or
    unknown.

    Looks at a cluster only if one is named, by an option or the environment; and with --master at each host on which
    Spark runs executors: its Python, pykafka and libraries there, its way to each broker, its clock, and the
    destination of loads. The status is 1 if there is an error, and 3 if something could not be looked at.

    \b
    Examples:
      pykafka doctor
      pykafka doctor --bootstrap-server kafka-1:9092 --config client.properties --clock
      pykafka doctor --master spark://spark-1:7077 --bootstrap-server kafka-1:9092 --to s3://lake/flights
    """
    if master is None and (conf or to is not None or storage_option):
        raise ConfigError("--conf, --to and --storage-option say how executors are looked at: give --master, too")
    if to is None and storage_option:
        raise ConfigError("--storage-option is of the store in --to: give --to, too")
    properties: dict[str, str] = {}
    checks = [look_at_machine(directory)]
    if bootstrap_server is not None or config_file or os.environ.get(BOOTSTRAP_VARIABLE):
        checks.append(look_at_cluster(client_settings(bootstrap_server, config_file), measure_clock=clock))
        properties = given_properties(config_file)
        if bootstrap_server:
            properties["bootstrap.servers"] = bootstrap_server
    if master is not None:
        settings, storage = parse_pairs(conf, "--conf"), parse_pairs(storage_option, "--storage-option")
        checks.append(_look_at_executors()(master, settings, properties, to, storage))
    found = []
    for finding in itertools.chain.from_iterable(checks):
        found.append(finding)
        _show(finding, as_json)
    if as_json:
        print_json([one._asdict() for one in found])
    end_check(Verdict.of_all(one.verdict for one in found))


def _look_at_executors() -> Callable[..., Iterator[Finding]]:
    points = importlib.metadata.entry_points(group=CHECKUP_GROUP, name="executors")
    if not points:
        raise ConfigError(
            "--master needs the connector, which this installation does not name: pip install pykafka-spark again"
        )
    look: Callable[..., Iterator[Finding]] = next(iter(points)).load()
    return look


def _show(finding: Finding, as_json: bool) -> None:
    if as_json:
        return
    state = typer.style(f"{finding.state:8}", fg=_COLOURS[finding.state])
    typer.echo(f"{state} {finding.check:14}  {finding.says}")
    if finding.mend:
        typer.echo(f"{'':25}→ {finding.mend}")
