"""`pykafka ui`: serve the console until Ctrl-C."""

from __future__ import annotations

import dataclasses
import os
import secrets
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from broker.errors import ConfigError
from broker.tools.client_options import BootstrapServer, ConfigFile, client_settings, flag, option, with_options
from broker.tools.output import print_lines
from pykafka_ui.access import TOKEN, Credentials, is_loopback, read_secret


@dataclasses.dataclass(frozen=True, kw_only=True)
class UiOptions:
    bootstrap_server: BootstrapServer = None
    config: ConfigFile = None
    port: Annotated[int, option("Port of the pages; 0: a free one.", "PORT", min=0, max=65535)] = 8080
    host: Annotated[str, option("Address to listen on.", "HOST")] = "127.0.0.1"
    auth: Annotated[str | None, option("A user, and the file with the password.", "USER:FILE")] = None
    token_file: Annotated[Path | None, option("File with a token that programs send as bearer.", "FILE")] = None
    schema_registry: Annotated[str | None, option("Schema registry that says how to decode values.", "URL,…")] = None
    loads: Annotated[
        list[str] | None, option("Directory or database URL#TABLE of loads; may be repeated.", "DIR|URL")
    ] = dataclasses.field(default=None, repr=False)
    catalog: Annotated[
        list[str] | None, option("Catalog of Iceberg tables that loads write; may be repeated.", "NAME")
    ] = None
    zookeeper: Annotated[str | None, option("ZooKeeper with offsets of loads.", "HOST:PORT[/CHROOT]")] = None
    hadoop: Annotated[
        list[str] | None, option("Hadoop client setting for loads; may be repeated.", "NAME=VALUE", "--hadoop")
    ] = dataclasses.field(default=None, repr=False)
    allow_changes: Annotated[
        bool, flag("Topics, records and offsets of groups may be changed, too.", "--allow-changes")
    ] = False
    stop_on_eof: Annotated[
        bool, flag("Stop when standard input is closed, as a parent process does.", "--stop-on-eof")
    ] = False

    def credentials(self) -> Credentials:
        """Of those who may look. Who may change something without a password gets a new token. Raises ConfigError where
        others could look without any."""
        user = password = token = ""
        if self.auth is not None:
            user, colon, file = self.auth.partition(":")
            if not (user and colon and file):
                raise ConfigError(f"--auth {user}: expected USER:FILE")
            password = read_secret(Path(os.path.expanduser(file)), "password")
        if self.token_file is not None:
            token = read_secret(self.token_file, "token")
        if self.allow_changes and not (password or token):
            token = secrets.token_urlsafe(24)  # other accounts of this machine reach loopback, too
        found = Credentials(user, password, token)
        if not is_loopback(self.host) and self.auth is None and self.token_file is None:
            raise ConfigError(
                f"--host {self.host}: others reach this address, so give --auth USER:FILE or --token-file FILE"
            )
        return found


@with_options
def ui(options: UiOptions) -> None:
    """Show topics, records, groups and lag in the browser, of any Kafka.

    \b
    Examples:
      pykafka ui
      pykafka ui --bootstrap-server kafka-1:9092 --config client.properties --port 9000
      pykafka ui --loads data/flights --loads 'postgresql://loader@db/lake#flights'
      pykafka ui --host 0.0.0.0 --auth admin:/etc/pykafka/ui-password
    """
    credentials = options.credentials()
    settings = client_settings(options.bootstrap_server, options.config, {"client.id": "pykafka-ui"})
    try:
        from pykafka_ui.serve import serve
    except ImportError as error:
        raise ConfigError(f"{error}; install it with: pip install 'pykafka-spark[ui]'") from None
    own_token = credentials.token if options.token_file is None else ""
    query = f"?{urlencode({TOKEN: own_token})}" if own_token else ""
    serve(options, settings, credentials, lambda url: print_lines([f"the console is at {url}{query}"]))
