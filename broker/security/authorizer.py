"""Who may do what: by ACLs where an authorizer is configured, else one question only (Kafka's ClusterAction).

Whoever acts as a broker can move a high watermark (a Fetch with a replica id), end transactions (WriteTxnMarkers) or
ask about them (AddPartitionsToTxn from version 4). Without an authorizer everybody may do all else.

Decisions are kept until the ACLs change, so that 10,000 ACLs cost a request no more than one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import CLUSTER_NAME, AclOperation
from broker.security.decision_log import Action, DecisionLog

_MAX_DECISIONS: Final = 1 << 16
"""Clients make up names: beyond this many the decisions are made anew."""
_MAX_KEPT_NAME: Final = 255
"""Characters. Decisions about longer names are not kept: no topic has one, and many of them would fill the memory."""


class Requester(Protocol):
    """Who asks, from where."""

    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def listener(self) -> str: ...


class Authorizer:
    """Answers by the principal and the address of a connection, and the listener that it came through."""

    def __init__(
        self,
        super_users: Collection[str] = (),
        *,
        open_listener: str | None = None,
        acls: AclSnapshot | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        """`super_users` are principals (`User:name`). `acls`: None without an authorizer; then `open_listener` is the
        inter-broker listener if it does not know who connects, and everyone there counts as a broker."""
        self._super_users = frozenset(super_users)
        self._open_listener = open_listener
        self._acls = acls
        self._log = log or DecisionLog()
        self._decisions: dict[tuple[str, str, Action, str | None], bool] = {}
        """By principal, host, action and resource; None for any resource."""
        self.allowed = 0
        self.denied = 0
        """Decisions since the start, also those that were kept."""

    @property
    def acls(self) -> AclSnapshot | None:
        """The ACLs that decide; None without an authorizer."""
        return self._acls

    def use(self, acls: AclSnapshot) -> None:
        """Decide by these from now on."""
        self._acls = acls
        self._decisions = {}

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def acts_as_super_user(self, client: Requester) -> bool:
        """Whether the client is a super user, or came through the open listener."""
        return client.principal in self._super_users or client.listener == self._open_listener

    def allows(
        self, client: Requester, action: Action, name: str = CLUSTER_NAME, *, asked: bool = True, keep: bool = True
    ) -> bool:
        """Whether the client may do this to the resource.

        `asked`: whether it asked for it. If not, as where a list is cut to what one may see, a denial is not logged.
        `keep`: False for a decision that must not take the place of those that each Produce and Fetch needs.
        """
        acls = self._acls
        if acls is None:
            return action.operation is not AclOperation.CLUSTER_ACTION or self.acts_as_super_user(client)
        key = (client.principal, client.host, action, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = client.principal in self._super_users or acls.allows(
                client.principal, client.host, action.operation, action.resource, name
            )
            if keep and len(name) <= _MAX_KEPT_NAME:
                self._keep(key, decision)
        self._note(client, action, name, decision, asked)
        return decision

    def allows_any(self, client: Requester, action: Action, *, asked: bool = True) -> bool:
        """Whether there may be a resource of the action's type to which the client may do this."""
        acls = self._acls
        if acls is None or client.principal in self._super_users:
            return True
        key = (client.principal, client.host, action, None)
        decision = self._decisions.get(key)
        if decision is None:
            decision = acls.allows_any(client.principal, client.host, action.operation, action.resource)
            self._keep(key, decision)
        self._note(client, action, "NONE", decision, asked)
        return decision

    def _keep(self, key: tuple[str, str, Action, str | None], decision: bool) -> None:
        if len(self._decisions) >= _MAX_DECISIONS:
            self._decisions.clear()
        self._decisions[key] = decision

    def _note(self, client: Requester, action: Action, name: str, decision: bool, asked: bool) -> None:
        if decision:
            self.allowed += 1
        else:
            self.denied += 1
        self._log.note(client.principal, client.host, action, name, allowed=decision, asked=asked)
