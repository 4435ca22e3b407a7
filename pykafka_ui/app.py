"""The web application: pages, API, metrics and static files, behind `Access`. Served by uvicorn."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator, Iterator

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from broker.errors import PykafkaError
from pykafka_ui.access import HEADERS, Access, Credentials
from pykafka_ui.api import loads_api, records_api
from pykafka_ui.changes import Changes
from pykafka_ui.console import Console
from pykafka_ui.loads.pages import LoadPages, RewindPages
from pykafka_ui.loads.tables import Tables
from pykafka_ui.pages.archive_page import ArchivePage
from pykafka_ui.pages.cluster_pages import ClusterPages, FindPage
from pykafka_ui.pages.group_pages import GroupPages, StreamsPage
from pykafka_ui.pages.record_pages import RecordPages
from pykafka_ui.pages.topic_pages import TopicPages
from pykafka_ui.render import STATIC, Renderer, static_version
from pykafka_ui.seen.snapshot import Snapshot
from pykafka_ui.status import status_of
from pykafka_ui.v3.reads import reads
from pykafka_ui.v3.writes import Writes

PAGES = (ClusterPages, TopicPages, RecordPages, GroupPages, ArchivePage, StreamsPage, FindPage)
"""Those that every console has."""
_SCRAPED_S = 15.0
"""How old the numbers of a scrape may be."""


def make_app(console: Console, credentials: Credentials, host: str, *, allow_changes: bool = False) -> FastAPI:
    """The application. It starts and stops `console`. `host`: the address that it listens on."""
    version = importlib.metadata.version("pykafka-spark")
    render = Renderer(console, version, allow_changes=allow_changes)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        console.start()
        try:
            yield
        finally:
            console.stop()

    app = FastAPI(
        title="pykafka ui",
        version=version,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # these pages load scripts from another host
        redoc_url=None,
        middleware=[Middleware(Access, credentials=credentials, host=host)],
    )
    app.include_router(reads(console))
    app.include_router(records_api(console))
    if allow_changes:
        app.include_router(Writes(console).router())
        app.include_router(Changes(console, render).router())
    for pages in PAGES:
        app.include_router(pages(console, render).router)
    if console.loads is not None:
        app.include_router(loads_api(console.loads))
        tables = Tables()
        app.include_router(LoadPages(console, render, tables).router)
        app.include_router(RewindPages(console, render, tables, allow_changes=allow_changes).router)
    app.mount("/static", _CachedFiles(directory=STATIC), name="static")

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(
            encode(GroupMetrics(console.sampler.at_most_old(_SCRAPED_S))), headers={"content-type": content_type}
        )

    _answer_errors(app, render)
    return app


def _answer_errors(app: FastAPI, render: Renderer) -> None:
    """With a page, or under /api with REST Proxy's `error_code` and `message`."""

    def answer(request: Request, status: int, message: str) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error_code": status, "message": message}, status)
        return render.error(request, status, message)

    @app.exception_handler(PykafkaError)
    def cluster_error(request: Request, error: PykafkaError) -> Response:
        return answer(request, status_of(error), str(error))

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:
        return answer(request, error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    def defect(request: Request, error: Exception) -> Response:
        found = answer(request, 500, f"a defect of the console: {type(error).__name__}; its log says more")
        found.headers.update(HEADERS)  # Starlette answers this one outside `Access`
        return found

    @app.exception_handler(RequestValidationError)
    def wrong_request(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return answer(request, 400, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")


class _CachedFiles(StaticFiles):
    """Static files, which a browser keeps: at the address of this version for ever, at another one for an hour."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        is_this = scope["query_string"] == f"v={static_version(path)}".encode()
        response.headers["cache-control"] = "private, max-age=" + ("31536000, immutable" if is_this else "3600")
        return response


class GroupMetrics(CollectorRegistry):
    """The lag of all groups in one snapshot, by the names of kafka_exporter, which dashboards and alerts know.

    As there, a partition that a member reads without a committed offset has the offset and the lag -1, so that an alert
    can find it, and is left out of the sum; a topic of which nothing is known has no sum. What such a partition holds
    is in `pykafka_ui_consumergroup_unread`.
    """

    def __init__(self, seen: Snapshot) -> None:
        super().__init__()
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        labels = ("consumergroup", "topic", "partition")
        lag = GaugeMetricFamily("kafka_consumergroup_lag", "Records behind the log end.", labels=labels)
        offset = GaugeMetricFamily("kafka_consumergroup_current_offset", "The committed offset.", labels=labels)
        total = GaugeMetricFamily("kafka_consumergroup_lag_sum", "The lag of a topic.", labels=labels[:2])
        unread = GaugeMetricFamily(
            "pykafka_ui_consumergroup_unread",
            "Records of a partition that a member reads without a committed offset.",
            labels=labels,
        )
        for name, group in self._seen.groups.items():
            sums: dict[str, int] = {}
            for tp, at in group.offsets.items():
                offset.add_metric([name, tp.topic, str(tp.partition)], at.offset)
                if tp in group.lags:
                    lag.add_metric([name, tp.topic, str(tp.partition)], group.lags[tp])
                    sums[tp.topic] = sums.get(tp.topic, 0) + group.lags[tp]
            for tp in group.uncommitted:
                offset.add_metric([name, tp.topic, str(tp.partition)], -1)
                lag.add_metric([name, tp.topic, str(tp.partition)], -1)
            for tp, records in group.unread.items():
                unread.add_metric([name, tp.topic, str(tp.partition)], records)
            for topic, value in sums.items():
                total.add_metric([name, topic], value)
        up = GaugeMetricFamily("pykafka_ui_cluster_up", "Whether the cluster answered the last look.")
        up.add_metric([], 0 if self._seen.error else 1)
        brokers = GaugeMetricFamily("kafka_brokers", "Brokers of the cluster.")
        if self._seen.at_ms:
            brokers.add_metric([], len(self._seen.brokers))
        behind = GaugeMetricFamily("pykafka_ui_under_replicated_partitions", "Partitions with fewer replicas in sync.")
        if self._seen.at_ms:
            behind.add_metric([], self._seen.under_replicated)
        yield from (lag, offset, total, unread, up, brokers, behind)
