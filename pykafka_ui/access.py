"""Who may ask: a password or token, this host's names, this site's pages. An ASGI middleware before everything else.

- A page of another site can neither read nor send anything: requests that a browser marks as coming from another site
  are refused, except that a link may lead here. On loopback a name that is not of loopback is refused, too: another
  site's name may point here (DNS rebinding).
- The content policy allows only this server's own scripts, styles and images, so that a value of a record that got
  past all escaping could still not run.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from broker.errors import ConfigError
from broker.security.http_credentials import CHALLENGE, Credentials

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "Access", "Credentials", "is_loopback", "read_secret"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def read_secret(file: Path, what: str) -> str:
    """The first line of a file. Raises ConfigError when it cannot be read or is empty."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {what} from {file}: {error}") from None
    secret = lines[0].strip() if lines else ""
    if not secret:
        raise ConfigError(f"{file} has no {what} in its first line")
    return secret


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Refuses what may not be asked, and adds the headers that browsers heed."""

    def __init__(self, app: ASGIApp, *, credentials: Credentials, host: str) -> None:
        self._app = app
        self._credentials = credentials
        self._loopback_only = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if b"cache-control" not in known:
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refused = self._refusal(scope["method"], Headers(scope=scope))
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if self._loopback_only and not is_loopback(_without_port(host)):
            return PlainTextResponse(f"this server is not called {host}: use localhost\n", 421)
        if not _is_same_site(method, headers, host):
            return PlainTextResponse("refused: the request comes from a page of another site\n", 403)
        if self._credentials and not self._credentials.allow(headers.get("authorization", "")):
            return PlainTextResponse("a user and password are needed, or a token\n", 401, CHALLENGE)
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_same_site(method: str, headers: Headers, host: str) -> bool:
    """Programs send neither of these headers; browsers send the first with every request."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == host
