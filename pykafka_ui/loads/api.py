"""Places, histories and verifications of loads, as JSON under /api/loads."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from pykafka_ui.console import Loads

Document = dict[str, Any]
At = Annotated[str, Query(description="URL of a place, as `--loads` has it, without a password")]


class LoadApi:
    """The routes, which read what `loads` has."""

    def __init__(self, loads: Loads) -> None:
        self._places = loads.places
        self._verifications = loads.verifications

    def router(self) -> APIRouter:
        api = APIRouter(prefix="/api/loads", tags=["loads"])
        api.add_api_route("", self.places)
        api.add_api_route("/history", self.history)
        api.add_api_route("/verification", self.verification)
        api.add_api_route("/verification", self.verify, methods=["POST"], status_code=202)
        return api

    def places(self) -> Document:
        """Each place with the groups that load there, and the loads that are under way, hidden or killed."""
        found = self._places.content()
        rows = [{"url": one.url, "error": one.error, "groups": [g.to_json() for g in one.groups]} for one in found]
        return {"places": rows}

    def history(self, at: At, group: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Document:
        """The newest loads of a group."""
        known = self._places.group(at, group).history
        rows = [entry.to_json() for entry in known.entries[-limit:]]
        return {"url": at, "group": group, "loads": rows, "forgotten": known.forgotten}

    def verification(self, at: At, group: str) -> Document:
        """The newest verification of a group since the start."""
        state = self._verifications.state(at, group)
        if state is None:
            raise HTTPException(404, "it was not verified since the start")
        return state.to_json()

    def verify(self, at: At, group: str) -> Document:
        """Begin to verify the loads of a group. It changes nothing. One at a time."""
        self._verifications.start(at, self._places.target(at, group))
        return self.verification(at, group)
