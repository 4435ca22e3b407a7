"""Applies the client quotas to each request: counts it, and says how long its client is throttled (KIP-219).

Called by the router when an answer is there. The answer goes out at once with its throttle time, and the connection
then handles no request for that time. If several quotas are exceeded, the longest throttle counts. Requests that only
brokers make are exempt. A client that logs in is unknown, so that the requests of a login are exempt, too. Idea:
Kafka's `RequestHandlerHelper`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from broker.metrics import Metrics
from broker.net.response import Part, Response, size_of
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, field
from broker.quotas.client_quotas import ClientQuotas, QuotaType

_OF_BROKERS = frozenset(
    {
        *(ApiKey.WRITE_TXN_MARKERS, ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE),
        *(ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY),
    }
)
_OF_LOGINS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_FIRST_OF_BROKERS = 4
"""From this version on, brokers ask other brokers about transactions by AddPartitionsToTxn (KIP-890)."""


@dataclasses.dataclass(frozen=True, slots=True)
class FetchedAnswer:
    """The answer to a consumer's Fetch, which is empty if the consumer is throttled. One of the two is called."""

    send: Callable[[], Sequence[Part]]
    withhold: Callable[[], Sequence[Part]]


@dataclasses.dataclass(frozen=True, slots=True)
class ThrottledResponse:
    """A response whose client has quotas. `sent` is told how long the broker worked to send it (s)."""

    response: Response
    throttle_s: float
    """How long the connection handles no request after it; mostly 0."""
    sent: Callable[[float], None]


class Peer(NamedTuple):
    """Whom a request counts for. `user` has no `User:`, and a missing client id is empty."""

    user: str
    client_id: str


class Throttling:
    """Belongs to the event loop."""

    def __init__(
        self,
        quotas: ClientQuotas,
        metrics: Metrics,
        is_broker: Callable[[Any], bool] = lambda client: False,
    ) -> None:
        """`is_broker(client)`: whether it may act as a broker."""
        self.quotas = quotas
        self._metrics = metrics
        self._is_broker = is_broker

    def limits_time(self, request: Request, client: Any) -> bool:
        """Whether the time that the broker works for the request counts."""
        peer = quota_user(client.principal, request.client_id)
        return self.quotas.limits_time(*peer) and not self._is_exempt(request, client)

    def charge(self, request: Request, client: Any, answer: Any, seconds: float) -> tuple[Any, int]:
        """Count a request for which the broker worked for `seconds`; returns the answer to send, and the throttle time
        in ms.

        A handler may have set `throttle_time` in its answer: controller mutations do.
        """
        if self._is_exempt(request, client):
            return answer, 0
        user, client_id = quota_user(client.principal, request.client_id)
        now, quotas = time.monotonic(), self.quotas
        throttle_ms, kind = 0, QuotaType.REQUEST
        if answer is not None:  # the request quota is not for acks=0
            throttle_ms = quotas.handled(user, client_id, seconds, now)
        if isinstance(answer, Mapping) and (asked_ms := answer.get("throttle_time", 0)) > throttle_ms:
            throttle_ms, kind = asked_ms, QuotaType.CONTROLLER_MUTATION
        if request.api is ApiKey.PRODUCE:
            of_bytes_ms = quotas.produced(user, client_id, request.size, now)
            if of_bytes_ms > throttle_ms:
                throttle_ms, kind = of_bytes_ms, QuotaType.PRODUCE
        elif isinstance(answer, FetchedAnswer):
            # Whose time is used up gets its records all the same: to read them again would only cost more time.
            of_bytes_ms = quotas.unpaid_ms(user, client_id, now)
            answer = answer.withhold() if of_bytes_ms else answer.send()
            of_bytes_ms = of_bytes_ms or quotas.fetched(user, client_id, size_of(answer), now)
            if of_bytes_ms > throttle_ms:
                throttle_ms, kind = of_bytes_ms, QuotaType.FETCH
        if throttle_ms:
            counted = self._metrics.throttles[kind]
            counted.throttles += 1
            counted.seconds += throttle_ms / 1000
        return answer, throttle_ms

    def metered(self, request: Request, client: Any, response: Response, throttle_ms: int) -> ThrottledResponse:
        """The response with what its connection does about it."""
        user, client_id = quota_user(client.principal, request.client_id)

        def sent(seconds: float) -> None:
            self.quotas.sent(user, client_id, seconds, time.monotonic())

        return ThrottledResponse(response, throttle_ms / 1000, sent)

    def _is_exempt(self, request: Request, client: Any) -> bool:
        api = request.api
        if api in _OF_LOGINS or (client.sasl is not None and not client.sasl.done):
            return True
        return _is_of_brokers(request) and self._is_broker(client)


def quota_user(principal: str, client_id: str | None) -> Peer:
    return Peer(principal.partition(":")[2], client_id or "")


def _is_of_brokers(request: Request) -> bool:
    """Whether only brokers make such a request; everyone else is refused."""
    api, body = request.api, request.body
    if api is ApiKey.FETCH:
        state = field(body, "replica_state")
        return int(field(body, "replica_id", -1) if state is None else state.replica_id) >= 0
    return api in _OF_BROKERS or (api is ApiKey.ADD_PARTITIONS_TO_TXN and request.version >= _FIRST_OF_BROKERS)
