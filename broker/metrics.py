"""The broker's counters: plain numbers, cheap enough for the hot path.

The server makes one `Metrics` for the request log (requests by API) and the listeners (connections). Partitions count
their own bytes and records. Nothing here knows Prometheus: `web/collector.py` reads the numbers at each scrape, and a
broker without `metrics.listener` loads no library for them. All counters belong to the event loop. Idea: Kafka's
`RequestMetrics` and the sensors of `SocketServer`.
"""

from __future__ import annotations

import collections
import dataclasses
from bisect import bisect_left

LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the latency buckets, in seconds; the last bucket has none."""


@dataclasses.dataclass(slots=True, eq=False)
class Histogram:
    """Counts per bucket, and the sum of all observed values."""

    counts: list[int] = dataclasses.field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclasses.dataclass(slots=True, eq=False)
class ApiMetrics:
    """One API. Times in seconds: `queue` until the handler starts, `remote` while it waits (a long poll, a flush,
    ZooKeeper), `total` from the frame's last byte to the response; the rest is `local`, the broker's own work."""

    requests: dict[int, int] = dataclasses.field(default_factory=lambda: collections.defaultdict(int))
    """By version. (A Counter would be slower.)"""
    errors: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    """By Kafka's error code, as often as it is in a response; success is not counted."""
    total: Histogram = dataclasses.field(default_factory=Histogram)
    queue: float = 0.0
    remote: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0

    @property
    def local(self) -> float:
        return self.total.sum - self.queue - self.remote


@dataclasses.dataclass(slots=True, eq=False)
class ThrottleMetrics:
    """How often one type of quota throttled somebody, and for how long in all."""

    throttles: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(slots=True, eq=False)
class ListenerMetrics:
    accepted: int = 0
    closed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """By reason: `client` when the client closed it."""
    accept_waits: ThrottleMetrics = dataclasses.field(default_factory=ThrottleMetrics)
    """Waits because of the rate of the broker or the listener."""
    ip_throttles: ThrottleMetrics = dataclasses.field(default_factory=ThrottleMetrics)
    """Connections that were not served because of the rate of their address."""
    failed_authentications: int = 0
    successful_authentications: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class CleanerMetrics:
    """Completed compactions, and what they read and wrote."""

    runs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    uncleanable: int = 0
    """Partitions that are not compacted until the broker restarts."""


@dataclasses.dataclass(slots=True, eq=False)
class FetchSessionMetrics:
    """The fetch sessions (KIP-227) and all their partitions, and how many sessions gave way to others."""

    sessions: int = 0
    partitions: int = 0
    evictions: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class TopicMetrics:
    """What went into and out of the partitions of one topic that this broker led or followed (BrokerTopicMetrics)."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    """To consumers; `replication_bytes_out` went to followers."""
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    reassignment_bytes_in: int = 0
    """Of the bytes of replication, those for replicas that a reassignment adds (KIP-455)."""
    reassignment_bytes_out: int = 0
    truncated_records: int = 0
    """That followers cut off their logs because the leader does not have them."""
    remote_copy_bytes: int = 0
    """Of segments, to the archive."""
    remote_copy_requests: int = 0
    remote_copy_errors: int = 0
    """Copies and commits to the archive that failed."""
    remote_delete_requests: int = 0
    """Objects of the archive that were deleted."""
    remote_delete_errors: int = 0
    remote_fetch_bytes: int = 0
    """Of archived segments, from the archive. The threads that read it count these, under the lock of its cache."""
    remote_fetch_requests: int = 0
    remote_fetch_errors: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class ReplicationMetrics:
    """Changes of ISRs that this broker wrote as a leader, and elections that it wrote as the controller."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0
    """ISRs that were not written because ZooKeeper was away or another broker was faster."""
    elections: int = 0
    unclean_elections: int = 0


class Metrics:
    """All counters. An entry appears with its first event."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = collections.defaultdict(ApiMetrics)
        """By API key."""
        self.listeners: dict[str, ListenerMetrics] = collections.defaultdict(ListenerMetrics)
        """By listener name."""
        self.fetch_sessions = FetchSessionMetrics()
        self.share_acknowledgements: collections.Counter[int] = collections.Counter()
        """Records that members of share groups acknowledged, by type (KIP-932)."""
        self.replication = ReplicationMetrics()
        self.throttles: dict[str, ThrottleMetrics] = collections.defaultdict(ThrottleMetrics)
        """By type of quota."""

    def failed(self, api: int, code: int) -> None:
        """Count an error of a handler that counts its errors itself."""
        self.apis[api].errors[code] += 1
