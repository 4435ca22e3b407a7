"""`pykafka zookeeper start`: run one ZooKeeper server in the foreground, from PySpark's jars.

Meant for tests and for several brokers on one machine. For production, install a ZooKeeper ensemble and name it in
`zookeeper.connect`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.errors import ConfigError, ConnectionFailed
from broker.settings import read_properties_file
from broker.tools.interrupt import Interrupt
from broker.zookeeper.embedded_server import EmbeddedZooKeeper

app = typer.Typer(
    help="Run a ZooKeeper server.\n\n\b\nExamples:\n  pykafka zookeeper start --data-dir data/zookeeper",
    no_args_is_help=True,
)

DEFAULT_DATA_DIR = "data/zookeeper"
DEFAULT_PORT = "2181"
_LOOK_EVERY_S = 0.2


@app.callback()
def zookeeper() -> None:
    """Keeps `start` a sub-command, although it is the only one."""


@app.command()
def start(
    config: Annotated[
        Path | None, typer.Argument(help="ZooKeeper's settings, such as conf/zookeeper.properties.", metavar="FILE")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help=f"Data directory. Default: dataDir of FILE, else {DEFAULT_DATA_DIR}.", metavar="DIR"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help=f"Port, 0 for a free one. Default: clientPort of FILE, else {DEFAULT_PORT}.",
            metavar="PORT",
        ),
    ] = None,
) -> None:
    """Run a ZooKeeper server until Ctrl-C or SIGTERM, and print where it listens.

    \b
    Examples:
      pykafka zookeeper start
      pykafka zookeeper start conf/zookeeper.properties --port 2182
    """
    properties = read_properties_file(config) if config else {}
    configured_dir = properties.pop("dataDir", DEFAULT_DATA_DIR)
    configured_port = properties.pop("clientPort", DEFAULT_PORT)
    if not configured_port.isdecimal():
        raise ConfigError(f"{config}: clientPort={configured_port}: expected a number")
    server = EmbeddedZooKeeper(data_dir or configured_dir, int(configured_port) if port is None else port, properties)

    interrupt = Interrupt()
    with server:
        typer.echo(f"ZooKeeper listens on {server.address}, data in {server.data_dir}")
        while not interrupt.came_within(_LOOK_EVERY_S):
            if not server.running:
                raise ConnectionFailed(f"the ZooKeeper server has ended by itself; see {server.log_file}")
