"""Setting a series back to an earlier load: what that would remove, and, with --allow-changes, doing it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.errors import ConfigError, PykafkaError
from pykafka_ui.console import Console
from pykafka_ui.loads.places import read
from pykafka_ui.loads.queries import command
from pykafka_ui.loads.series_health import address
from pykafka_ui.loads.tables import Tables
from pykafka_ui.pages.page_set import PageSet, route
from pykafka_ui.render import Renderer
from pykafka_ui.status import status_of
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import Target
from spark_connector.loads.rewind import fates
from spark_connector.maintenance import preview_rewind, rewind


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
