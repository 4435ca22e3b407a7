"""The pages of consumer groups and share groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.console import Console
from pykafka_ui.listing import listing
from pykafka_ui.render import Renderer, segment
from pykafka_ui.snapshot import Group


class GroupPages:
    def __init__(self, console: Console, render: Renderer) -> None:
        self._console = console
        self._render = render.page
        self._rate = console.sampler.last_rate

    def router(self) -> APIRouter:
        pages = APIRouter(include_in_schema=False)
        pages.add_api_route("/groups", self.groups)
        pages.add_api_route("/groups/{name:path}", self.group)
        return pages

    def groups(self, request: Request, q: str = "", sort: str = "-lag", page: int = 1) -> Response:
        found = self._console.sampler.watch(groups=True)
        keys: dict[str, Callable[[Group], Any]] = {
            "name": lambda one: one.id,
            "state": lambda one: one.state,
            "kind": lambda one: one.kind,
            "members": lambda one: one.members,
            "lag": by_lag,
        }
        rows = sorted((one for one in found.groups.values() if q.lower() in one.id.lower()), key=lambda one: one.id)
        shown = listing("/groups", rows, keys, sort=sort, page=page, query=q)
        return self._render(request, "groups.html", seen=found, listing=shown)

    def group(self, request: Request, name: str, page: int = 1, sort: str = "-lag") -> Response:
        found = self._console.sampler.watch(groups=True)
        if name not in found.groups:
            raise HTTPException(404 if found.at_ms else 503, f"There is no group {name!r}.")
        one, about = found.groups[name], self._console.known_group(name)
        keys: dict[str, Callable[[TopicPartition], Any]] = {
            "partition": lambda tp: tp,
            "lag": lambda tp: one.lags.get(tp, one.unread.get(tp, -1)),
        }
        written = sum(self._rate("records", topic) or 0 for topic in one.topics)
        return self._render(
            request,
            "group.html",
            seen=found,
            group=one,
            about=about,
            owners=about.owners if about else {},
            listing=listing(f"/groups/{segment(name)}", one.partitions, keys, sort=sort, page=page),
            caught_up_s=_caught_up_s(one.behind.total or 0, self._rate("read", name) or 0, written),
            is_rate_known=self._rate("read", name) is not None,
        )


def by_lag(group: Group) -> int:
    """Those come last of which nothing is known."""
    total = group.behind.total
    return -1 if total is None else total


def _caught_up_s(behind: int, read: float, written: float) -> float | None:
    """When nothing will be unread if readers and writers go on as they do; None if never, or if nothing is."""
    return behind / (read - written) if behind and read > written else None
