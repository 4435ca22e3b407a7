"""The pages of topics and of their records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.errors import PykafkaError
from pykafka_ui.console import Console
from pykafka_ui.listing import ROWS, listing
from pykafka_ui.records_query import DOWNLOADS, MOST_DOWNLOADED, AskedRecords, FoundRecords, RecordsQuery
from pykafka_ui.render import Renderer, kept_text, segment
from pykafka_ui.settings_listing import settings_listing
from pykafka_ui.snapshot import Partition, Snapshot, Topic
from pykafka_ui.status import status_of

Key = Callable[[Any], Any]
_MOST_SHOWN = 500


class TopicPages:
    def __init__(self, console: Console, render: Renderer) -> None:
        self._console = console
        self._render = render.page
        self._rate = console.sampler.last_rate

    def router(self) -> APIRouter:
        pages = APIRouter(include_in_schema=False)
        pages.add_api_route("/topics", self.topics)
        pages.add_api_route("/topics/{name}", self.topic)
        pages.add_api_route("/topics/{name}/settings", self.topic_settings)
        pages.add_api_route("/topics/{name}/records", self.records)
        pages.add_api_route("/topics/{name}/records.{ending}", self.download)
        return pages

    def topics(
        self, request: Request, q: str = "", sort: str = "name", page: int = 1, internal: bool = False
    ) -> Response:
        found, rate = self._console.sampler.watch(), self._rate
        rows = [
            one for one in found.topics.values() if q.lower() in one.name.lower() and (internal or not one.internal)
        ]
        keys: dict[str, Callable[[Topic], Any]] = {
            "name": lambda one: one.name,
            "partitions": lambda one: len(one.partitions),
            "replication": lambda one: one.replication,
            "records": lambda one: -1 if one.records is None else one.records,
            "size": lambda one: one.size + (one.archived or 0),
            "rate": lambda one: rate("records", one.name) or 0,
            "state": lambda one: -one.not_in_sync,
        }
        extra = (("internal", "1"),) if internal else ()
        shown = listing("/topics", rows, keys, sort=sort, page=page, query=q, extra=extra)
        rates = {one.name: rate("records", one.name) for one in shown.rows}
        return self._render(request, "topics.html", seen=found, listing=shown, rates=rates, internal=internal)

    def topic(self, request: Request, name: str, page: int = 1, sort: str = "partition") -> Response:
        found, one = self._topic(name)
        keys: dict[str, Callable[[Partition], Any]] = {
            "partition": lambda row: row.index,
            "leader": lambda row: row.leader,
            "records": lambda row: -1 if row.records is None else row.records,
            "size": lambda row: row.size,
            "state": lambda row: row.state,
        }
        shown = listing(f"/topics/{segment(name)}", one.partitions, keys, sort=sort, page=page)
        groups = found.readers_of(name)[:ROWS]
        return self._render(
            request,
            "topic.html",
            seen=found,
            topic=one,
            listing=shown,
            groups=groups,
            written=self._console.written(name),
            newest_ms=self._console.newest_ms(name, len(one.partitions)),
            kept=kept_text(self._console.shown_settings(name)),
        )

    def topic_settings(
        self, request: Request, name: str, q: str = "", sort: str = "name", page: int = 1, changed: bool = False
    ) -> Response:
        _, one = self._topic(name)
        shown = settings_listing(
            f"/topics/{segment(name)}/settings", self._console.topic_settings(name), q, sort, page, changed
        )
        return self._render(
            request, "settings.html", title=f"Settings of {name}", listing=shown, changed=changed, topic=one, every=0
        )

    def _topic(self, name: str) -> tuple[Snapshot, Topic]:
        """One that was just made elsewhere is looked for once more."""
        sampler = self._console.sampler
        if name not in sampler.watch().topics:
            sampler.wait_until(lambda seen: name in seen.topics, 1.0)
        found = sampler.snapshot
        if name not in found.topics:
            raise HTTPException(404 if found.at_ms else 503, f"There is no topic {name!r}.")
        return found, found.topics[name]

    # --- records

    def records(self, request: Request, asked: AskedRecords, *, live: bool = False) -> Response:
        """With what was typed in the form, also when it cannot be shown."""
        try:
            with self._console.records(asked.at_most(_MOST_SHOWN)) as found:
                return self._records(request, asked, found, live=live)
        except PykafkaError as error:
            if asked.topic not in self._console.sampler.watch().topics:
                raise
            return self._records(request, asked, None, live=False, problem=error)

    def _records(
        self,
        request: Request,
        asked: RecordsQuery,
        found: FoundRecords | None,
        *,
        live: bool,
        problem: PykafkaError | None = None,
    ) -> Response:
        status = status_of(problem) if problem else 200
        return self._render(
            request,
            "records.html",
            status=status,
            problem=str(problem or ""),
            topic=asked.topic,
            asked=asked,
            found=found,
            rows=found.rows if found else [],
            live=live,
            every=1 if live else 5 if status >= 500 else 0,
            spark=found.spark(self._console.bootstrap) if found and found.page.records else "",
            curl=f"curl '{request.base_url}api/topics/{segment(asked.topic)}/records?{asked.address()}'",
        )

    def download(self, ending: str, asked: AskedRecords) -> Response:
        if ending not in DOWNLOADS:
            raise HTTPException(404, f"Records can be had as {' or '.join(DOWNLOADS)}.")
        media_type, write = DOWNLOADS[ending]
        attachment = f"attachment; filename*=UTF-8''{segment(asked.topic)}.{ending}"
        with self._console.records(asked.at_most(MOST_DOWNLOADED)) as found:
            content = write(found)
        return Response(content, media_type=media_type, headers={"content-disposition": attachment})
