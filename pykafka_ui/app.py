"""The web application: pages, API, metrics and static files, behind `Access`. Served by uvicorn.

Under /api are records, history and loads as JSON, for which REST Proxy v3 has no shapes (v3/ has the rest). OpenAPI
describes all of it at /api/openapi.json. Errors have v3's shape: `error_code` and `message`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query
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
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.access import HEADERS, Access, Credentials
from pykafka_ui.changes import Changes
from pykafka_ui.console import Console, Loads
from pykafka_ui.loads.pages import LoadPages
from pykafka_ui.pages.archive_page import ArchivePage
from pykafka_ui.pages.cluster_pages import ClusterPages
from pykafka_ui.pages.group_pages import GroupPages
from pykafka_ui.pages.record_pages import RecordPages
from pykafka_ui.pages.topic_pages import TopicPages
from pykafka_ui.records.records_query import AskedRecords
from pykafka_ui.render import STATIC, Renderer, static_version, status_of
from pykafka_ui.seen.snapshot import Snapshot
from pykafka_ui.seen.streams import StreamReport
from pykafka_ui.v3.reads import reads
from pykafka_ui.v3.writes import Writes

PAGES = (ClusterPages, TopicPages, RecordPages, GroupPages, ArchivePage)
"""Those that every console has."""
_SCRAPED_S = 15.0
"""How old the numbers of a scrape may be."""
Document = dict[str, Any]
At = Annotated[str, Query(description="URL of a place, as `--loads` has it, without a password")]
_MOST_RECORDS = 1_000


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
        app.include_router(LoadPages(console, render, allow_changes=allow_changes).router)
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


def _labels(tp: TopicPartition) -> tuple[str, str]:
    return tp.topic, str(tp.partition)


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
        about = "Records of a partition that a member reads without a committed offset."
        unread = GaugeMetricFamily("pykafka_ui_consumergroup_unread", about, labels=labels)
        for name, group in self._seen.groups.items():
            sums: Counter[str] = Counter()
            for tp, at in group.offsets.items():
                offset.add_metric([name, *_labels(tp)], at.offset)
            for tp, records in group.lags.items():
                lag.add_metric([name, *_labels(tp)], records)
                sums[tp.topic] += records
            for tp in group.uncommitted:
                offset.add_metric([name, *_labels(tp)], -1)
                lag.add_metric([name, *_labels(tp)], -1)
            for tp, records in group.unread.items():
                unread.add_metric([name, *_labels(tp)], records)
            for topic, value in sums.items():
                total.add_metric([name, topic], value)
        about = "Whether the cluster answered the last look."
        up = GaugeMetricFamily("pykafka_ui_cluster_up", about, 0 if self._seen.error else 1)
        brokers, behind = (len(self._seen.brokers), self._seen.under_replicated) if self._seen.at_ms else (None, None)
        yield from (lag, offset, total, unread, up)
        yield GaugeMetricFamily("kafka_brokers", "Brokers of the cluster.", brokers)
        about = "Partitions with fewer replicas in sync."
        yield GaugeMetricFamily("pykafka_ui_under_replicated_partitions", about, behind)


def records_api(console: Console) -> APIRouter:
    api = APIRouter(prefix="/api")

    @api.get("/topics/{name}/records", tags=["records"])
    def records(asked: AskedRecords) -> Document:
        """Some records: at most 1,000, with where older and newer ones are."""
        with console.records(asked.at_most(_MOST_RECORDS)) as found:
            return found.document()

    @api.get("/history/{kind}", tags=["history"])
    def history(kind: str, name: str = "") -> Document:
        """The last hour: `records` or `read` per second of a topic or group, or the `lag` of a group.

        The lag is with what is unread in partitions that a member reads without a committed offset.
        What was written before the console began to look is known from the times of records.
        Without a name: of the whole cluster. A point every 30 s, or seldomer in a large cluster.
        """
        if kind not in ("records", "read", "lag"):
            raise HTTPException(404, f"there is no history of {kind!r}")
        console.sampler.watch(groups=kind != "records")
        found = console.series(kind, name)
        return {"kind": kind, "name": name, "times": [at for at, _ in found], "values": [value for _, value in found]}

    @api.post("/streams", tags=["streams"], status_code=204)
    def stream(report: StreamReport) -> None:
        """Tell how a query of Spark goes, as `LagListener(ConsoleReports(…))` does after each batch. Kept in memory."""
        console.streams.reported(report)

    return api


def loads_api(loads: Loads) -> APIRouter:
    api = APIRouter(prefix="/api/loads", tags=["loads"])

    @api.get("")
    def places() -> Document:
        """Each place with the groups that load there, and the loads that are under way, hidden or killed."""
        found = loads.places.content()
        rows = [{"url": one.url, "error": one.error, "groups": [g.to_json() for g in one.groups]} for one in found]
        return {"places": rows}

    @api.get("/history")
    def history(at: At, group: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Document:
        """The newest loads of a group."""
        known = loads.places.group(at, group).history
        rows = [entry.to_json() for entry in known.entries[-limit:]]
        return {"url": at, "group": group, "loads": rows, "forgotten": known.forgotten}

    @api.get("/verification")
    def verification(at: At, group: str) -> Document:
        """The newest verification of a group since the start."""
        state = loads.verifications.state(at, group)
        if state is None:
            raise HTTPException(404, "it was not verified since the start")
        return state.to_json()

    @api.post("/verification", status_code=202)
    def verify(at: At, group: str) -> Document:
        """Begin to verify the loads of a group. It changes nothing. One at a time."""
        loads.verifications.start(at, loads.places.target(at, group))
        return verification(at, group)

    return api
