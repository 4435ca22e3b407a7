"""Logs decisions in the form of Kafka's authorizer, by the logger `kafka.authorizer.logger`.

Denials are logged at INFO, the rest at DEBUG. What is asked about one resource at one time, as by a request for many of
its partitions, is one line with a count: a client without rights cannot fill the log with a few bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from broker.control_characters import escaped
from broker.security.acl_types import AclOperation, AclResourceType

logger = logging.getLogger("kafka.authorizer.logger")

MAX_LINES: Final = 1000
"""At one time; of more decisions only the number is logged."""
_MAX_NAME: Final = 200
"""Characters of a name that a client made up."""


class Action(Protocol):
    """What a request would do. Equal only to itself: decisions are kept by it."""

    @property
    def operation(self) -> AclOperation: ...
    @property
    def resource(self) -> AclResourceType: ...
    @property
    def request(self) -> str: ...


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
