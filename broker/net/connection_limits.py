"""How many connections there may be, in all and from one address. Idea: Kafka's `ConnectionQuotas`.

Asked by the listeners for each new connection. Unlike Kafka, which lets a connection above `max.connections` wait
unaccepted, one too many is closed at once: its client hears of it, and tries again or elsewhere.
"""

from __future__ import annotations

import collections
import socket
from collections.abc import Mapping, Sequence

from broker.errors import ConfigError

__all__ = ["ConnectionLimits", "parse_overrides"]


class ConnectionLimits:
    """Counts connections by address."""

    def __init__(self) -> None:
        self._per_ip: collections.Counter[str] = collections.Counter()
        self._total = 0

    def exceeded(self, host: str, total: int, per_ip: int, overrides: Mapping[str, int]) -> str | None:
        """The setting that another connection of `host` would go beyond."""
        if self._total >= total:
            return "max.connections"
        if host in overrides:
            return "max.connections.per.ip.overrides" if self._per_ip[host] >= overrides[host] else None
        return "max.connections.per.ip" if self._per_ip[host] >= per_ip else None

    def add(self, host: str) -> None:
        self._total += 1
        self._per_ip[host] += 1

    def remove(self, host: str) -> None:
        self._total -= 1
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]


def parse_overrides(entries: Sequence[str]) -> dict[str, int]:
    """`max.connections.per.ip.overrides` as address → limit; names are looked up, now and once. Raises ConfigError."""
    limits: dict[str, int] = {}
    for entry in entries:
        host, colon, count = entry.rpartition(":")
        if not colon or not host or not count.isdigit():
            raise ConfigError(f"max.connections.per.ip.overrides={entry}: expected address:count, such as 10.0.0.7:100")
        try:
            found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"max.connections.per.ip.overrides={entry}: {error}") from error
        limits.update((str(address[0]), int(count)) for *_, address in found)
    return limits
