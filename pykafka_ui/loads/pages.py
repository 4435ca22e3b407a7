"""The pages of loads: all series, the loads of one, a load, and the table; what verifies them, and what sets a series
back to an earlier load: what that would remove and, with --allow-changes, doing it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.errors import ConfigError, PykafkaError
from pykafka_ui.console import Console
from pykafka_ui.loads.places import GroupOfLoads, UnknownPlace, read
from pykafka_ui.loads.queries import command, snippets
from pykafka_ui.loads.series_health import STATES, WORDS, Series, address, judged
from pykafka_ui.loads.tables import COLUMNS, Tables, schema_history
from pykafka_ui.pages.page_set import Key, PageSet, listing, route
from pykafka_ui.render import Renderer
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import Target
from spark_connector.loads.rewind import fates
from spark_connector.maintenance import preview_rewind, rewind

_EVERY_S, _BUSY_S = 30, 2
"""Reading a history means reading files; while something is going on, it is worth it more often."""
_KINDS = {state.value: STATES[word] for state, word in WORDS.items()}


class LoadPages(PageSet):
    def __init__(self, console: Console, render: Renderer, *, allow_changes: bool) -> None:
        super().__init__(console, render)
        loads = console.loads
        assert loads is not None
        self._survey = loads.survey
        self._places = loads.places
        self._verifications = loads.verifications
        self._tables = Tables()
        if allow_changes:
            self.router.add_api_route("/loads/rewind", self.rewind, methods=["POST"])

    @route("/loads")
    def series(self, request: Request, q: str = "", state: str = "") -> Response:
        """All series of all places. Nothing is read for it that the last look has not read."""
        seen, looked, order = self._console.sampler.watch(), self._survey.seen(), list(STATES)
        found = judged(looked.series, seen, self._survey.now_ms())
        if q:
            found = [one for one in found if _is_meant(one[0], q.lower())]
        counts = Counter(health.word for _, _, health in found)
        keys: dict[str, Key] = {
            "series": lambda one: (one[0].group, one[0].place),
            "state": lambda one: (order.index(one[2].word), one[0].group, one[0].place),
            "lag": lambda one: one[1],
            "newest": lambda one: one[0].newest_ms,
            "day": lambda one: one[0].a_day,
            "bad": lambda one: one[0].bad,
            "files": lambda one: one[0].files,
        }
        rows = [one for one in found if one[2].word == state] if state else found
        shown = listing(request, rows, keys, "state")
        every = _EVERY_S if looked.is_whole else _BUSY_S
        about: dict[str, Any] = {"word": state, "states": STATES, "counts": counts, "total": len(found)}
        return self._render(request, "loads.html", every=every, looked=looked, listing=shown, **about)

    @route("/loads/group")
    def group(self, request: Request, at: str, group: str) -> Response:
        found, state = self._places.group(at, group), self._verifications.state(at, group)
        keys = {
            "load": "record.id.sequence",
            "time": "record.created_ms",
            "state": "state.value",
            "rows": "record.rows",
            "bytes": "bytes",
        }
        shown = listing(request, found.history.entries, keys, "-load")
        seen, now_ms = self._console.sampler.watch(), self._survey.now_ms()
        series = Series.of(at, found, now_ms)
        lag, why = series.lag(seen)
        is_busy = (state is not None and state.is_running) or any(one.state.is_staged for one in found.to_look_at)
        return self._of_series(
            request,
            "load_group.html",
            at,
            group,
            every=_BUSY_S if is_busy else _EVERY_S,
            loads=found,
            series=series,
            lag=lag,
            why_no_lag=why,
            health=series.health(lag, now_ms),
            newest=found.history.committed[-1].record.load_id if found.history.committed else "",
            schemas=schema_history(found.history.entries),
            compact=command(found.target, "compact"),
            listing=shown,
            verification=state,
            verdicts=(state.verdicts if state else None) or {},
        )

    @route("/loads/load")
    def load(self, request: Request, at: str, group: str, id: str) -> Response:
        entry, state = _load_of(self._places.group(at, group), id), self._verifications.state(at, group)
        shown = listing(request, entry.record.ranges, {"partition": "tp", "rows": "rows"}, "partition")
        return self._of_series(
            request,
            "load.html",
            at,
            group,
            entry=entry,
            listing=shown,
            verdict=(state.verdicts or {}).get(id) if state else None,
        )

    @route("/loads/table")
    def table(self, request: Request, at: str, group: str) -> Response:
        """What is in the table now."""
        found = self._places.group(at, group)
        committed = found.history.committed
        format = committed[-1].record.format if committed else found.target.format or ""
        return self._of_series(
            request,
            "load_table.html",
            at,
            group,
            format=format,
            content=self._tables.content(at, found.target),
            columns=COLUMNS,
            snippets=snippets(found.target, format),
            known={one.record.load_id for one in found.history.entries},
        )

    @route("/loads/verify", "POST")
    def verify(self, at: str, group: str) -> Response:
        self._verifications.start(at, self._places.target(at, group))
        return RedirectResponse(address("group", at, group), 303)

    @route("/loads/stop", "POST")
    def stop(self, at: str, group: str) -> Response:
        self._verifications.stop(at, group)
        return RedirectResponse(address("group", at, group), 303)

    @route("/loads/rewind")
    def rewind_preview(self, request: Request, at: str, group: str, to: str = "") -> Response:
        """`to`: a load, or "" for the time before the first one."""
        target, found, problem = self._places.target(at, group), None, None
        try:
            found = self._tables.within(lambda: _undone(target, to))
        except PykafkaError as error:
            problem = error
        except TimeoutError:
            problem = ConfigError("the place does not answer in time: nobody knows what a rewind would remove")
        more = ["--to-load", to] if to else ["--all"]
        return self._of_series(
            request,
            "load_rewind.html",
            at,
            group,
            problem=problem,
            found=found,
            back_to=to,
            command=command(target, "rewind", *more, *(["--delete"] if target.format == "sql" else [])),
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

    def _of_series(self, request: Request, template: str, at: str, group: str, **values: Any) -> Response:
        """A page of a series; `to` is the address of another one."""

        def to(page: str, **more: str) -> str:
            return address(page, at, group, **more)

        about: dict[str, Any] = {
            "at": at,
            "group": group,
            "to": to,
            "kinds": _KINDS,
            "what_to_do": WHAT_TO_DO,
            "every": 0,
        }
        return self._render(request, template, **about | values)


def _is_meant(one: Series, text: str) -> bool:
    return any(text in name.lower() for name in (one.place, one.group, *one.topics))


def _load_of(group: GroupOfLoads, load_id: str) -> HistoryEntry:
    for entry in group.history.entries:
        if entry.record.load_id == load_id:
            return entry
    raise UnknownPlace(f"{group.name} has no load {load_id!r}")


def _undone(target: Target, to: str) -> tuple[LoadRecord, list[tuple[LoadRecord, str]]]:
    """The plan, and the loads that it takes back with what becomes of each, the newest first."""
    plan = preview_rewind(target, to or None, delete=target.format == "sql")
    known = {one.record.load_id: one.record for one in read(target).history.entries}
    assert plan.rewind is not None
    told = zip(reversed(plan.rewind.undone), fates(plan), strict=True)
    return plan, [(known[one.load_id], fate) for one, fate in told if one.load_id in known]
