"""What the broker counts while it works: plain numbers, cheap enough for the hot path.

`Metrics` is one object, made by the server and handed to whoever counts: the router's request log (requests by
API), the listeners (connections). Partitions count their own bytes and records. Nothing here knows Prometheus:
`web/figures.py` reads these numbers at each scrape, and a broker without `metrics.listener` loads no library for
them. Everything belongs to the event loop. Idea: Kafka's `RequestMetrics` and `SocketServer` sensors.
"""

from __future__ import annotations

import collections
from bisect import bisect_left

__all__ = ["LATENCY_BOUNDS_S", "ApiMetrics", "CleanerMetrics", "Histogram", "ListenerMetrics", "Metrics"]

LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the latency buckets, in seconds; what takes longer falls into the last, unbounded one."""


class Histogram:
    """Counts per bucket and the sum of all that was observed."""

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
    """One API. Times are seconds: `queue` before a request is looked at, `remote` while its handler waits (a long poll,
    a flush, ZooKeeper), `total` from the frame's last byte to the response; what remains is `local`, our own work."""

    __slots__ = ("errors", "queue", "remote", "request_bytes", "requests", "response_bytes", "total")

    def __init__(self) -> None:
        self.requests: collections.defaultdict[int, int] = collections.defaultdict(int)
        """By version."""
        self.errors: collections.Counter[int] = collections.Counter()
        """By Kafka's error code, as often as it stands in a response; successes are not counted."""
        self.total = Histogram()
        self.queue = 0.0
        self.remote = 0.0
        self.request_bytes = 0
        self.response_bytes = 0

    @property
    def local(self) -> float:
        return self.total.sum - self.queue - self.remote


class ListenerMetrics:
    """Connections of one listener since the start."""

    __slots__ = ("accepted", "closed", "failed_authentications", "successful_authentications")

    def __init__(self) -> None:
        self.accepted = 0
        self.closed: collections.Counter[str] = collections.Counter()
        """By reason: `client` when the peer left."""
        self.failed_authentications = 0
        self.successful_authentications = 0


class CleanerMetrics:
    """Compactions that were swapped in, and what went through them."""

    __slots__ = ("bytes_read", "bytes_written", "records_kept", "records_read", "runs", "uncleanable")

    def __init__(self) -> None:
        self.runs = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_kept = 0
        self.uncleanable = 0
        """Partitions that are not compacted any more until the broker starts again."""


class Metrics:
    """Everything that is counted. Entries appear with the first event."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = collections.defaultdict(ApiMetrics)
        """By API key."""
        self.listeners: dict[str, ListenerMetrics] = collections.defaultdict(ListenerMetrics)
        """By listener name."""

    def failed(self, api: int, code: int) -> None:
        """Count an error in a response whose handler counts them itself."""
        self.apis[api].errors[code] += 1
