"""The pages of loads: all series, the loads of one, a load, and the table; what verifies them, and what sets a series
back to an earlier load: what that would remove and, with --allow-changes, doing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.errors import ConfigError, PykafkaError
from pykafka_ui.console import Console
from pykafka_ui.loads.places import GroupOfLoads, UnknownPlace, read
from pykafka_ui.loads.queries import command, snippets
from pykafka_ui.loads.series_health import STATES, WORDS, Health, Series, address, judged
from pykafka_ui.loads.tables import COLUMNS, Tables, schema_history
from pykafka_ui.pages.page_set import PageSet, listing, route
from pykafka_ui.render import Renderer
from pykafka_ui.status import status_of
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import Target
from spark_connector.loads.rewind import fates
from spark_connector.maintenance import preview_rewind, rewind

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


class RewindPages(PageSet):
    def __init__(self, console: Console, render: Renderer, tables: Tables, *, allow_changes: bool) -> None:
        super().__init__(console, render)
        assert console.loads is not None
        self._places, self._survey = console.loads.places, console.loads.survey
        self._tables = tables
        if allow_changes:
            self.router.add_api_route("/loads/rewind", self.rewind, methods=["POST"])

    @route("/loads/rewind")
    def preview(self, request: Request, at: str, group: str, to: str = "") -> Response:
        """`to`: a load, or "" for the time before the first one."""
        target, found, problem = self._places.target(at, group), None, None
        try:
            found = self._tables.within(lambda: _undone(target, to))
        except PykafkaError as error:
            problem = error
        except TimeoutError:
            problem = ConfigError("the place does not answer in time: nobody knows what a rewind would remove")
        more = ["--to-load", to] if to else ["--all"]
        return self._render(
            request,
            "load_rewind.html",
            status=status_of(problem) if problem else 200,
            problem=str(problem or ""),
            every=0,
            found=found,
            group=group,
            to=to,
            command=command(target, "rewind", *more, *(["--delete"] if target.format == "sql" else [])),
            to_group=address("group", at, group),
            action=lambda newest: address("rewind", at, group, to=to, newest=newest),
        )

    def rewind(self, at: str, group: str, to: str = "", newest: str = "") -> Response:
        """Only while `newest` is still the newest load, as the preview had it."""
        target = self._places.target(at, group)
        self._places.forget()
        standing = self._places.group(at, group).history.committed
        if (standing[-1].record.load_id if standing else "") == to:
            return RedirectResponse(address("group", at, group), 303)  # a double click sends it twice

        def is_as_seen(plan: LoadRecord) -> bool:
            return plan.rewind is not None and plan.rewind.undone[-1].load_id == newest

        try:
            done = rewind(target, to or None, delete=target.format == "sql", confirm=is_as_seen)
        finally:
            self._places.forget()
            self._survey.forget()
        if done is None:
            raise ConfigError("nothing was changed: other loads came meanwhile. Look again at what would be removed")
        return RedirectResponse(address("group", at, group), 303)


def _undone(target: Target, to: str) -> tuple[LoadRecord, list[tuple[LoadRecord, str]]]:
    """The plan, and the loads that it takes back with what becomes of each, the newest first."""
    plan = preview_rewind(target, to or None, delete=target.format == "sql")
    known = {one.record.load_id: one.record for one in read(target).history.entries}
    assert plan.rewind is not None
    told = zip(reversed(plan.rewind.undone), fates(plan), strict=True)
    return plan, [(known[one.load_id], fate) for one, fate in told if one.load_id in known]
