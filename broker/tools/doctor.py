"""`pykafka doctor`: look at this machine, and at a cluster, for what stops people in their first hours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from broker.tools.checkup import Finding, look_at_machine
from broker.tools.client_options import (
    BOOTSTRAP_VARIABLE,
    BootstrapServer,
    ConfigFile,
    JsonOutput,
    client_settings,
    flag,
    option,
)
from broker.tools.cluster_checkup import look_at_cluster
from broker.tools.output import end_check, print_json
from broker.verdict import Verdict

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
    as_json: JsonOutput = False,
) -> None:
    """Look at this machine and a cluster: a line for each check, with the command that mends it: ok, warning, error or
    unknown.

    Looks at a cluster only if one is named, by an option or the environment. The status is 1 if there is an error, and
    3 if something could not be looked at.

    \b
    Examples:
      pykafka doctor
      pykafka doctor --bootstrap-server kafka-1:9092 --config client.properties --clock
    """
    found = []
    for finding in look_at_machine(directory):
        found.append(finding)
        _show(finding, as_json)
    if bootstrap_server or config_file or os.environ.get(BOOTSTRAP_VARIABLE):
        for finding in look_at_cluster(client_settings(bootstrap_server, config_file), measure_clock=clock):
            found.append(finding)
            _show(finding, as_json)
    if as_json:
        print_json([one._asdict() for one in found])
    end_check(Verdict.of_all(one.verdict for one in found))


def _show(finding: Finding, as_json: bool) -> None:
    if as_json:
        return
    state = typer.style(f"{finding.state:8}", fg=_COLOURS[finding.state])
    typer.echo(f"{state} {finding.check:14}  {finding.says}")
    if finding.mend:
        typer.echo(f"{'':25}→ {finding.mend}")
