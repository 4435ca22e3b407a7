"""Who may ask: a password or token, this host's names, this site's pages. An ASGI middleware before everything else.

- What a page of another site sends is refused, and names of this server that are another site's: see
  broker/security/http_access.py.
- The token may also come in the address, once: a browser keeps it as a cookie of this session. It is not the token, and
  other sites' pages cannot use it.
- Wrong passwords and tokens of one address wait for each other, and where many wait, further ones are not looked at.
- The content policy allows only this server's own scripts, styles and images, so that a value of a record that got
  past all escaping could still not run.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from broker.errors import ConfigError
from broker.security.http_access import HttpRequest, is_loopback, refused
from broker.security.http_credentials import CHALLENGE, Credentials

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "Access", "Credentials", "is_loopback", "own_path", "read_secret"]

TOKEN = "token"
"""The parameter of an address with the token."""
_COOKIE = "pykafka-ui"
_WRONG_S = 0.2
"""For each wrong password or token of an address, one after the other."""
_MOST_WRONG = 10
"""So many of one address wait for their answer. Further ones are refused unread."""
_MOST_BODY = 20 << 20
"""Bytes of a request."""
_OF_PATHS = "/%:@!$&'()*+,;=~"

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


def own_path(scope: Scope) -> str:
    """The path that was asked for, as an address on this server: `//name/…` would be one of another server."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return "/" + quote(raw.partition(b"?")[0].decode("latin-1"), safe=_OF_PATHS).lstrip("/")


class Access:
    """Refuses what may not be asked, and adds the headers that browsers heed."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        credentials: Credentials,
        host: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._loopback_only = is_loopback(host)
        self._sleep = sleep
        self._wrong: Counter[str] = Counter()
        """Address → wrong passwords and tokens that wait for their answer."""
        token = credentials.token
        self._cookie = hmac.digest(token.encode(), b"pykafka ui", "sha256").hex() if token else ""

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

        headers = Headers(scope=scope)
        answer = self._refusal(scope, headers) or await self._stranger(scope, headers)
        await (answer or self._app)(scope, _Bounded(receive), send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        asked = HttpRequest(scope["method"], scope["query_string"].decode("latin-1"), headers)
        if (found := refused(asked, loopback_only=self._loopback_only)) is not None:
            return PlainTextResponse(f"{found.why}\n", found.status)
        if int(_digits(headers.get("content-length", ""))) > _MOST_BODY:
            return PlainTextResponse(f"at most {_MOST_BODY} bytes at once\n", 413)
        return None

    async def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to who has not shown a password or token, or shows a token in the address; None for all others."""
        if not self._credentials:
            return None
        given = headers.get("authorization", "")
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(pairs).get(TOKEN, "")
        if not (given or token) and self._has_cookie(headers):
            return None
        address = (scope.get("client") or ("",))[0]
        if (given or token) and self._wrong[address] >= _MOST_WRONG:
            return PlainTextResponse("too many wrong passwords; try again\n", 429)
        if token and self._credentials.allow(f"Bearer {token}"):
            return self._welcome(scope, [pair for pair in pairs if pair[0] != TOKEN])
        if self._credentials.allow(given):
            return None
        if given or token:
            await self._wait(address)
        return PlainTextResponse("a user and password are needed, or a token\n", 401, CHALLENGE)

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return bool(self._cookie and found and hmac.compare_digest(found.value.encode(), self._cookie.encode()))

    def _welcome(self, scope: Scope, rest: list[tuple[str, str]]) -> Response:
        """The same address without the token, which a browser keeps as a cookie."""
        answer = RedirectResponse(own_path(scope) + (f"?{urlencode(rest)}" if rest else ""), 303)
        answer.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="strict")
        return answer

    async def _wait(self, address: str) -> None:
        self._wrong[address] += 1
        try:
            await self._sleep(_WRONG_S * self._wrong[address])
        finally:
            self._wrong[address] -= 1
            if not self._wrong[address]:
                del self._wrong[address]


class _Bounded:
    """What a client sends, up to so many bytes; then it is as if it had gone."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = _MOST_BODY

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        return message if self._left >= 0 else {"type": "http.disconnect"}


def _digits(text: str) -> str:
    return text if text.isascii() and text.isdecimal() and len(text) < 20 else "0"
