"""Asks a broker with an authorizer as a client that has no rights but those it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import TIMEOUT_S, Asking, Pick, versions
from tests.support.permission_cases import World, log_in
from tests.support.raw_requests import Requests


class BothServe(Requests):
    """Asks in the highest version that both serve, where none is given."""

    def ask(self, api: ApiKey, body: Mapping[str, Any], version: int | None = None) -> Any:
        return super().ask(api, body, versions(api)[-1] if version is None else version)


class GuardedAsking(Asking):
    """The client is User:ANONYMOUS; `world` has the super user, who gives it rights."""

    def __init__(self, bootstrap: str, login_address: str, broker_id: int, prefix: str) -> None:
        super().__init__(bootstrap, broker_id, prefix)
        self._login_address = login_address
        self.world = World(self._admin(), self.requests, broker_id=broker_id, prefix=prefix)

    def _admin(self) -> Requests:
        admin = BothServe(self._login_address, TIMEOUT_S)
        log_in(admin)
        return admin

    def close(self) -> None:
        super().close()
        self.world.admin.close()

    def as_admin(
        self, name: str, api: ApiKey, body: Mapping[str, Any], version: int | None = None, pick: Pick | None = None
    ) -> None:
        """Ask as the super user."""
        version = versions(api)[-1] if version is None else version
        try:
            answer = self.neutral(self.world.admin.ask(api, body, version))
        except ConnectionError:
            self.world.admin = self._admin()
            self.note(name, "closed", version)
        else:
            self.note(name, pick(answer) if pick else answer, version)
