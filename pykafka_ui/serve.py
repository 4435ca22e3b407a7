"""Serves the console with uvicorn until a signal ends it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable

import uvicorn

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from pykafka_ui.access import Credentials
from pykafka_ui.app import make_app
from pykafka_ui.console import Console, Loads
from pykafka_ui.loads.asked import LoadsAsked
from pykafka_ui.loads.places import LoadPlace, LoadPlaces
from pykafka_ui.loads.verifications import LogSource, Verifications
from pykafka_ui.values import Decoder
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_format import RegistrySettings, registry_address


def serve(
    settings: ClientSettings,
    credentials: Credentials,
    host: str,
    port: int,
    registry: str | None,
    on_ready: Callable[[str], None],
    *,
    loads: LoadsAsked,
    allow_changes: bool = False,
    stop_on_eof: bool = False,
) -> None:
    """Calls `on_ready` with the address once connections are taken. Raises ConfigError for an address in
    use, and for a place of loads that cannot be one."""
    console = Console(
        settings, Decoder(None if registry is None else SchemaRegistry(_registry(registry))), _loads(loads)
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    config = uvicorn.Config(
        make_app(console, credentials, host, allow_changes=allow_changes),
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
    if stop_on_eof:
        threading.Thread(target=_stop_at_end_of_input, args=[server], daemon=True).start()
    server.run(sockets=[listening])


def _stop_at_end_of_input(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(1024):
        pass
    server.should_exit = True


def _loads(asked: LoadsAsked) -> Loads | None:
    if not asked.urls:
        return None
    places = [LoadPlace(url, asked.zookeeper_connect, asked.storage_options) for url in asked.urls]
    return Loads(LoadPlaces(places), Verifications(LogSource(asked.bootstrap_servers, asked.options)))


def _registry(urls: str) -> RegistrySettings:
    """A page that waits for a registry shows that it is down within seconds. Raises ConfigError."""
    found = [registry_address(url.strip()) for url in urls.split(",") if url.strip()]
    user_info = next((info for _, info in found if info), None)
    return RegistrySettings(tuple(url for url, _ in found), user_info, timeout_ms=2_000)
