"""The pages of topics; those of records are in record_pages.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.errors import ConfigError
from pykafka_ui.pages.listing import ROWS, listing
from pykafka_ui.pages.page_set import PageSet, route
from pykafka_ui.pages.settings_listing import settings_listing
from pykafka_ui.pages.topic_rows import STATES, badges, reading_of, shares, topic_keys, topic_rows
from pykafka_ui.render import kept_text
from pykafka_ui.seen.snapshot import Partition, Snapshot, Topic


class TopicPages(PageSet):
    @route("/topics")
    def topics(self, request: Request, q: str = "", state: str = "", *, internal: bool = False) -> Response:
        """With a `state` also internal ones: the overview counts their partitions, too."""
        if state and state not in STATES:
            raise ConfigError(f"state={state[:40]}: expected {' or '.join(STATES)}")
        found = self._console.sampler.watch(groups=True)
        rows = [
            one
            for one in found.topics.values()
            if q.lower() in one.name.lower()
            and (internal or state or not one.internal)
            and (not state or one.count_of(STATES[state]))
        ]
        shown = listing(request, rows, topic_keys(self._console, found))
        return self._render(
            request,
            "topics.html",
            listing=shown,
            rows=topic_rows(self._console, found, shown.rows),
            shares=shares,
            internal=internal,
            asked_state=state,
            partitions=sum(one.count_of(STATES[state]) for one in rows) if state else 0,
        )

    @route("/topics/{name}")
    def topic(self, request: Request, name: str) -> Response:
        found, one = self._topic(name)
        keys: dict[str, Callable[[Partition], Any]] = {
            "partition": lambda row: row.index,
            "leader": lambda row: row.leader,
            "records": lambda row: -1 if row.records is None else row.records,
            "size": lambda row: row.size,
            "state": lambda row: row.state,
        }
        shown = listing(request, one.partitions, keys, "partition")
        settings = self._console.shown_settings([name]).get(name, {})
        return self._render(
            request,
            "topic.html",
            topic=one,
            listing=shown,
            groups=found.readers_of(name)[:ROWS],
            reading=reading_of(found, name),
            written=self._console.written(name),
            newest_ms=self._console.newest_ms([one]).get(name),
            kept=kept_text(settings),
            badges=badges(one, settings),
            shares=shares,
        )

    @route("/topics/{name}/settings")
    def topic_settings(self, request: Request, name: str, *, changed: bool = False) -> Response:
        _, one = self._topic(name)
        shown = settings_listing(request, self._console.topic_settings(name), changed=changed)
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
