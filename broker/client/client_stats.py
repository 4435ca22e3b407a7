"""What a producer or consumer did: counts, rates and latencies by topic and by broker.

Updated by sender.py, leader_fetches.py and consumer.py once per batch, request or fetch, never per record. Read with
`Producer.stats()` and `Consumer.stats()`, or passed to the callback `on_stats` every `statistics.interval.ms`, as in
librdkafka. Thread-safe. Times are monotonic seconds from the caller; latencies are in ms, rates per second.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

logger = logging.getLogger(__name__)

RATE_WINDOW_S: Final = 30
"""Rates are averages over this many seconds, or since the start."""

_STEPS_PER_DOUBLING: Final = 8
"""Resolution of latency percentiles: one step is 9 %."""


class Latency(NamedTuple):
    """From request to response, in ms; 0 without any response."""

    average: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    maximum: float = 0.0


class TopicTraffic(NamedTuple):
    """Records acknowledged, or returned by a consumer; bytes of their batches on the wire; retries and failures."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0
    failed_records: int = 0
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0


class BrokerTraffic(NamedTuple):
    """Answered produce or fetch requests of one broker; `failures`: connections that broke or could not be opened.

    A fetch waits for data up to `fetch.max.wait.ms`, which its latency includes.
    """

    requests: int = 0
    failures: int = 0
    latency_ms: Latency = Latency()


class ClientStats(NamedTuple):
    """The statistics at one moment. `total` is the sum of all topics; `brokers` is by broker id."""

    client_id: str
    age_s: float
    total: TopicTraffic
    topics: dict[str, TopicTraffic]
    brokers: dict[int, BrokerTraffic]
    buffered_bytes: int = 0
    """Bytes of `buffer.memory` with records that are not acknowledged yet; 0 for a consumer."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self._asdict(),
            "total": self.total._asdict(),
            "topics": {name: traffic._asdict() for name, traffic in self.topics.items()},
            "brokers": {
                str(id_): {**traffic._asdict(), "latency_ms": traffic.latency_ms._asdict()}
                for id_, traffic in self.brokers.items()
            },
        }


class _Counted:
    def __init__(self) -> None:
        self.records = self.bytes = self.batches = self.retries = self.failed_records = 0
        self.recent: deque[list[int]] = deque()
        """[second, records, bytes], the newest last."""

    def add(self, now: float, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        second, recent = int(now), self.recent
        if recent and recent[-1][0] == second:
            recent[-1][1] += records
            recent[-1][2] += size
            return
        recent.append([second, records, size])
        while recent[0][0] <= second - RATE_WINDOW_S:
            recent.popleft()

    def traffic(self, now: float, age_s: float) -> TopicTraffic:
        newer = [row for row in self.recent if row[0] > now - RATE_WINDOW_S]
        seconds = min(max(age_s, 1e-3), RATE_WINDOW_S)
        return TopicTraffic(
            self.records,
            self.bytes,
            self.batches,
            self.retries,
            self.failed_records,
            sum(row[1] for row in newer) / seconds,
            sum(row[2] for row in newer) / seconds,
        )


class _Latencies:
    """One broker: answers counted by the logarithm of how long they took."""

    def __init__(self) -> None:
        self.requests = self.failures = 0
        self._sum = self._maximum = 0.0
        self._steps: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self.requests += 1
        self._sum += seconds
        self._maximum = max(self._maximum, seconds)
        self._steps[math.ceil(math.log2(max(seconds, 1e-9)) * _STEPS_PER_DOUBLING)] += 1

    def traffic(self) -> BrokerTraffic:
        if not self.requests:
            return BrokerTraffic(0, self.failures)
        average, maximum = self._sum / self.requests * 1000, self._maximum * 1000
        latency = Latency(average, self._percentile(0.5), self._percentile(0.99), maximum)
        return BrokerTraffic(self.requests, self.failures, latency)

    def _percentile(self, share: float) -> float:
        left = math.ceil(self.requests * share)
        for step in sorted(self._steps):
            left -= self._steps[step]
            if left <= 0:
                break
        return min(math.exp2(step / _STEPS_PER_DOUBLING), self._maximum) * 1000


class Statistics:
    def __init__(self, client_id: str, now: float) -> None:
        self._client_id = client_id
        self._began = now
        self._lock = threading.Lock()
        self._topics: dict[str, _Counted] = defaultdict(_Counted)
        self._brokers: dict[int, _Latencies] = defaultdict(_Latencies)

    def batches(self, topic: str, now: float, *, records: int, size: int, batches: int = 1) -> None:
        """Batches of `size` bytes in total were acknowledged, or returned by a consumer."""
        with self._lock:
            counted = self._topics[topic]
            counted.batches += batches
            counted.add(now, records, size)

    def retried(self, topic: str) -> None:
        with self._lock:
            self._topics[topic].retries += 1

    def failed(self, topic: str, records: int) -> None:
        with self._lock:
            self._topics[topic].failed_records += records

    def answered(self, broker_id: int, seconds: float) -> None:
        with self._lock:
            self._brokers[broker_id].add(seconds)

    def unreachable(self, broker_id: int) -> None:
        """A connection broke, or could not be opened."""
        with self._lock:
            self._brokers[broker_id].failures += 1

    def snapshot(self, now: float, *, buffered_bytes: int = 0) -> ClientStats:
        age_s = now - self._began
        with self._lock:
            topics = {name: counted.traffic(now, age_s) for name, counted in sorted(self._topics.items())}
            brokers = {id_: latencies.traffic() for id_, latencies in sorted(self._brokers.items())}
        total = (
            TopicTraffic(*(sum(column) for column in zip(*topics.values(), strict=True))) if topics else TopicTraffic()
        )
        return ClientStats(self._client_id, age_s, total, topics, brokers, buffered_bytes)


OnStats = Callable[[ClientStats], object]


class StatsReporter:
    """Calls `on_stats` every `statistics.interval.ms`. `due_at` (monotonic seconds) is infinity without a callback."""

    def __init__(self, on_stats: OnStats | None, interval_ms: int, now: float) -> None:
        self._on_stats = on_stats
        self._interval_s = interval_ms / 1000
        self.due_at = now + self._interval_s if on_stats is not None and interval_ms else math.inf

    def report(self, now: float, stats: Callable[[], ClientStats]) -> None:
        """Call it if it is due. Its errors are only logged, because statistics must not stop the client."""
        if now < self.due_at or self._on_stats is None:
            return
        self.due_at = now + self._interval_s
        try:
            self._on_stats(stats())
        except Exception:
            logger.exception("the on_stats callback failed")
