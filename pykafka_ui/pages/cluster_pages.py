"""The overview, and the pages of brokers and transactions."""

from __future__ import annotations

import time
from collections.abc import Iterable

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.errors import PykafkaError
from pykafka_ui.health import Health, health_of, of_loads, of_transactions
from pykafka_ui.loads.series_health import series_health
from pykafka_ui.pages.group_pages import by_lag
from pykafka_ui.pages.page_set import PageSet, route
from pykafka_ui.pages.settings_listing import settings_listing
from pykafka_ui.seen.broker_rows import broker_rows
from pykafka_ui.seen.group_rows import GroupRow
from pykafka_ui.seen.lag_trend import RECENT_POINTS
from pykafka_ui.seen.snapshot import Snapshot, Topic


class ClusterPages(PageSet):
    @route("/")
    def overview(self, request: Request) -> Response:
        found = self._console.sampler.watch()
        busiest = sorted(
            (one for one in found.topics.values() if not one.internal), key=lambda one: -one.size - (one.archived or 0)
        )
        behind = sorted((one for one in found.groups.values() if one.behind.total), key=by_lag, reverse=True)
        own = sum(GroupRow(one).is_folded for one in found.groups.values())
        return self._render(
            request,
            "overview.html",
            busiest=busiest[:10],
            behind=behind[:10],
            unknown=sum(one.has_lag and one.behind.total is None for one in found.groups.values()),
            health=self._health(found),
            internal=sum(one.internal for one in found.topics.values()),
            groups=None if "groups" in found.unseen or not found.at_ms else len(found.groups) - own,
            own=own,
            past=self._past,
            written=self._console.written(),
            read=self._console.sampler.last_rate("read"),
            bytes_per_record=_bytes_per_record(found.topics.values()),
        )

    def _past(self, kind: str, name: str) -> list[float | None]:
        """Of the last hour, for a sparkline: `lag`, or a rate."""
        history = self._console.sampler.history(kind)
        return [value for _, value in (history.values if kind == "lag" else history.rate)(kind, name)]

    def _health(self, seen: Snapshot) -> Health:
        history = self._console.sampler.history("lag")
        others = list(of_transactions(self._console.overdue_transactions()) if seen.at_ms and not seen.error else ())
        if (loads := self._console.loads) is not None:
            series = series_health(loads.survey, seen)
            others += of_loads(series, is_whole=loads.survey.seen(wait=False).is_whole)
        return health_of(seen, lambda group: history.values("lag", group, RECENT_POINTS), time.time(), others)

    @route("/brokers")
    def brokers(self, request: Request) -> Response:
        found = self._console.sampler.watch()
        return self._render(request, "brokers.html", rows=broker_rows(found))

    @route("/brokers/{broker_id}")
    def broker(self, request: Request, broker_id: int, *, changed: bool = False) -> Response:
        found = self._console.sampler.watch()
        node = next((one for one in found.brokers if one.id == broker_id), None)
        if node is None:
            raise HTTPException(404 if found.at_ms else 503, f"There is no broker {broker_id}.")
        settings = self._console.broker_settings(broker_id)
        return self._render(
            request,
            "broker.html",
            node=node,
            directories=self._console.log_dirs(broker_id),
            listing=settings_listing(request, settings, changed=changed),
            changed=changed,
            every=0,
        )

    @route("/transactions")
    def transactions(self, request: Request, *, hanging: bool = False) -> Response:
        """With `hanging` every partition is asked for transactions that no coordinator knows; once, not again."""
        self._console.sampler.watch()
        found, problem = None, ""
        if hanging:
            try:
                found = self._console.hanging_transactions()
            except PykafkaError as error:
                problem = str(error)
        return self._render(
            request,
            "transactions.html",
            every=0 if hanging else 5,
            transactions=self._console.open_transactions(),
            hanging=found,
            problem=problem,
            text=self._console.partitions_text,
        )


def _bytes_per_record(topics: Iterable[Topic]) -> float:
    known = [
        (one.size, one.records)
        for one in topics
        if not one.internal and one.size >= 0 and one.records and one.archived == 0
    ]
    return sum(size for size, _ in known) / sum(records for _, records in known) if known else 0.0
