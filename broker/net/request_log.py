"""Counts every answered request by API, and logs slow ones.

Called by the router for each response. Counting means a few additions to plain numbers (broker/metrics.py). A request
slower than `slow.request.log.ms` gets one line with client, sizes and times. Time that a long poll or a group rebalance
waits by design does not count. Idea: Kafka's `RequestChannel.updateRequestMetrics` and its request log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from broker.metrics import Metrics
from broker.net.response import Response, size_of
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request
from broker.protocol.response_errors import error_codes

logger = logging.getLogger(__name__)

WAITS_BY_DESIGN = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Their handlers wait for an event, as long as the client asked for."""
COUNT_THEIR_ERRORS = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA})
"""Their handlers call `Metrics.failed` themselves: the answer is encoded already, or a search costs a microsecond."""


class Peer(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class RequestLog:
    """Counts into `metrics`; `slow_ms` is the threshold for the log line, below 0 for none."""

    def __init__(self, metrics: Metrics, slow_ms: int = -1) -> None:
        self._apis = metrics.apis
        self._slow_s = slow_ms / 1000 if slow_ms >= 0 else float("inf")

    def answered(
        self,
        request: Request,
        peer: Peer,
        answer: object,
        response: Response,
        received: float,
        started: float,
        remote: float = 0.0,
    ) -> None:
        """Count a request whose handler returned `answer`, encoded as `response`.

        `received` is when its last byte arrived and `started` when it was dispatched (monotonic clock, s); `remote` is
        how long its handler waited for others (s).
        """
        total = time.monotonic() - received
        size = size_of(response)
        api = self._apis[request.api]
        api.requests[request.version] += 1
        api.total.observe(total)
        api.queue += started - received
        api.remote += remote
        api.request_bytes += request.size
        api.response_bytes += size
        if request.api not in COUNT_THEIR_ERRORS and isinstance(answer, Mapping):
            for code in error_codes(request.api, answer):
                api.errors[code] += 1
        if total > self._slow_s and (request.api not in WAITS_BY_DESIGN or total - remote > self._slow_s):
            _log_slow(request, peer, size, total, started - received, remote)


def _log_slow(request: Request, peer: Peer, size: int, total: float, queue: float, remote: float) -> None:
    fields: dict[str, Any] = {
        "event": "slow_request",
        "api": request.api.name,
        "version": request.version,
        "client_id": request.client_id,
        "correlation_id": request.correlation_id,
        "peer": f"{peer.host}:{peer.port}",
        "request_bytes": request.size,
        "response_bytes": size,
        "total_ms": round(total * 1000, 3),
        "queue_ms": round(queue * 1000, 3),
        "local_ms": round((total - queue - remote) * 1000, 3),
        "remote_ms": round(remote * 1000, 3),
    }
    logger.warning(
        "slow request: %(api)s version %(version)d of %(peer)s, client id %(client_id)s: %(total_ms).1f ms, of them "
        "queue %(queue_ms).1f, local %(local_ms).1f, remote %(remote_ms).1f; %(request_bytes)d bytes in, "
        "%(response_bytes)d out",
        fields,
        extra=fields,
    )
