"""The web application and its server: starlette, uvicorn and prometheus_client, on the broker's event loop.

Imported by http_listener.py once the broker serves, and only when `metrics.listener` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from broker.metrics import LATENCY_BOUNDS_S, Histogram
from broker.web.collector import Family, MetricSources, Samples, collect
from broker.web.health import Health

__all__ = ["HttpServer", "make_server"]

_KINDS: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
_BOUNDS = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]


def make_server(sources: MetricSources, health: Health) -> HttpServer:
    """A server for `serve(sockets=[…])`. Set `should_exit` to end it."""
    # `process_…` (memory, CPU, descriptors) and `python_gc_…`
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    GCCollector(registry=process)

    async def metrics(request: Request) -> Response:
        collected = await collect(sources)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # In a thread: with thousands of partitions it would block the event loop for too long.
        body = await asyncio.to_thread(encode, _Scrape(collected, process))
        return Response(body, headers={"content-type": content_type})

    async def healthz(request: Request) -> Response:
        well, report = await asyncio.to_thread(health.report)
        return JSONResponse(report, 200 if well else 503)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz)])
    return HttpServer(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the broker has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Scrape(CollectorRegistry):
    """The metrics of one scrape, for prometheus_client to encode."""

    def __init__(self, collected: Sequence[tuple[Family, Samples]], process: CollectorRegistry) -> None:
        super().__init__()
        self._collected = collected
        self._process = process

    def collect(self) -> Iterator[Metric]:
        for family, samples in self._collected:
            yield _metric(family, samples)
        yield from self._process.collect()


def _metric(family: Family, samples: Samples) -> Metric:
    name, kind, labels, doc = family
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, doc, labels=labels)
        for values, value in samples:
            assert isinstance(value, Histogram)
            counts = accumulate(value.counts)
            histogram.add_metric(values, [*zip(_BOUNDS, counts, strict=True)], sum_value=value.sum)
        return histogram
    metric: Any = _KINDS[kind](name.removesuffix("_total") if kind == "counter" else name, doc, labels=labels)
    for values, value in samples:
        metric.add_metric(values, value)
    return metric  # type: ignore[no-any-return]
