"""Requests to the coordinator of a consumer group or transactional id, which may move to another broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind, Node
from broker.client.denials import refusal
from broker.errors import ConnectionFailed, ErrorCode, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

Codes = Callable[[Any], Iterable[tuple[ErrorCode, str] | tuple[ErrorCode, str, str]]]
"""The codes of a response, each with the action that it is about, and the topic if it is about one."""

_NAMED_BY: Final = {
    ErrorCode.group_authorization_failed: "group_id",
    ErrorCode.transactional_id_authorization_failed: "transactional_id",
}
"""The field of a request that says what a code is about."""

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
_MOVED: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)


def topic_of(code: ErrorCode, tp: TopicPartition) -> str:
    """The topic if the code is about a right on it, and not about one on the group or transactional id."""
    return tp.topic if code is ErrorCode.topic_authorization_failed else ""


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

        A text as `codes` names the action of a response with a single code. Raises BrokerError for the first error.
        """

        def attempt() -> Any:
            response = self.request(api, body)
            for row in [(response.error_code, codes)] if isinstance(codes, str) else codes(response):
                self.check(api, *row, body=body)
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

    def check(
        self,
        api: ApiKey,
        code: ErrorCode,
        what: str,
        topic: str = "",
        *,
        body: Mapping[str, Any] = _EMPTY,
        said: str = "",
    ) -> None:
        """Raise BrokerError for an error code; `what` names the action. A coordinator that moved is found again.

        `topic`: what the code is about, if it is one. `body`: of the request, where that names more than `self.name`.
        `said`: the broker's own message.
        """
        if code is ErrorCode.none:
            return
        if code in _MOVED:
            self.forget()
        named = {**self._naming, **body}
        name = topic or str(named.get(_NAMED_BY.get(code, ""), ""))
        about = f"{what} of {self.kind} {self.name!r}{said and f': {said}'}"
        raise refusal(self.cluster.settings, api, code, about, name)

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
