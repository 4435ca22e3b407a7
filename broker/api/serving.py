"""`@serves` says beside a function which API it serves, and in which versions. Nothing else has to be told.

table.py gathers these declarations. Rights are none of them: clients look them up, too (protocol/permissions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from broker.net.router import Handler
from broker.protocol.api_keys import ApiKey

F = TypeVar("F", bound=Callable[..., Any])


class Served(NamedTuple):
    """One API: its lowest and highest version, and its handler, to be called with (context, request, client)."""

    api: ApiKey
    low: int
    high: int
    handler: Callable[..., Any]
    changes_metadata: bool = False
    """A client that disconnects must not end it between the write to ZooKeeper and the notification of the brokers."""
    advertised_low: int | None = None
    """The lowest version that ApiVersions tells, if it is another one."""
    refuse: Handler | None = None
    """What answers the versions below the lowest one; without it they end the connection."""


_served: dict[ApiKey, Served] = {}
SERVED: Final[Mapping[ApiKey, Served]] = MappingProxyType(_served)
"""What has been declared. It is whole once table.py is imported."""


def serves(
    api: ApiKey,
    low: int,
    high: int,
    *,
    changes_metadata: bool = False,
    advertised_low: int | None = None,
    refuse: Handler | None = None,
) -> Callable[[F], F]:
    """Declares that a function serves `api` in the versions from `low` to `high`; the rest is as in `Served`.

    One function may serve several APIs. Raises ValueError for an API that another one serves.
    """

    def declare(handler: F) -> F:
        if api in _served:
            other = _served[api].handler
            raise ValueError(f"{api.title} is served twice: by {other.__module__}.{other.__qualname__} already")
        _served[api] = Served(api, low, high, handler, changes_metadata, advertised_low, refuse)
        return handler

    return declare
