"""`pykafka ui`: serve the console until Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from broker.errors import ConfigError
from broker.tools.client_options import BootstrapServer, ConfigFile, client_settings, parse_pairs
from broker.tools.output import print_lines
from pykafka_ui.access import Credentials, is_loopback, read_secret
from pykafka_ui.loads.asked import LoadsAsked
from spark_connector.cli.load_options import cluster_options


def ui(
    bootstrap_server: BootstrapServer = None,
    config: ConfigFile = None,
    port: Annotated[
        int, typer.Option(help="Port of the pages; 0: a free one.", min=0, max=65535, metavar="PORT")
    ] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST")] = "127.0.0.1",
    auth: Annotated[
        str | None, typer.Option(help="A user, and the file with the password.", metavar="USER:FILE")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token that programs send as bearer.", metavar="FILE")
    ] = None,
    schema_registry: Annotated[
        str | None, typer.Option(help="Schema registry for Avro values.", metavar="URL,…")
    ] = None,
    loads: Annotated[
        list[str] | None,
        typer.Option(help="Directory or database URL#TABLE of loads; may be repeated.", metavar="DIR|URL"),
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option(help="ZooKeeper with offsets of loads.", metavar="HOST:PORT[/CHROOT]")
    ] = None,
    hadoop: Annotated[
        list[str] | None,
        typer.Option("--hadoop", help="Hadoop client setting for loads; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Topics, records and offsets of groups may be changed, too.")
    ] = False,
    stop_on_eof: Annotated[
        bool, typer.Option("--stop-on-eof", help="Stop when standard input is closed, as a parent process does.")
    ] = False,
) -> None:
    """Show topics, records, groups and lag in the browser, of any Kafka.

    \b
    Examples:
      pykafka ui
      pykafka ui --bootstrap-server kafka-1:9092 --config client.properties --port 9000
      pykafka ui --loads data/flights --loads 'postgresql://loader@db/lake#flights'
      pykafka ui --host 0.0.0.0 --auth admin:/etc/pykafka/ui-password
    """
    credentials = _credentials(auth, token_file)
    if not is_loopback(host) and not credentials:
        raise ConfigError(f"--host {host}: others reach this address, so give --auth USER:FILE or --token-file FILE")
    settings = client_settings(bootstrap_server, config, {"client.id": "pykafka-ui"})
    try:
        from pykafka_ui.serve import serve
    except ImportError as error:
        raise ConfigError(f"{error}; install it with: pip install 'pykafka-spark[ui]'") from None
    servers, options = cluster_options(bootstrap_server, config, {})
    serve(
        settings,
        credentials,
        host,
        port,
        schema_registry,
        _print_address,
        loads=LoadsAsked(loads or (), zookeeper, parse_pairs(hadoop, "--hadoop"), servers, options),
        allow_changes=allow_changes,
        stop_on_eof=stop_on_eof,
    )


def _print_address(url: str) -> None:
    print_lines([f"the console is at {url}"])


def _credentials(auth: str | None, token_file: Path | None) -> Credentials:
    user = password = token = ""
    if auth is not None:
        user, colon, file = auth.partition(":")
        if not (user and colon and file):
            raise ConfigError(f"--auth {user}: expected USER:FILE")
        password = read_secret(Path(os.path.expanduser(file)), "password")
    if token_file is not None:
        token = read_secret(token_file, "token")
    return Credentials(user, password, token)
