"""A rate limit for the replication of chosen replicas, so that moving them slows nobody else down (KIP-73).

A broker has one quota for what it sends to followers (`leader.replication.throttled.rate`) and one for what it fetches
(`follower.replication.throttled.rate`). The topic names the replicas that count
(`leader/follower.replication.throttled.replicas`). While the rate is exceeded, those that are not in sync wait. Idea:
Kafka's `ReplicationQuotaManager` with its `SimpleRate`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from broker.clock import Clock, SystemClock
from broker.config.topic_settings import UNLIMITED

ALL = "*"


class ReplicationQuota:
    """Counts bytes in samples of `window_s`, of which it remembers the last `samples`. Belongs to the event loop."""

    def __init__(self, broker_id: int, *, samples: int = 11, window_s: float = 1.0, clock: Clock | None = None) -> None:
        self.rate = UNLIMITED
        """Bytes per second."""
        self._broker_id = broker_id
        self._count = samples
        self._window_s = window_s
        self._clock = clock or SystemClock()
        self._samples: deque[tuple[float, int]] = deque()
        """(begin, bytes), the oldest first."""

    def applies_to(self, replicas: Collection[str], partition: int) -> bool:
        """Whether `replicas`, a setting as `partition:broker` or `*`, names this broker's replica of the partition."""
        return bool(replicas) and (ALL in replicas or f"{partition}:{self._broker_id}" in replicas)

    def record(self, size: int) -> None:
        """Count bytes that were replicated, also above the rate."""
        now = self._clock.monotonic()
        if self._samples and now - self._samples[-1][0] < self._window_s:
            begin, before = self._samples.pop()
            self._samples.append((begin, before + size))
        else:
            self._samples.append((now, size))

    @property
    def byte_rate(self) -> float:
        """Bytes per second over the samples, of all that counts."""
        total, elapsed = self._total()
        return total / elapsed

    @property
    def is_exceeded(self) -> bool:
        return self.delay_s() > 0

    def delay_s(self) -> float:
        """In how many seconds the rate is no longer exceeded if nothing more is replicated; 0 if it is not."""
        total, elapsed = self._total()
        if total <= self.rate * elapsed:
            return 0.0
        until_forgotten = self._samples[0][0] + self._count * self._window_s - self._clock.monotonic()
        return min(total / self.rate - elapsed, until_forgotten) if self.rate else until_forgotten

    def _total(self) -> tuple[int, float]:
        """(bytes, seconds) of the samples. Forgets those that are too old."""
        now = self._clock.monotonic()
        while self._samples and now - self._samples[0][0] >= self._count * self._window_s:
            self._samples.popleft()
        if not self._samples:
            return 0, self._window_s
        return sum(size for _, size in self._samples), max(now - self._samples[0][0], self._window_s)
