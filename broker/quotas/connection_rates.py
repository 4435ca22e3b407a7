"""How fast connections may be made: to the broker, to one listener, from one address (KIP-612). Pure.

Above the rate of the broker or of a listener, the listener waits before it accepts more. A connection from an address
above its rate is closed after the throttle time, and counts for nobody. No wait is longer than one sample. Idea:
Kafka's `ConnectionQuotas`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from broker.quotas.rate import Rate
from broker.quotas.recently_used import RecentlyUsed

NO_LIMIT: Final = 2**31 - 1


class ConnectionRates:
    """Belongs to the event loop. Times are seconds of a monotonic clock, limits connections per second."""

    def __init__(self, samples: int = 11, window_s: float = 1.0, *, protected: str | None = None) -> None:
        """`protected` is the listener that the broker's limit does not apply to: the one between brokers, if there are
        others."""
        self._longest_s = window_s
        self._protected = protected
        self._make = functools.partial(Rate, samples, window_s)
        self._broker = self._make()
        self._broker_limit: float = NO_LIMIT
        self._listeners: dict[str, Rate] = {}
        self._listener_limits: Mapping[str, float] = {}
        self._ips: RecentlyUsed[str, Rate] = RecentlyUsed(self._make)
        self._ip_limits: Mapping[str, float] = {}
        self._default_ip_limit: float = NO_LIMIT

    def configure(self, broker: float, listeners: Mapping[str, float]) -> None:
        """Set the limits of the broker and of listeners by name."""
        self._broker_limit = broker
        self._listener_limits = listeners

    def update_ips(self, limits: Mapping[str, float], default: float = NO_LIMIT) -> None:
        """Set the limits of addresses, and of each one that has none."""
        self._ip_limits = limits
        self._default_ip_limit = default
        if not limits and default == NO_LIMIT:
            self._ips.clear()

    def accepted(self, listener: str, now: float) -> float:
        """Count a connection; returns how long the listener must wait before it serves it."""
        delay_s = 0.0
        if listener != self._protected and self._broker_limit != NO_LIMIT:
            delay_s = self._record(self._broker, self._broker_limit, now)
        limit = self._listener_limits.get(listener, NO_LIMIT)
        if limit != NO_LIMIT:
            delay_s = max(delay_s, self._record(self._listeners.setdefault(listener, self._make()), limit, now))
        return delay_s

    def accepted_from(self, listener: str, ip: str, now: float) -> float:
        """Count the connection for its address; returns after what time it must be closed, 0 to serve it."""
        limit = self._ip_limits.get(ip, self._default_ip_limit)
        if limit == NO_LIMIT:
            return 0.0
        rate = self._ips.get(ip, now)
        delay_s = self._record(rate, limit, now)
        if delay_s:
            rate.record(-1, now)
            self._take_back(listener, now)
        return delay_s

    def _take_back(self, listener: str, now: float) -> None:
        if listener != self._protected and self._broker_limit != NO_LIMIT:
            self._broker.record(-1, now)
        if self._listener_limits.get(listener, NO_LIMIT) != NO_LIMIT:
            self._listeners[listener].record(-1, now)

    def _record(self, rate: Rate, limit: float, now: float) -> float:
        rate.record(1, now)
        return min(rate.throttle_s(limit, now), self._longest_s)
