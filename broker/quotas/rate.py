"""A rate over the last samples, and a bucket of tokens: what quotas are measured with. Pure.

`Rate` is Kafka's `Rate` over a `WindowedSum`, and measures the same: a new client is taken to have had the whole window
less the current sample already, so that a short burst does not count as a high rate. `TokenBucket` is that of KIP-599.
Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque

SHORTEST_WINDOW_S = 0.001


class Rate:
    """A sum of values by samples of `window_s` seconds, of which the last `samples` count."""

    __slots__ = ("_count", "_samples", "_window_s")

    def __init__(self, samples: int, window_s: float) -> None:
        self._count = samples
        self._window_s = window_s
        self._samples: deque[list[float]] = deque(maxlen=samples + 1)
        """[begin, last event, sum], the oldest first. One more than count: a sample overlaps the window's begin."""

    def record(self, value: float, now: float) -> None:
        """Add to the current sample. A negative value takes back what was recorded."""
        if self._samples and now - self._samples[-1][0] < self._window_s:
            current = self._samples[-1]
            current[1] = now
            current[2] += value
        else:
            self._samples.append([now, now, value])

    def total(self, now: float) -> float:
        """The sum of the samples that still count."""
        self._forget_old(now)
        return sum([sample[2] for sample in self._samples])

    def throttle_s(self, limit: float, now: float) -> float:
        """How long the client must do nothing until its rate is down at `limit` (per second); 0 if it is not above.

        With an observed rate O over the window W this is (O - limit) / limit * W (`QuotaUtils.throttleTime`).
        """
        total = self.total(now)
        window_s = self._elapsed(now)
        rate = total / window_s
        return (rate - limit) / limit * window_s if rate > limit else 0.0

    def per_second(self, now: float) -> float:
        return self.total(now) / self._elapsed(now)

    def _forget_old(self, now: float) -> None:
        while self._samples and now - self._samples[0][1] >= self._count * self._window_s:
            self._samples.popleft()

    def _elapsed(self, now: float) -> float:
        """The time since the oldest sample began, but at least all whole samples but one, in seconds."""
        elapsed = now - self._samples[0][0] if self._samples else 0.0
        missing = self._count - 1 - int(elapsed / self._window_s)
        return max(elapsed + max(missing, 0) * self._window_s, SHORTEST_WINDOW_S)


class TokenBucket:
    """Gets `limit` tokens per second, up to `burst_s` seconds of them. It starts full, and may be overdrawn."""

    __slots__ = ("_burst_s", "_changed", "_tokens")

    def __init__(self, burst_s: float) -> None:
        self._burst_s = burst_s
        self._tokens = 0.0
        self._changed: float | None = None

    def take(self, tokens: float, limit: float, now: float) -> None:
        """Take tokens, also those that are not there."""
        self._tokens = self.tokens(limit, now) - tokens
        self._changed = now

    def tokens(self, limit: float, now: float) -> float:
        """The tokens that are there; below 0 when it is overdrawn."""
        burst = limit * self._burst_s
        if self._changed is None:
            return burst
        return min(burst, self._tokens + limit * (now - self._changed))

    def throttle_s(self, limit: float, now: float) -> float:
        """How long until it is no longer overdrawn, in seconds."""
        return max(0.0, -self.tokens(limit, now) / limit)
