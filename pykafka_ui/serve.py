"""Serves the console with uvicorn until a signal ends it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from broker.tools.client_options import parse_pairs
from pykafka_ui.access import Credentials
from pykafka_ui.app import make_app
from pykafka_ui.console import Console, Loads
from pykafka_ui.loads.places import LoadPlace, LoadPlaces
from pykafka_ui.loads.verifications import LogSource, Verifications
from pykafka_ui.records.values import Decoder
from spark_connector.cli.load_options import cluster_options
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_format import RegistrySettings, registry_address

if TYPE_CHECKING:
    from pykafka_ui.command import UiOptions


def serve(
    options: UiOptions, settings: ClientSettings, credentials: Credentials, on_ready: Callable[[str], None]
) -> None:
    """Calls `on_ready` with the address once connections are taken. Raises ConfigError for an address in
    use, and for a place of loads that cannot be one."""
    loads = _loads(options)
    registry = SchemaRegistry(_registry(options.schema_registry)) if options.schema_registry is not None else None
    console, host = Console(settings, Decoder(registry), loads), options.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, options.port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{options.port}: {error.strerror}; choose another --port") from None
    config = uvicorn.Config(
        make_app(console, credentials, host, allow_changes=options.allow_changes),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    listening.listen(128)
    shown = f"[{host}]" if ":" in host else host
    on_ready(f"http://{shown}:{listening.getsockname()[1]}/")
    server = uvicorn.Server(config)
    if options.stop_on_eof:
        threading.Thread(target=_stop_at_end_of_input, args=[server], daemon=True).start()
    server.run(sockets=[listening])


def _stop_at_end_of_input(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(1024):
        pass
    server.should_exit = True


def _loads(options: UiOptions) -> Loads | None:
    servers, reader = cluster_options(options.bootstrap_server, options.config, {})
    storage = parse_pairs(options.hadoop, "--hadoop")
    if not options.loads and not options.catalog:
        return None
    fixed = [LoadPlace(url, options.zookeeper, storage) for url in options.loads or ()]
    places = LoadPlaces(fixed, catalogs=options.catalog or ())
    return Loads(places, Verifications(LogSource(servers, reader)))


def _registry(urls: str) -> RegistrySettings:
    """A page that waits for a registry shows that it is down within seconds. Raises ConfigError."""
    found = [registry_address(url.strip()) for url in urls.split(",") if url.strip()]
    user_info = next((info for _, info in found if info), None)
    if any(info not in (None, user_info) for _, info in found):
        raise ConfigError("--schema-registry: the URLs of one registry have one login")
    with_login = tuple(url for url, info in found if info)
    return RegistrySettings(tuple(url for url, _ in found), user_info, timeout_ms=2_000, login_urls=with_login)
