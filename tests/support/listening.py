"""Listeners over real sockets with a handler of the test's own, for tests of the wire layer."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.metrics import Metrics
from broker.net.listener import ListenerSet
from broker.net.request_log import RequestLog
from broker.net.router import Client, Route, Router
from broker.net.throttling import Throttling
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, encode_request
from broker.quotas.client_quotas import ClientQuotas

Body = Callable[[Request, Client], Any]


@contextlib.asynccontextmanager
async def serving(
    handler: Body, metrics: Metrics | None = None, *, quotas: Any = None, **settings: Any
) -> AsyncIterator[tuple[str, int, ListenerSet]]:
    """Metadata, ApiVersions and Produce are answered by `handler`; gives (host, port, listeners). `quotas`:
    ClientQuotas."""
    config = BrokerConfig(**{"listeners": ("PLAINTEXT://127.0.0.1:0",), **settings})
    metrics = metrics or Metrics()
    listeners = ListenerSet(config, metrics)
    (bound,) = listeners.bind()
    served = [(ApiKey.PRODUCE, 3, 11), (ApiKey.METADATA, 0, 12), (ApiKey.API_VERSIONS, 0, 4)]
    routes = [Route(api, low, high, handler) for api, low, high in served]
    throttling = Throttling(quotas or ClientQuotas(), metrics)
    await listeners.serve(Router(routes, RequestLog(metrics, config.slow_request_log_ms), throttling))
    try:
        yield bound.host, bound.port, listeners
    finally:
        await listeners.close()


def request(correlation_id: int, client_id: str = "t") -> bytes:
    return encode_request(ApiKey.METADATA, 4, correlation_id, client_id, {"topics": []})


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def answer_with(name: str) -> dict[str, Any]:
    return {"cluster_id": name, "topics": []}


async def closed_by_peer(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(1), 60) == b""
    return True
