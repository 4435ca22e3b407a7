"""The page of Spark's queries: those that report themselves, and those that are known by their offsets."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pykafka_ui.pages.group_pages import by_lag
from pykafka_ui.pages.page_set import PageSet, route
from pykafka_ui.seen.group_rows import GroupRow
from pykafka_ui.seen.lag_trend import RECENT_POINTS, per_second

_MOST = 100


class StreamsPage(PageSet):
    @route("/streams")
    def streams(self, request: Request) -> Response:
        found = self._console.sampler.watch(groups=True)
        sampler = self._console.sampler
        streams = [one for one in found.groups.values() if one.kind in ("stream", "exactly-once write")]
        streams.sort(key=lambda one: (-by_lag(one), one.id))
        rows = [
            (
                GroupRow(one, sampler.history("lag").values("lag", one.id)),
                per_second(sampler.history("read").values("read", one.id, RECENT_POINTS)),
            )
            for one in streams[:_MOST]
        ]
        return self._render(
            request,
            "streams.html",
            reports=self._console.streams.seen(),
            rows=rows,
            more=len(streams) - len(rows),
        )
