"""The broker's counters: plain numbers, cheap enough for the hot path.

The server makes one `Metrics` for the request log (requests by API) and the listeners (connections). Partitions count
their own bytes and records. Nothing here knows Prometheus: `web/collector.py` reads the numbers at each scrape, and a
broker without `metrics.listener` loads no library for them. All counters belong to the event loop. Idea: Kafka's
`RequestMetrics` and the sensors of `SocketServer`.
"""

from __future__ import annotations

import collections
from bisect import bisect_left

LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the latency buckets, in seconds; the last bucket has none."""


class Histogram:
    """Counts per bucket, and the sum of all observed values."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


class ApiMetrics:
    """One API. Times in seconds: `queue` until the handler starts, `remote` while it waits (a long poll, a flush,
    ZooKeeper), `total` from the frame's last byte to the response; the rest is `local`, the broker's own work."""

    __slots__ = ("errors", "queue", "remote", "request_bytes", "requests", "response_bytes", "total")

    def __init__(self) -> None:
        self.requests: collections.defaultdict[int, int] = collections.defaultdict(int)
        """By version."""
        self.errors: collections.Counter[int] = collections.Counter()
        """By Kafka's error code, as often as it is in a response; success is not counted."""
        self.total = Histogram()
        self.queue = 0.0
        self.remote = 0.0
        self.request_bytes = 0
        self.response_bytes = 0

    @property
    def local(self) -> float:
        return self.total.sum - self.queue - self.remote


class ThrottleMetrics:
    """How often one type of quota throttled somebody, and for how long in all."""

    __slots__ = ("seconds", "throttles")

    def __init__(self) -> None:
        self.throttles = 0
        self.seconds = 0.0


class ListenerMetrics:
    """Connections of one listener since the start."""

    __slots__ = (
        "accept_waits",
        "accepted",
        "closed",
        "failed_authentications",
        "ip_throttles",
        "successful_authentications",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.closed: collections.Counter[str] = collections.Counter()
        """By reason: `client` when the client closed it."""
        self.accept_waits = ThrottleMetrics()
        """Waits because of the rate of the broker or the listener."""
        self.ip_throttles = ThrottleMetrics()
        """Connections that were not served because of the rate of their address."""
        self.failed_authentications = 0
        self.successful_authentications = 0


class CleanerMetrics:
    """Completed compactions, and what they read and wrote."""

    __slots__ = ("bytes_read", "bytes_written", "records_kept", "records_read", "runs", "uncleanable")

    def __init__(self) -> None:
        self.runs = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_kept = 0
        self.uncleanable = 0
        """Partitions that are not compacted until the broker restarts."""


class FetchSessionMetrics:
    """The fetch sessions (KIP-227) and all their partitions, and how many sessions gave way to others."""

    __slots__ = ("evictions", "partitions", "sessions")

    def __init__(self) -> None:
        self.sessions = 0
        self.partitions = 0
        self.evictions = 0


class TopicMetrics:
    """What went into and out of the partitions of one topic that this broker led or followed (BrokerTopicMetrics)."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "messages_in",
        "reassignment_bytes_in",
        "reassignment_bytes_out",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        """To consumers; `replication_bytes_out` went to followers."""
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.reassignment_bytes_in = 0
        """Of the bytes of replication, those for replicas that a reassignment adds (KIP-455)."""
        self.reassignment_bytes_out = 0


class ReplicationMetrics:
    """Changes of ISRs that this broker wrote as a leader, and elections that it wrote as the controller."""

    __slots__ = ("elections", "failed_isr_updates", "isr_expands", "isr_shrinks", "unclean_elections")

    def __init__(self) -> None:
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.failed_isr_updates = 0
        """ISRs that were not written because ZooKeeper was away or another broker was faster."""
        self.elections = 0
        self.unclean_elections = 0


class Metrics:
    """All counters. An entry appears with its first event."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = collections.defaultdict(ApiMetrics)
        """By API key."""
        self.listeners: dict[str, ListenerMetrics] = collections.defaultdict(ListenerMetrics)
        """By listener name."""
        self.fetch_sessions = FetchSessionMetrics()
        self.replication = ReplicationMetrics()
        self.throttles: dict[str, ThrottleMetrics] = collections.defaultdict(ThrottleMetrics)
        """By type of quota."""

    def failed(self, api: int, code: int) -> None:
        """Count an error of a handler that counts its errors itself."""
        self.apis[api].errors[code] += 1
