"""The web application: pages, API, metrics and static files, behind `Access`. Served by uvicorn."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from broker.errors import PykafkaError
from pykafka_ui.access import HEADERS, Access, Credentials
from pykafka_ui.api import Api
from pykafka_ui.changes import Changes
from pykafka_ui.console import Console
from pykafka_ui.group_metrics import GroupMetrics
from pykafka_ui.loads.api import LoadApi
from pykafka_ui.loads.pages import LoadPages
from pykafka_ui.pages import Pages
from pykafka_ui.render import Renderer
from pykafka_ui.status import status_of
from pykafka_ui.v3.reads import reads
from pykafka_ui.v3.writes import Writes

_SCRAPED_S = 15.0
"""How old the numbers of a scrape may be."""
_STATIC = Path(__file__).parent / "static"


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
    app.include_router(Api(console).router())
    if allow_changes:
        app.include_router(Writes(console).router())
        app.include_router(Changes(console, render).router())
    app.include_router(Pages(console, render).router())
    if console.loads is not None:
        app.include_router(LoadApi(console.loads).router())
        app.include_router(LoadPages(console.loads, render).router())
    app.mount("/static", _CachedFiles(directory=_STATIC), name="static")

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
    """Static files, which a browser asks for again after an hour."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["cache-control"] = "private, max-age=3600"
        return response
