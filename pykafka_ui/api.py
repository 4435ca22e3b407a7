"""Records, history and loads as JSON under /api, for which REST Proxy v3 has no shapes (v3/ has the rest).

OpenAPI describes all of it at /api/openapi.json. Errors have v3's shape: `error_code` and `message`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from pykafka_ui.console import Console, Loads
from pykafka_ui.records.records_query import AskedRecords
from pykafka_ui.seen.streams import StreamReport

Document = dict[str, Any]
At = Annotated[str, Query(description="URL of a place, as `--loads` has it, without a password")]
_MOST_RECORDS = 1_000


def records_api(console: Console) -> APIRouter:
    api = APIRouter(prefix="/api")

    @api.get("/topics/{name}/records", tags=["records"])
    def records(asked: AskedRecords) -> Document:
        """Some records: at most 1,000, with where older and newer ones are."""
        with console.records(asked.at_most(_MOST_RECORDS)) as found:
            return found.document()

    @api.get("/history/{kind}", tags=["history"])
    def history(kind: str, name: str = "") -> Document:
        """The last hour: `records` or `read` per second of a topic or group, or the `lag` of a group.

        The lag is with what is unread in partitions that a member reads without a committed offset.
        What was written before the console began to look is known from the times of records.
        Without a name: of the whole cluster. A point every 30 s, or seldomer in a large cluster.
        """
        if kind not in ("records", "read", "lag"):
            raise HTTPException(404, f"there is no history of {kind!r}")
        console.sampler.watch(groups=kind != "records")
        found = console.series(kind, name)
        return {"kind": kind, "name": name, "times": [at for at, _ in found], "values": [value for _, value in found]}

    @api.post("/streams", tags=["streams"], status_code=204)
    def stream(report: StreamReport) -> None:
        """Tell how a query of Spark goes, as `LagListener(ConsoleReports(…))` does after each batch. Kept in memory."""
        console.streams.reported(report)

    return api


def loads_api(loads: Loads) -> APIRouter:
    api = APIRouter(prefix="/api/loads", tags=["loads"])

    @api.get("")
    def places() -> Document:
        """Each place with the groups that load there, and the loads that are under way, hidden or killed."""
        found = loads.places.content()
        rows = [{"url": one.url, "error": one.error, "groups": [g.to_json() for g in one.groups]} for one in found]
        return {"places": rows}

    @api.get("/history")
    def history(at: At, group: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Document:
        """The newest loads of a group."""
        known = loads.places.group(at, group).history
        rows = [entry.to_json() for entry in known.entries[-limit:]]
        return {"url": at, "group": group, "loads": rows, "forgotten": known.forgotten}

    @api.get("/verification")
    def verification(at: At, group: str) -> Document:
        """The newest verification of a group since the start."""
        state = loads.verifications.state(at, group)
        if state is None:
            raise HTTPException(404, "it was not verified since the start")
        return state.to_json()

    @api.post("/verification", status_code=202)
    def verify(at: At, group: str) -> Document:
        """Begin to verify the loads of a group. It changes nothing. One at a time."""
        loads.verifications.start(at, loads.places.target(at, group))
        return verification(at, group)

    return api
