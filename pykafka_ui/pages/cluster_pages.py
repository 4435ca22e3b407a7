"""The overview, the finder on every page, and the pages of brokers and transactions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.client.admin_types import LogDir
from broker.client.cluster_metadata import Node
from broker.errors import PykafkaError
from pykafka_ui.health import Health, health_of, of_loads, of_transactions
from pykafka_ui.loads.series_health import series_health
from pykafka_ui.pages.page_set import PageSet, route, settings_listing
from pykafka_ui.render import segment
from pykafka_ui.seen.group_rows import GroupRow
from pykafka_ui.seen.history import RECENT_POINTS
from pykafka_ui.seen.snapshot import Snapshot, Topic


class ClusterPages(PageSet):
    @route("/")
    def overview(self, request: Request) -> Response:
        found = self._console.sampler.watch()
        busiest = sorted(
            (one for one in found.topics.values() if not one.internal), key=lambda one: -one.size - (one.archived or 0)
        )
        behind = sorted(
            (one for one in found.groups.values() if one.behind.total), key=lambda one: -(one.behind.total or 0)
        )
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
        found, why_not = None, ""
        if hanging:
            try:
                found = self._console.hanging_transactions()
            except PykafkaError as error:
                why_not = str(error)
        return self._render(
            request,
            "transactions.html",
            every=0 if hanging else 5,
            transactions=self._console.open_transactions(),
            hanging=found,
            why_not=why_not,
            text=self._console.partitions_text,
        )

    @route("/find")
    def find(self, request: Request, q: str = "") -> Response:
        """A page, of which the finder shows the list. One that is the only one is shown itself."""
        query = q.strip()
        parts = self._parts(query) if query else []
        if sum(one.found for one in parts) == 1 and "hx-request" not in request.headers:
            return RedirectResponse(next(one.first[0][1] for one in parts if one.found), 303)
        return self._render(request, "find.html", every=0, query=query, parts=parts)

    def _parts(self, query: str) -> list[Part]:
        seen = self._console.sampler.watch()
        kinds: dict[str, tuple[Iterable[tuple[str, str]], str]] = {
            "Topics": (((name, f"/topics/{segment(name)}") for name in seen.topics), "/topics"),
            "Groups": (((name, f"/groups/{segment(name)}") for name in seen.groups), "/groups"),
            "Brokers": (
                ((f"{one.id} at {one.host}:{one.port}", f"/brokers/{one.id}") for one in seen.brokers),
                "/brokers",
            ),
        }
        if (loads := self._console.loads) is not None:
            series = loads.survey.seen(wait=False).series
            kinds["Loads"] = (((f"{one.group} at {one.place}", one.address) for one in series), "/loads")
        parts = []
        for name, (named, page) in kinds.items():
            found = matching(query, named)
            more = {"q": query, "internal": "1"} if page == "/topics" else {"q": query}
            parts.append(Part(name, len(found), found[:_SHOWN], f"{page}?{urlencode(more)}"))
        return parts


def _bytes_per_record(topics: Iterable[Topic]) -> float:
    known = [
        (one.size, one.records)
        for one in topics
        if not one.internal and one.size >= 0 and one.records and one.archived == 0
    ]
    return sum(size for size, _ in known) / sum(records for _, records in known) if known else 0.0


_SHOWN = 8
"""Of a kind."""


@dataclasses.dataclass(frozen=True)
class Part:
    """What was found of a kind: the `first` few as (name, address), and the address of a list of `all`."""

    name: str
    found: int
    first: Sequence[tuple[str, str]]
    all: str


def matching(query: str, named: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those (name, address) that have `query` in their names, in any case; the name itself first, then beginnings."""
    asked = query.lower()
    found = [(one[0].lower(), one) for one in named if asked in one[0].lower()]
    found.sort(key=lambda one: (one[0] != asked, not one[0].startswith(asked), one[0]))
    return [one for _, one in found]


FULL = 0.9
"""Of a disk."""


@dataclasses.dataclass(frozen=True)
class BrokerRow:
    """`node` is None of a broker that has replicas and is away. `share`: of all partitions, that it leads.

    `misled`: partitions that it should lead and does not. `total` and `free`: bytes of its fullest disk, for nothing
    tells whether two directories share one; -1 if they are not known. `used`: of that disk, 0 to 1, or None.
    """

    id: int
    node: Node | None
    led: int
    share: float
    replicas: int
    misled: int
    errors: list[str]
    total: int
    free: int

    @property
    def used(self) -> float | None:
        return None if self.total <= 0 else 1 - self.free / self.total

    @property
    def is_full(self) -> bool:
        return self.used is not None and self.used >= FULL

    @property
    def state(self) -> tuple[str, str]:
        """(ok, warn or bad; in words)."""
        if self.node is None:
            return "bad", "away"
        if self.errors:
            return "bad", "a directory failed"
        return ("warn", "disk is nearly full") if self.is_full else ("ok", "up")


def broker_rows(seen: Snapshot) -> list[BrokerRow]:
    """All that are there, and those that are away, by their ids."""
    nodes = {one.id: one for one in seen.brokers}
    return [_row(id_, nodes.get(id_), seen) for id_ in sorted({*nodes, *seen.away})]


def _row(id_: int, node: Node | None, seen: Snapshot) -> BrokerRow:
    disks = [one for one in seen.disks if one.broker_id == id_]
    errors = [f"{one.path}: {one.error}" for one in disks if one.error]
    known = [one for one in disks if one.total_bytes > 0 and one.usable_bytes >= 0]
    fullest = min(known, key=lambda one: one.usable_bytes / one.total_bytes, default=LogDir(id_, "", None, -1, -1, {}))
    led, total = seen.led[id_], len(seen.partitions) or 1
    counts = (led, led / total, seen.kept[id_], seen.misled[id_])
    return BrokerRow(id_, node, *counts, errors, fullest.total_bytes, fullest.usable_bytes)
