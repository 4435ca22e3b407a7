"""A service of loads as Prometheus metrics, served over HTTP by prometheus_client.

Made by cli/service.py for `pykafka load --watch --metrics HTTP://host:port`. Counters begin at zero with each start.
How far the loads are behind is asked at each scrape by a function handed in. `docs/metrics.md` lists the metrics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from broker.errors import ConfigError

__all__ = ["LoadMetrics", "parse_address"]


class LoadMetrics:
    """Told what becomes of the loads by the thread that loads. Serves from `__enter__` to `__exit__`; then `url` says
    where."""

    def __init__(
        self,
        group: str,
        address: str,
        behind: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`address`: `HTTP://host:port`, port 0 for a free one; `behind`: offsets by topic. Raises ConfigError."""
        self.url = ""
        self._address = parse_address(address)
        self._group = group
        self._behind = behind
        self._clock = clock
        self._lock = threading.Lock()
        self._loads, self._rows, self._failures = 0, 0, 0
        self._last_success: float | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def __enter__(self) -> Self:
        host, port = self._address
        try:
            self._server, _ = start_http_server(port, host, self._registry)
        except OSError as error:
            raise ConfigError(f"metrics (--metrics): cannot listen on {host}:{port}: {error.strerror}") from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def loaded(self, rows: int) -> None:
        """A load was committed."""
        with self._lock:
            self._loads, self._rows = self._loads + 1, self._rows + rows

    def up_to_date(self) -> None:
        """A load has ended well, or there was nothing to load."""
        with self._lock:
            self._last_success = self._clock()

    def failed(self) -> None:
        """A load failed, and will be tried again."""
        with self._lock:
            self._failures += 1

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: at its registration no broker is to be asked."""
        return iter(())

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """For a scrape, in its thread."""
        behind = self._behind()
        with self._lock:
            counts = (self._loads, self._rows, self._failures)
            last_success = self._last_success
        for (name, doc), count in zip(_COUNTERS.items(), counts, strict=True):
            counter = CounterMetricFamily(name, doc, labels=["group"])
            counter.add_metric([self._group], count)
            yield counter
        success = GaugeMetricFamily(
            "pykafka_load_last_success_timestamp_seconds",
            "When a load last ended well or found nothing new, since 1970.",
            labels=["group"],
        )
        if last_success is not None:
            success.add_metric([self._group], last_success)
        yield success
        lag = GaugeMetricFamily(
            "pykafka_load_offsets_behind_latest",
            "Offsets that the log has and no load yet, at the moment of the scrape.",
            labels=["group", "topic"],
        )
        for topic, offsets in sorted(behind.items()):
            lag.add_metric([self._group, topic], offsets)
        yield lag


_COUNTERS = {
    "pykafka_load_loads": "Loads that were committed.",
    "pykafka_load_rows": "Rows of these loads.",
    "pykafka_load_failures": "Loads that failed and were tried again.",
}


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of `HTTP://host:port`, as the broker's `metrics.listener` has it. Raises ConfigError."""
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or port is None or parts.path.strip("/") or parts.query:
        raise ConfigError(f"metrics (--metrics) must be HTTP://host:port, such as HTTP://127.0.0.1:9645, not '{text}'")
    return parts.hostname or "0.0.0.0", port
