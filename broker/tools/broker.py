"""`pykafka broker`: run a broker; print its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.config.properties_file import properties_file
from broker.errors import ConfigError
from broker.settings import read_properties_file
from broker.tools.dashboard import dashboard
from broker.tools.run_broker import CONF, BrokerOptions, run_broker

app = typer.Typer(
    help="Run a broker; print its configuration.\n\n\b\nExamples:\n"
    "  pykafka broker start\n  pykafka broker config > server.properties\n  pykafka broker start server.properties",
    no_args_is_help=True,
)

_CONF_FILES = (
    *("server.properties", "logging.ini", "zookeeper.properties", "producer.properties", "consumer.properties"),
    "dashboard.json",
)


@app.command()
def start(
    properties: Annotated[
        Path | None,
        typer.Argument(help="Settings. Default: those that `pykafka broker config` prints.", metavar="FILE"),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Run without ZooKeeper (standalone=true), on Python alone.")
    ] = False,
    override: Annotated[
        list[str] | None, typer.Option(help="Setting that wins over the file; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    logging_config: Annotated[
        Path | None, typer.Option("--logging", help="Logging configuration, such as conf/logging.ini.", metavar="FILE")
    ] = None,
    stop_on_eof: Annotated[
        bool, typer.Option("--stop-on-eof", help="Stop when standard input is closed, as a parent process does.")
    ] = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM. Without zookeeper.connect it starts its own ZooKeeper.

    With --standalone there is no ZooKeeper and no Java. Such a broker cannot have others in its cluster. Started
    without --standalone later, it moves its metadata into a ZooKeeper.

    \b
    Examples:
      pykafka broker start
      pykafka broker start --standalone
      pykafka broker start server.properties
      pykafka broker start --override log.dirs=/var/lib/pykafka --override listeners=PLAINTEXT://0.0.0.0:9092
    """
    run_broker(BrokerOptions(properties, tuple(override or ()), logging_config, standalone, stop_on_eof))


@app.command()
def config(
    name: Annotated[
        str, typer.Argument(help=f"One of {', '.join(_CONF_FILES)}.", metavar="NAME")
    ] = "server.properties",
) -> None:
    """Print a configuration file with all settings, their defaults and what they mean, or the dashboard for Grafana.

    \b
    Examples:
      pykafka broker config > server.properties
      pykafka broker config logging.ini > logging.ini
      pykafka broker config dashboard.json > dashboard.json
    """
    if name not in _CONF_FILES:
        raise ConfigError(f"{name}: expected one of {', '.join(_CONF_FILES)}")
    if name == "server.properties":
        text = properties_file(read_properties_file(CONF / name))
    elif name == "dashboard.json":
        text = dashboard()
    else:
        text = (CONF / name).read_text(encoding="utf-8")
    typer.echo(text, nl=False)
