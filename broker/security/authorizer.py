"""Who may do what: by ACLs where an authorizer is configured, else one question only (Kafka's ClusterAction).

Whoever acts as a broker can move a high watermark (a Fetch with a replica id), end transactions (WriteTxnMarkers) or
ask about them (AddPartitionsToTxn from version 4). Without an authorizer everybody may do all else.

Decisions are kept until the ACLs change, so that 10,000 ACLs cost a request no more than one.

They are logged in the form of Kafka's authorizer, by the logger `kafka.authorizer.logger`: denials at INFO, the rest at
DEBUG. What is asked about one resource at one time, as by a request for many of its partitions, is one line with a
count: a client without rights cannot fill the log with a few bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

from broker.control_characters import escaped
from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import CLUSTER_NAME, AclOperation, AclResourceType

logger = logging.getLogger("kafka.authorizer.logger")

_MAX_DECISIONS: Final = 1 << 16
"""Clients make up names: beyond this many the decisions are made anew."""
_MAX_KEPT_NAME: Final = 255
"""Characters. Decisions about longer names are not kept: no topic has one, and many of them would fill the memory."""
MAX_LINES: Final = 1000
"""At one time; of more decisions only the number is logged."""
_MAX_NAME: Final = 200
"""Characters of a name that a client made up."""


class Requester(Protocol):
    """Who asks, from where."""

    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def listener(self) -> str: ...


class Action(Protocol):
    """What a request would do. Equal only to itself: decisions are kept by it."""

    @property
    def operation(self) -> AclOperation: ...
    @property
    def resource(self) -> AclResourceType: ...
    @property
    def request(self) -> str: ...


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


class _Decision(NamedTuple):
    level: int
    principal: str
    host: str
    action: Action
    name: str
    allowed: bool


class DecisionLog:
    """Collects decisions, and writes them when `later` calls back."""

    def __init__(self, later: Callable[[Callable[[], None]], object] = lambda write: write()) -> None:
        """`later` calls its argument once, soon, as an event loop's `call_soon`; by default at once."""
        self._later = later
        self._counts: dict[_Decision, int] = {}
        self._more = 0

    def note(self, principal: str, host: str, action: Action, name: str, *, allowed: bool, asked: bool) -> None:
        """`asked`: whether the client asked for it. If not, a denial is logged at DEBUG."""
        level = logging.INFO if asked and not allowed else logging.DEBUG
        if not logger.isEnabledFor(level):
            return
        decision = _Decision(level, principal, host, action, name, allowed)
        is_first = not self._counts
        if decision in self._counts or len(self._counts) < MAX_LINES:
            self._counts[decision] = self._counts.get(decision, 0) + 1
        else:
            self._more += 1
        if is_first:
            self._later(self._write)

    def _write(self) -> None:
        counts, self._counts = self._counts, {}
        more, self._more = self._more, 0
        for (level, principal, host, action, name, allowed), count in counts.items():
            logger.log(
                level,
                "Principal = %s is %s Operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s "
                "with resourceRefCount = %d",
                _shown(principal),
                "Allowed" if allowed else "Denied",
                action.operation.title,
                host,
                action.resource.title,
                _shown(name),
                action.request,
                count,
            )
        if more:
            logger.info("%d more decisions at the same time are not shown", more)


def _shown(name: str) -> str:
    """One decision is one line, whatever the formatter."""
    return escaped(name)[:_MAX_NAME]
