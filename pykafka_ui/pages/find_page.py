"""The finder: topics, groups, brokers and loads by a part of their names, from every page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pykafka_ui.pages.page_set import PageSet, route
from pykafka_ui.render import segment

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


class FindPage(PageSet):
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
