"""A bounded table of what was used lately: the state of clients, whose names the clients make up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

EXPIRES_S: Final = 3600.0
"""A client that does nothing for this time is forgotten (Kafka's INACTIVE_SENSOR_EXPIRATION_TIME_SECONDS)."""
MOST_CLIENTS: Final = 10_000
"""Of one type of quota. The state of a client takes about 2 KB. Kafka has no such bound."""


class RecentlyUsed(Generic[K, V]):
    """Makes an entry when it is first asked for. Forgets those that are unused for long, or for longest if full."""

    def __init__(self, make: Callable[[], V], most: int = MOST_CLIENTS, expires_s: float = EXPIRES_S) -> None:
        self._make = make
        self._most = most
        self._expires_s = expires_s
        self._entries: dict[K, tuple[float, V]] = {}
        """Key → (last use, entry), the least recently used first."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, now: float) -> V:
        found = self._entries.pop(key, None)
        if found is None:
            self.expire(now)
            if len(self._entries) >= self._most:
                del self._entries[next(iter(self._entries))]
        entry = self._make() if found is None else found[1]
        self._entries[key] = now, entry
        return entry

    def expire(self, now: float) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            if now - self._entries[oldest][0] < self._expires_s:
                return
            del self._entries[oldest]

    def clear(self) -> None:
        self._entries.clear()
