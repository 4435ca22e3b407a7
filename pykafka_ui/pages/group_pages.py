"""The pages of consumer groups, share groups and Spark's queries, which are known by their offsets or their reports."""

from __future__ import annotations

import dataclasses

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pykafka_ui.pages.page_set import ROWS, PageSet, listing, route
from pykafka_ui.seen.group_rows import GroupRow, choices, chosen, partition_rows, readers, state_of
from pykafka_ui.seen.history import RECENT_POINTS, per_second


class GroupPages(PageSet):
    @route("/groups")
    def groups(self, request: Request, q: str = "", state: str = "", *, own: bool = False) -> Response:
        """`state`: a filter or a state of Kafka's. Loads' and sinks' own groups are folded away unless `own`, or unless
        something is looked for."""
        found = self._console.sampler.watch(groups=True)
        history = self._console.sampler.history("lag")
        rows = [GroupRow(one, history.values("lag", name, RECENT_POINTS)) for name, one in sorted(found.groups.items())]
        matching = [row for row in rows if q.lower() in row.group.id.lower()]
        folds = not (own or q or state)
        shown = [row for row in chosen(matching, state) if not (folds and row.is_folded)]
        cut = listing(request, shown, _KEYS, "-lag")
        drawn = [GroupRow(row.group, history.values("lag", row.group.id)) for row in cut.rows]
        return self._render(
            request,
            "groups.html",
            listing=dataclasses.replace(cut, rows=drawn),
            choices=choices(matching, state),
            chosen=state,
            all=len([row for row in matching if own or q or not row.is_folded]),
            folded=len(matching) - len(shown) if folds else 0,
        )

    @route("/groups/{name:path}")
    def group(self, request: Request, name: str) -> Response:
        sampler = self._console.sampler
        sampler.looked_at(name)
        found = sampler.watch(groups=True)
        if name not in found.groups:
            raise HTTPException(404 if found.at_ms else 503, f"There is no group {name!r}.")
        one, about = found.groups[name], self._console.known_group(name)
        rows = partition_rows(one, about, found, sampler.of_partition)
        read = per_second(sampler.history("read").values("read", name, RECENT_POINTS))
        rates = [sampler.last_rate("records", topic) for topic in one.topics]
        written = None if None in rates or not rates else sum(filter(None, rates))
        return self._render(
            request,
            "group.html",
            group=one,
            row=GroupRow(one, sampler.history("lag").values("lag", name)),
            state_words=state_of(one, about.state if about else one.state),
            about=about,
            listing=listing(request, rows, {"partition": "tp", "lag": "behind", "read": "read"}, "-lag"),
            readers=readers(about, rows) if about else [],
            settings=self._console.group_settings(name) if one.is_share else [],
            read=read,
            written=written,
            caught_up_s=_caught_up_s(one.behind.total or 0, read or 0, written or 0),
        )

    @route("/streams")
    def streams(self, request: Request) -> Response:
        found = self._console.sampler.watch(groups=True)
        sampler = self._console.sampler
        streams = [one for one in found.groups.values() if one.kind in ("stream", "exactly-once write")]
        streams.sort(key=lambda one: (one.behind.total is None, -(one.behind.total or 0), one.id))
        rows = [
            (
                GroupRow(one, sampler.history("lag").values("lag", one.id)),
                per_second(sampler.history("read").values("read", one.id, RECENT_POINTS)),
            )
            for one in streams[:ROWS]
        ]
        return self._render(
            request,
            "streams.html",
            reports=self._console.streams.seen(),
            rows=rows,
            more=len(streams) - len(rows),
        )


_KEYS = {
    "name": "group.id",
    "state": "group.state",
    "kind": "badges",
    "members": "group.members",
    "lag": "group.behind.total",
}


def _caught_up_s(behind: int, read: float, written: float) -> float | None:
    """When nothing will be unread if readers and writers go on as they do; None if never, or if nothing is."""
    return behind / (read - written) if behind and read > written else None
