"""Who may do what. Today that is one question: who may act as a broker (Kafka's ClusterAction on the cluster).

Whoever acts as a broker can move a high watermark (a Fetch with a replica id), end transactions (WriteTxnMarkers) or
ask about them (AddPartitionsToTxn from version 4). ACLs would be more such questions.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["Authorizer"]


class Authorizer:
    """Answers by the principal of a connection and the listener that it came through."""

    def __init__(self, super_users: Collection[str] = (), *, open_listener: str | None = None) -> None:
        """`super_users` are principals (`User:name`). `open_listener` is the inter-broker listener if it does not know
        who connects: then everyone there counts as a broker."""
        self._super_users = frozenset(super_users)
        self._open_listener = open_listener

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows_cluster_action(self, principal: str, listener: str) -> bool:
        """Whether the client is a super user, which brokers are, or came through the open listener."""
        return principal in self._super_users or listener == self._open_listener
