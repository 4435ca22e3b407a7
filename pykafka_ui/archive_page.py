"""The page of the archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from broker.protocol.archive_status import ArchiveStatus
from pykafka_ui.console import Console
from pykafka_ui.listing import listing
from pykafka_ui.render import Renderer


class ArchivePage:
    def __init__(self, console: Console, render: Renderer) -> None:
        self._console = console
        self._render = render.page

    def router(self) -> APIRouter:
        pages = APIRouter(include_in_schema=False)
        pages.add_api_route("/archive", self.archive)
        return pages

    def archive(self, request: Request, q: str = "", sort: str = "partition", page: int = 1) -> Response:
        """What of each partition is local, archived, or waits to be archived, and why."""
        self._console.sampler.watch()
        archives = self._console.archives()
        keys: dict[str, Callable[[ArchiveStatus], Any]] = {
            "partition": lambda one: one.tp,
            "bytes": lambda one: (-(one.archived_bytes or 0), one.tp),
            "behind": lambda one: (-(one.lag_bytes or 0), one.tp),
            "problem": lambda one: (not one.problem, one.tp),
        }
        rows = [one for one in archives if q.lower() in one.tp.topic.lower()]
        return self._render(
            request,
            "archive.html",
            listing=listing("/archive", rows, keys, sort=sort, page=page, query=q),
            archived=sum(one.archived_bytes or 0 for one in archives),
            behind=sum(one.lag_bytes or 0 for one in archives),
            unknown=any(None in (one.archived_bytes, one.lag_bytes) for one in archives),
            stuck=sum(bool(one.problem) for one in archives),
            partitions=len(archives),
        )
