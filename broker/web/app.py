"""The web application and the server it runs in: starlette and uvicorn, on the broker's own event loop.

Imported by http_listener.py once the broker serves, and only when `metrics.listener` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from broker.web.exposition import Exposition
from broker.web.figures import Sources, read_figures
from broker.web.health import Health

__all__ = ["HttpServer", "make_server"]


def make_server(sources: Sources, health: Health) -> HttpServer:
    """A server for `serve(sockets=[…])`; set `should_exit` to end it."""
    exposition = Exposition()

    async def metrics(request: Request) -> Response:
        figures = await read_figures(sources)
        body, content_type = await asyncio.to_thread(exposition.render, figures, request.headers.get("accept", ""))
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
