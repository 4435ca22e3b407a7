"""From a request to its handler and back. Only the router knows which API versions are served.

The server passes the route table (made by `api/table.py`), so this layer knows no API. A handler takes the decoded
request and the client, and returns a mapping, which is encoded here in the request's version, or the encoded parts of
a response (Fetch), or None; or a delayed answer or an awaitable of one of these. Client quotas are applied here, to
every answer (throttling.py).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

from broker.errors import ProtocolError, UnsupportedVersion
from broker.metrics import Metrics
from broker.net.delayed_answer import DelayedAnswer
from broker.net.request_log import RequestLog
from broker.net.response import Part, Response
from broker.net.sasl import SaslSession
from broker.net.stopwatch import Stopwatch, stop_measuring
from broker.net.throttling import FetchedAnswer, ThrottledResponse, Throttling
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Head, Request, encode_response, with_throttle_time
from broker.quotas.client_quotas import ClientQuotas

logger = logging.getLogger(__name__)

ANONYMOUS = "User:ANONYMOUS"
_MAX_CLIENT_ID = 100
"""Characters of a client id that are shown."""
UNSERVED_EVERY_S: Final = 60.0
MOST_UNSERVED: Final = 1000
"""Different ones in that time; of more there is no line."""


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
    endings: dict[object, Callable[[], None]] = dataclasses.field(default_factory=dict, compare=False)
    """What is called when the connection has ended. A handler that leaves something open for the connection adds it."""


Answer = Mapping[str, Any] | Sequence[Part] | FetchedAnswer | None
Routed = Response | ThrottledResponse
Handler = Callable[[Request, Client], Answer | DelayedAnswer[Any] | Awaitable[Answer]]


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """One API: its handler and its lowest and highest version."""

    api: ApiKey
    low: int
    high: int
    handler: Handler
    refuse: Handler | None = None
    """Answers versions below `low`; without it they end the connection."""


class UnservedVersion(UnsupportedVersion):
    """A request whose API or version is not served. The text is empty if the log has it already."""


class UnservedVersions:
    """Which requests of a version that is not served get a line in the log: each client's at most once a minute.

    A client repeats such a request as fast as it can connect, and can make up names, so both the lines and the memory
    have a bound.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._logged: dict[tuple[str | None, int, int], float] = {}
        """(client id, API key, version) → when, the oldest first."""

    def __len__(self) -> int:
        return len(self._logged)

    def is_due(self, key: tuple[str | None, int, int]) -> bool:
        """Whether this one is to be logged now; then the same is not for a minute."""
        now = self._clock()
        while self._logged and now - next(iter(self._logged.values())) >= UNSERVED_EVERY_S:
            del self._logged[next(iter(self._logged))]
        if key in self._logged or len(self._logged) >= MOST_UNSERVED:
            return False
        self._logged[key] = now
        return True


class Router:
    """Finds the handler of each request. Raises ProtocolError when the connection must be closed."""

    def __init__(
        self, routes: Sequence[Route], log: RequestLog | None = None, throttling: Throttling | None = None
    ) -> None:
        self._routes = {int(route.api): route for route in routes}
        self._log = log or RequestLog(Metrics())
        self._throttling = throttling or Throttling(ClientQuotas(), Metrics())
        self._quotas = self._throttling.quotas
        self._unserved_versions = UnservedVersions()

    @property
    def throttles(self) -> bool:
        """Whether an answer may throttle its client."""
        return self._quotas.enabled

    def dispatch(
        self, head: Head, client: Client, received: float | None = None
    ) -> Routed | DelayedAnswer[Routed] | Awaitable[Routed]:
        """The response; when the handler has to wait, a delayed one or an awaitable of it.

        `received` is when the last byte of its frame arrived (monotonic clock, s); the default is now.
        """
        started = time.monotonic()
        request = self._decode(head)
        route = self._routes[request.api]
        answer = (route.handler if request.version >= route.low else route.refuse or route.handler)(request, client)
        if received is None:
            received = started
        if isinstance(answer, DelayedAnswer):
            times = received, started, time.monotonic()
            return answer.then(functools.partial(self._after_wait, request, client, times))
        if isinstance(answer, Awaitable):
            return self._wait_for_answer(request, client, answer, received, started)
        return self._respond(request, client, answer, received, started)

    async def _wait_for_answer(
        self, request: Request, client: Client, waiting: Awaitable[Answer], received: float, started: float
    ) -> Routed:
        times = received, started, time.monotonic()
        if not (self._quotas.enabled and self._throttling.limits_time(request, client)):
            stop_measuring()
            return self._after_wait(request, client, times, await waiting)
        watch = Stopwatch(waiting)
        return self._after_wait(request, client, times, await watch, watch.seconds)

    def _after_wait(
        self,
        request: Request,
        client: Client,
        times: tuple[float, float, float],
        answer: Answer,
        worked: float = 0.0,
    ) -> Routed:
        """`times`: when the request was received, when it was dispatched, and since when it waits. `worked`: how long
        its handler worked since then (s)."""
        received, started, waits = times
        return self._respond(request, client, answer, received, started, time.monotonic() - waits, worked)

    def _respond(
        self,
        request: Request,
        client: Client,
        answer: Answer,
        received: float,
        started: float,
        remote: float = 0.0,
        worked: float = 0.0,
    ) -> Routed:
        if not self._quotas.enabled:
            response = _encode(request, answer.send() if isinstance(answer, FetchedAnswer) else answer)
            self._log.answered(request, client, answer, response, received, started, remote)
            return response
        seconds = time.monotonic() - started - remote + worked
        answer, throttle_ms = self._throttling.charge(request, client, answer, seconds)
        response = _encode(request, answer, throttle_ms)
        self._log.answered(request, client, answer, response, received, started, remote)
        if throttle_ms or self._throttling.limits_time(request, client):
            return self._throttling.metered(request, client, response, throttle_ms)
        return response

    def _decode(self, head: Head) -> Request:
        version, route = head.version, self._routes.get(head.key)
        if route is None:
            raise self._unserved(head, f"API key {head.key} is not served")
        if route.low <= version <= route.high:
            return head.decode()
        if route.api is ApiKey.API_VERSIONS:
            # KIP-511: answered in version 0, so that every client can read which versions there are.
            return Request(route.api, 0, head.correlation_id, None, None, len(head.frame))
        refused = self._unserved(head, f"{route.api.name} version {version} is outside {route.low}–{route.high}")
        if route.refuse is None or not 0 <= version < route.low or head.wants_no_answer:
            raise refused
        request = head.decode()
        if str(refused):
            logger.warning("answering with UNSUPPORTED_VERSION: %s", refused)
        return request

    def _unserved(self, head: Head, text: str) -> UnservedVersion:
        shown = None if head.client_id is None else head.client_id[:_MAX_CLIENT_ID]
        of_whom = "a client without an id" if shown is None else f"client id {shown!r}"
        is_due = self._unserved_versions.is_due((shown, head.key, head.version))
        return UnservedVersion(f"{text} (asked by {of_whom})" if is_due else "")


def _encode(request: Request, answer: Answer, throttle_ms: int = 0) -> Response:
    if isinstance(answer, Mapping):
        return encode_response(request, {**answer, "throttle_time": throttle_ms} if throttle_ms else answer)
    if answer is None or isinstance(answer, (list, tuple)):
        response = cast(Response, answer)
        return with_throttle_time(request, response, throttle_ms) if throttle_ms else response
    raise ProtocolError(f"{request.api.name} gave an answer of type {type(answer).__name__}")
