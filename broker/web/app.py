"""The web application and its server: starlette, uvicorn and prometheus_client, on the broker's event loop.

Imported by http_listener.py once the broker serves, and only when `metrics.listener` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, Generic, TypeVar, cast

import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from broker.metrics import LATENCY_BOUNDS_S, Histogram
from broker.security.http_credentials import CHALLENGE, Credentials
from broker.web.collector import MetricSources, Samples, collect
from broker.web.families import Family
from broker.web.health import Health

T = TypeVar("T")

FRESH_S: Final = 1.0
LARGE: Final = 2000
"""Samples. Fewer are collected in a few milliseconds, and whoever looks twice sees what has changed."""

_BOUNDS = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]


def make_server(sources: MetricSources, health: Health, credentials: Credentials) -> HttpServer:
    """A server for `serve(sockets=[…])`. `credentials` are for /metrics."""
    # `process_…` (memory, CPU, descriptors) and `python_gc_…`
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    GCCollector(registry=process)

    async def collected_and_counted() -> tuple[list[tuple[Family, Samples]], int]:
        collected = await collect(sources)
        return collected, sum(len(samples) for _, samples in collected)

    scrapes = Scrapes(collected_and_counted, time.monotonic)

    async def metrics(request: Request) -> Response:
        if credentials and not credentials.allow(request.headers.get("authorization", "")):
            return Response("metrics.auth.… asks for a login\n", 401, headers=CHALLENGE)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = await scrapes.text(content_type, lambda collected: encode(_Scrape(collected, process)))
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

    def end(self) -> None:
        """Accept no more connections; `serve` ends within a second or two."""
        self.should_exit = True
        for server in getattr(self, "servers", ()):  # none before uvicorn has started
            server.close()


class Scrapes(Generic[T]):
    """The answers of /metrics. A large one is given to all who ask within a second, and one is made at a time.

    So those who ask often, or all at once, cost little more than one scraper does. Lives on the event loop.
    """

    def __init__(self, collect: Callable[[], Awaitable[tuple[T, int]]], clock: Callable[[], float]) -> None:
        """`collect` gives what there is and how many samples that are; `clock` tells seconds."""
        self._collect = collect
        self._clock = clock
        self._one = asyncio.Lock()
        self._fresh_until = float("-inf")
        self._collected: T
        self._texts: dict[str, bytes] = {}

    async def text(self, form: str, encode: Callable[[T], bytes]) -> bytes:
        """What `encode` makes, in a thread, of what was collected. `form` tells its result from that of others."""
        async with self._one:
            if self._clock() >= self._fresh_until:
                self._texts.clear()
                self._collected, samples = await self._collect()
                if samples >= LARGE:
                    self._fresh_until = self._clock() + FRESH_S
            if form not in self._texts:
                # In a thread: with thousands of partitions it would block the event loop for too long.
                self._texts[form] = await asyncio.to_thread(encode, self._collected)
            return self._texts[form]


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
    metric = Metric(name.removesuffix("_total"), doc, kind)
    # One after the other, as they are encoded: prometheus_client looks at them once.
    one_by_one: Any = (Sample(name, dict(zip(labels, of, strict=True)), cast(float, value)) for of, value in samples)
    metric.samples = one_by_one
    return metric
