"""Records and history as JSON under /api, for which REST Proxy v3 has no shapes (v3/ has the rest).

OpenAPI describes all of it at /api/openapi.json. Errors have v3's shape: `error_code` and `message`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException

from pykafka_ui.console import Console
from pykafka_ui.records_query import AskedRecords

Document = dict[str, Any]
_MOST_RECORDS = 1_000


class Api:
    """The routes, which read what `console` has."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def router(self) -> APIRouter:
        api = APIRouter(prefix="/api")
        api.add_api_route("/topics/{name}/records", self.records, tags=["records"])
        api.add_api_route("/history/{kind}", self.history, tags=["history"])
        return api

    def records(self, asked: AskedRecords) -> Document:
        """Some records: at most 1,000, with where older and newer ones are."""
        with self._console.records(asked.at_most(_MOST_RECORDS)) as found:
            return found.document()

    def history(self, kind: str, name: str = "") -> Document:
        """The last hour: `records` or `read` per second of a topic or group, or the `lag` of a group.

        The lag is with what is unread in partitions that a member reads without a committed offset.
        What was written before the console began to look is known from the times of records.
        Without a name: of the whole cluster. A point every 30 s, or seldomer in a large cluster.
        """
        if kind not in ("records", "read", "lag"):
            raise HTTPException(404, f"there is no history of {kind!r}")
        self._console.sampler.watch(groups=kind != "records")
        found = self._console.series(kind, name)
        return {"kind": kind, "name": name, "times": [at for at, _ in found], "values": [value for _, value in found]}
