"""Requests to the coordinator of a consumer group or transactional id, which may move to another broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind, Node
from broker.errors import BrokerError, ConnectionFailed, ErrorCode, RequestTimedOut
from broker.protocol.api_keys import ApiKey

__all__ = ["Codes", "Coordinator"]

Codes = Callable[[Any], Iterable[tuple[ErrorCode, str]]]

_MOVED: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)


class Coordinator:
    """The coordinator of `name`, a group or a transactional id. Thread-safe.

    It uses the cluster's shared connection. With `dedicated=True` it uses one of its own, for requests that wait at the
    broker, such as JoinGroup; `close` closes it.
    """

    def __init__(
        self, cluster: Cluster, name: str, kind: CoordinatorKind = CoordinatorKind.GROUP, *, dedicated: bool = False
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.kind = kind
        self._naming = {"group_id" if kind is CoordinatorKind.GROUP else "transactional_id": name}
        self._dedicated = dedicated
        self._lock = threading.Lock()
        self._connection: BrokerConnection | None = None
        self._node: Node | None = None

    def request(self, api: ApiKey, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Send once and wait; call it inside `cluster.retrying`. The name is added to the body."""
        try:
            return self._connect().request(api, {**self._naming, **body}, timeout_s=timeout_s)
        except (ConnectionFailed, RequestTimedOut):
            self.forget()
            raise

    def ask(self, api: ApiKey, body: Mapping[str, Any], codes: Codes | str, *, timeout_s: float | None = None) -> Any:
        """The response, without an error. Retries retriable errors for `timeout_s` (`default.api.timeout.ms`).

        `codes(response)`: its error codes, each with the action it is about. A text names the action of a response
        with a single code. Raises BrokerError for the first error.
        """

        def attempt() -> Any:
            response = self.request(api, body)
            for code, what in [(response.error_code, codes)] if isinstance(codes, str) else codes(response):
                self.check(code, what)
            return response

        return self.cluster.retrying(attempt, timeout_s=timeout_s)

    def send(self, api: ApiKey, body: Mapping[str, Any]) -> BrokerConnection:
        """Send without waiting, on a dedicated connection. Returns the connection to receive the response from."""
        try:
            connection = self._connect()
            connection.send(api, {**self._naming, **body})
        except (ConnectionFailed, RequestTimedOut):
            self.forget()
            raise
        return connection

    def forget(self) -> None:
        """Find the coordinator again next time."""
        self.cluster.forget_coordinator(self.name, self.kind)

    def check(self, code: ErrorCode, what: str) -> None:
        """Raise BrokerError for an error code; `what` names the action. A coordinator that moved is found again."""
        if code is ErrorCode.none:
            return
        if code in _MOVED:
            self.forget()
        raise BrokerError(code, f"{what} of {self.kind} {self.name!r}")

    def close(self) -> None:
        """Close the dedicated connection; a request that waits on it fails. May be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> BrokerConnection:
        node = self.cluster.coordinator(self.name, self.kind)
        if not self._dedicated:
            return self.cluster.connection(node)
        with self._lock:
            connection = self._connection
            if connection is None or not connection.usable or node != self._node:
                self.close()
                connection = self._connection = self.cluster.open_connection(node)
                self._node = node
            return connection
