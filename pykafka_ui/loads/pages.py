"""The pages of loads: all series, the loads of one, a load, and the table; and what verifies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pykafka_ui.console import Console
from pykafka_ui.loads.places import GroupOfLoads, UnknownPlace
from pykafka_ui.loads.queries import command, snippets
from pykafka_ui.loads.schemas import schema_history
from pykafka_ui.loads.series_health import STATES, WORDS, Health, Series, address, judged
from pykafka_ui.loads.tables import COLUMNS, Tables
from pykafka_ui.pages.listing import listing
from pykafka_ui.pages.page_set import PageSet, route
from pykafka_ui.render import Renderer
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry

_EVERY_S, _BUSY_S = 30, 2
"""Reading a history means reading files; while something is going on, it is worth it more often."""
_KINDS = {state.value: STATES[word] for state, word in WORDS.items()}


class LoadPages(PageSet):
    def __init__(self, console: Console, render: Renderer, tables: Tables) -> None:
        super().__init__(console, render)
        loads = console.loads
        assert loads is not None
        self._survey = loads.survey
        self._places = loads.places
        self._verifications = loads.verifications
        self._tables = tables

    @route("/loads")
    def series(self, request: Request, q: str = "", state: str = "") -> Response:
        """All series of all places. Nothing is read for it that the last look has not read."""
        seen, looked, order = self._console.sampler.watch(), self._survey.seen(), list(STATES)
        found = judged(looked.series, seen, self._survey.now_ms())
        if q:
            found = [one for one in found if _is_meant(one[0], q.lower())]
        counts = Counter(health.word for _, _, health in found)
        keys: dict[str, Callable[[tuple[Series, int | None, Health]], Any]] = {
            "series": lambda one: (one[0].group, one[0].place),
            "state": lambda one: (order.index(one[2].word), one[0].group, one[0].place),
            "lag": lambda one: -1 if one[1] is None else one[1],
            "newest": lambda one: one[0].newest_ms,
            "day": lambda one: one[0].a_day or 0,
            "bad": lambda one: one[0].bad or 0,
            "files": lambda one: one[0].files or 0,
        }
        rows = [one for one in found if one[2].word == state] if state else found
        shown = listing(request, rows, keys, "state")
        every = _EVERY_S if looked.is_whole else _BUSY_S
        about: dict[str, Any] = {"word": state, "states": STATES, "counts": counts, "total": len(found)}
        return self._render(request, "loads.html", every=every, looked=looked, listing=shown, **about)

    @route("/loads/group")
    def group(self, request: Request, at: str, group: str) -> Response:
        found, state = self._places.group(at, group), self._verifications.state(at, group)
        keys: dict[str, Callable[[HistoryEntry], Any]] = {
            "load": lambda one: one.record.id.sequence,
            "time": lambda one: one.record.created_ms,
            "state": lambda one: one.state.value,
            "rows": lambda one: one.record.rows,
            "bytes": lambda one: one.bytes or 0,
        }
        shown = listing(request, found.history.entries, keys, "-load")
        seen, now_ms = self._console.sampler.watch(), self._survey.now_ms()
        series = Series.of(at, found, now_ms)
        lag, why = series.lag(seen)
        is_busy = (state is not None and state.is_running) or any(one.state.is_staged for one in found.to_look_at)
        return self._render(
            request,
            "load_group.html",
            every=_BUSY_S if is_busy else _EVERY_S,
            at=at,
            group=found,
            series=series,
            lag=lag,
            why_no_lag=why,
            health=series.health(lag, now_ms),
            kinds=_KINDS,
            newest=found.history.committed[-1].record.load_id if found.history.committed else "",
            schemas=schema_history(found.history.entries),
            compact=command(found.target, "compact"),
            to_table=address("table", at, group),
            to_rewind=lambda one: address("rewind", at, group, to=one.record.load_id if one else ""),
            listing=shown,
            verification=state,
            verdicts=(state.verdicts if state else None) or {},
            what_to_do=WHAT_TO_DO,
            here=address("group", at, group),
            to_load=lambda one: address("load", at, group, id=one.record.load_id),
        )

    @route("/loads/load")
    def load(self, request: Request, at: str, group: str, id: str) -> Response:
        entry, state = _load_of(self._places.group(at, group), id), self._verifications.state(at, group)
        keys: dict[str, Callable[[Any], Any]] = {
            "partition": lambda one: one.tp,
            "rows": lambda one: one.rows or 0,
        }
        shown = listing(request, entry.record.ranges, keys, "partition")
        return self._render(
            request,
            "load.html",
            every=0,
            entry=entry,
            kinds=_KINDS,
            listing=shown,
            verdict=(state.verdicts or {}).get(id) if state else None,
            what_to_do=WHAT_TO_DO.get(entry.state),
            to_group=address("group", at, group),
        )

    @route("/loads/table")
    def table(self, request: Request, at: str, group: str) -> Response:
        """What is in the table now."""
        found = self._places.group(at, group)
        committed = found.history.committed
        format = committed[-1].record.format if committed else found.target.format or ""
        return self._render(
            request,
            "load_table.html",
            every=0,
            at=at,
            group=group,
            format=format,
            content=self._tables.content(at, found.target),
            columns=COLUMNS,
            snippets=snippets(found.target, format),
            known={one.record.load_id for one in found.history.entries},
            to_group=address("group", at, group),
            to_load=lambda load_id: address("load", at, group, id=load_id),
        )

    @route("/loads/verify", "POST")
    def verify(self, at: str, group: str) -> Response:
        self._verifications.start(at, self._places.target(at, group))
        return RedirectResponse(address("group", at, group), 303)

    @route("/loads/stop", "POST")
    def stop(self, at: str, group: str) -> Response:
        self._verifications.stop(at, group)
        return RedirectResponse(address("group", at, group), 303)


def _is_meant(one: Series, text: str) -> bool:
    return any(text in name.lower() for name in (one.place, one.group, *one.topics))


def _load_of(group: GroupOfLoads, load_id: str) -> HistoryEntry:
    for entry in group.history.entries:
        if entry.record.load_id == load_id:
            return entry
    raise UnknownPlace(f"{group.name} has no load {load_id!r}")
