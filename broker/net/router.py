"""From a frame to its handler and back. Only the router knows which API versions are served.

The server passes the route table (made by `api/table.py`), so this layer knows no API. A handler takes the decoded
request and the client, and returns a mapping, which is encoded here in the request's version, or the encoded parts of
a response (Fetch), or None; or a delayed answer or an awaitable of one of these.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from broker.errors import ProtocolError, UnsupportedVersion
from broker.metrics import Metrics
from broker.net.delayed_answer import DelayedAnswer
from broker.net.request_log import RequestLog
from broker.net.response import Part, Response
from broker.net.sasl import SaslSession
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_request, encode_response, peek

__all__ = ["ANONYMOUS", "Client", "Handler", "Route", "Router"]

ANONYMOUS = "User:ANONYMOUS"


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, from which address and through which listener."""

    host: str
    port: int
    listener: str = "PLAINTEXT"
    """The listener's name: answers contain the brokers' addresses on the same listener."""
    principal: str = ANONYMOUS
    """`User:name`, from a login or a certificate."""
    sasl: SaslSession | None = None
    """The login, on a SASL listener."""


Answer = Mapping[str, Any] | Sequence[Part] | None
Handler = Callable[[Request, Client], Answer | DelayedAnswer[Any] | Awaitable[Answer]]


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """One API: its handler and its lowest and highest version. ApiVersions may advertise another lowest version."""

    api: ApiKey
    low: int
    high: int
    handler: Handler
    advertised_low: int | None = None


class Router:
    """Finds the handler of each frame. Raises ProtocolError when the connection must be closed."""

    def __init__(self, routes: Sequence[Route], log: RequestLog | None = None) -> None:
        self._routes = {int(route.api): route for route in routes}
        self._log = log or RequestLog(Metrics())

    def dispatch(
        self, frame: bytes | bytearray, client: Client, received: float | None = None
    ) -> Response | DelayedAnswer[Response] | Awaitable[Response]:
        """The response; when the handler has to wait, a delayed one or an awaitable of it.

        `received` is when the frame's last byte arrived (monotonic clock, s); the default is now.
        """
        started = time.monotonic()
        request = self._decode(frame)
        answer = self._routes[request.api].handler(request, client)
        if received is None:
            received = started
        if isinstance(answer, DelayedAnswer):
            times = received, started, time.monotonic()
            return answer.then(functools.partial(self._after_wait, request, client, times))
        if isinstance(answer, Awaitable):
            return self._wait_for_answer(request, client, answer, received, started)
        response = _encode(request, answer)
        self._log.answered(request, client, answer, response, received, started)
        return response

    async def _wait_for_answer(
        self, request: Request, client: Client, waiting: Awaitable[Answer], received: float, started: float
    ) -> Response:
        times = received, started, time.monotonic()
        return self._after_wait(request, client, times, await waiting)

    def _after_wait(
        self, request: Request, client: Client, times: tuple[float, float, float], answer: Answer
    ) -> Response:
        """`times`: when the request was received, when it was dispatched, and since when it waits."""
        received, started, waits = times
        remote = time.monotonic() - waits
        response = _encode(request, answer)
        self._log.answered(request, client, answer, response, received, started, remote)
        return response

    def _decode(self, frame: bytes | bytearray) -> Request:
        key, version, correlation_id = peek(frame)
        route = self._routes.get(key)
        if route is None:
            raise UnsupportedVersion(f"API key {key} is not served")
        if route.low <= version <= route.high:
            return decode_request(frame)
        if route.api is ApiKey.API_VERSIONS:
            # KIP-511: answered in version 0, so that every client can read which versions there are.
            return Request(route.api, 0, correlation_id, None, None, len(frame))
        raise UnsupportedVersion(f"{route.api.name} version {version} is outside {route.low}–{route.high}")


def _encode(request: Request, answer: Answer) -> Response:
    if isinstance(answer, Mapping):
        return encode_response(request, answer)
    if answer is None or isinstance(answer, (list, tuple)):
        return cast(Response, answer)
    raise ProtocolError(f"{request.api.name} gave an answer of type {type(answer).__name__}")
