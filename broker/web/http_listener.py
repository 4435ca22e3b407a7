"""The socket of `metrics.listener`: bound before the broker starts, served once the broker serves.

The web libraries cost 0.1 s and 20 MB. They are loaded in a worker thread after the broker serves its first client, and
not at all when the listener is off. Until then requests wait in the socket's backlog.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any
from urllib.parse import urlsplit

from broker.errors import ConfigError
from broker.security.http_credentials import Credentials
from broker.web.collector import MetricSources
from broker.web.health import Health

logger = logging.getLogger(__name__)

BACKLOG = 64
NOBODY_LOGS_IN = Credentials()


class HttpListener:
    def __init__(self, text: str, credentials: Credentials = NOBODY_LOGS_IN) -> None:
        """Bind `HTTP://host:port`; `credentials` are for /metrics. Raises ConfigError."""
        self._credentials = credentials
        host, port = _parse(text)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(f"metrics.listener={text}: {error.strerror or error}") from error
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        self._server: Any = None
        self._closed = False

    async def serve(self, sources: MetricSources, health: Health) -> None:
        """Answer requests until `close`."""
        server = await asyncio.to_thread(_make_server, sources, health, self._credentials)
        if self._closed:
            return
        self._server = server
        try:
            await server.serve(sockets=[self._socket])
        except Exception:
            logger.exception("the HTTP listener at %s ended", self.url)
        finally:
            server.end()  # also when this task is cancelled
            self._socket.close()

    def close(self) -> None:
        """Accept no more connections; `serve` returns soon after."""
        self._closed = True
        if self._server is None:
            self._socket.close()
        else:
            # Not the socket: the event loop would look in vain for the one it listens on.
            self._server.end()


def _make_server(sources: MetricSources, health: Health, credentials: Credentials) -> Any:
    from broker.web.app import make_server

    return make_server(sources, health, credentials)


def _parse(text: str) -> tuple[str, int]:
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or port is None or parts.path or parts.query:
        raise ConfigError(f"metrics.listener={text}: expected HTTP://host:port, such as HTTP://127.0.0.1:9644")
    return parts.hostname or "", port
