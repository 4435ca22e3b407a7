"""Prometheus metrics of streams (PrometheusLag) and of a service of loads (LoadMetrics).

The only file of the connector that imports prometheus_client. `docs/reference/metrics.md` lists the metrics.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from prometheus_client import REGISTRY, CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from broker.errors import ConfigError
from spark_connector.progress.stream_lag import QueryLag, TopicLag

_SOURCE = ("query", "source")
_TOPIC = (*_SOURCE, "topic")
_FAMILIES = {
    "pykafka_stream_min_offsets_behind_latest": (_TOPIC, "Fewest offsets that a partition has and the query not yet."),
    "pykafka_stream_max_offsets_behind_latest": (_TOPIC, "Most offsets that a partition has and the query not yet."),
    "pykafka_stream_avg_offsets_behind_latest": (_TOPIC, "The same, on average over the partitions."),
    "pykafka_stream_offsets_behind_latest": (_TOPIC, "The same, in all."),
    "pykafka_stream_bytes_behind_latest": (_TOPIC, "About how many bytes of the log these offsets take."),
    "pykafka_stream_input_rows_per_second": (_SOURCE, "Rows that arrived per second, by Spark's report."),
    "pykafka_stream_processed_rows_per_second": (_SOURCE, "Rows processed per second, by Spark's report."),
    "pykafka_stream_skipped_offsets": (_TOPIC, "Offsets passed over since the query began (failOnDataLoss=false)."),
}


class PrometheusLag:
    """Gauges of all running queries of one or more listeners; use one per registry.

    For `LagListener(PrometheusLag())`. The owner of the process serves or pushes the registry (`start_http_server` of
    prometheus-client, a push gateway). Labels are query (its name, or its id; plus the run's id while two have the same
    name), source (its number in the query) and topic; not partition, because there may be thousands. A query that ends
    takes its metrics along, and unknown figures are left out.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Registers itself. Raises ConfigError if the registry has a PrometheusLag already."""
        self._latest: dict[str, QueryLag] = {}
        try:
            registry.register(self)
        except ValueError as error:
            raise ConfigError(
                f"this registry already has the metrics of a PrometheusLag ({error}): create one and pass it to every "
                "listener, or pass a separate registry"
            ) from None

    def progressed(self, lag: QueryLag) -> None:
        self._latest = {**self._latest, lag.run_id: lag}

    def ended(self, run_id: str) -> None:
        self._latest = {key: lag for key, lag in self._latest.items() if key != run_id}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without samples, from which a registry takes their names."""
        return iter(_empty_families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = _empty_families()
        latest = self._latest.values()
        names = Counter(lag.label for lag in latest)
        for lag in latest:
            # Two sessions may have queries of the same name; Prometheus rejects two samples with the same labels.
            label = lag.label if names[lag.label] == 1 else f"{lag.label} {lag.run_id}"
            for source in lag.sources:
                labels = (label, str(source.index))
                rates = {name: getattr(source, name) for name in ("input_rows_per_second", "processed_rows_per_second")}
                _add(families, labels, rates)
                for topic in source.topics:
                    _add(families, (*labels, topic.topic), _topic_figures(topic))
                for name in {tp.topic for tp in source.end}:
                    _add(families, (*labels, name), {"skipped_offsets": source.skipped.get(name, 0)})
        yield from families.values()


def _empty_families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, doc, labels=labels) for name, (labels, doc) in _FAMILIES.items()}


def _add(families: dict[str, GaugeMetricFamily], labels: tuple[str, ...], figures: Mapping[str, float | None]) -> None:
    for name, value in figures.items():
        if value is not None:
            families[f"pykafka_stream_{name}"].add_metric(labels, value)


def _topic_figures(topic: TopicLag) -> dict[str, float | None]:
    behind = topic.offsets_behind.values()
    return {
        "min_offsets_behind_latest": min(behind),
        "max_offsets_behind_latest": max(behind),
        "avg_offsets_behind_latest": topic.total / len(behind),
        "offsets_behind_latest": topic.total,
        "bytes_behind_latest": topic.bytes_behind,
    }


class LoadMetrics:
    """Counters of a service of loads, for `pykafka load --watch --metrics HTTP://host:port` (cli/service.py).

    The loading thread calls `loaded`, `up_to_date` and `failed`. Counters begin at zero with each start. The metrics
    are served at `url` from `__enter__` to `__exit__`.
    """

    def __init__(
        self, group: str, address: str, behind: Callable[[], Mapping[str, int]], clock: Callable[[], float] = time.time
    ) -> None:
        """`address`: `HTTP://host:port`, port 0 for any free port. `behind`: returns the lag by topic, called at each
        scrape. Raises ConfigError."""
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
        """A load succeeded, or there was nothing to load."""
        with self._lock:
            self._last_success = self._clock()

    def failed(self) -> None:
        """A load failed and will be retried."""
        with self._lock:
            self._failures += 1

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing, so that the registration asks no broker."""
        return iter(())

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """For a scrape, in its thread."""
        behind, group = self._behind(), self._group
        with self._lock:
            loads, rows, failures, last_success = self._loads, self._rows, self._failures, self._last_success
        yield _counter("pykafka_load_loads", "Loads that were committed.", group, loads)
        yield _counter("pykafka_load_rows", "Rows of these loads.", group, rows)
        yield _counter("pykafka_load_failures", "Loads that failed and were tried again.", group, failures)
        doc = "When a load last ended well or found nothing new, since 1970."
        success = GaugeMetricFamily("pykafka_load_last_success_timestamp_seconds", doc, labels=["group"])
        if last_success is not None:
            success.add_metric([group], last_success)
        yield success
        doc = "Offsets that the log has and no load yet, at the moment of the scrape."
        lag = GaugeMetricFamily("pykafka_load_offsets_behind_latest", doc, labels=["group", "topic"])
        for topic, offsets in sorted(behind.items()):
            lag.add_metric([group, topic], offsets)
        yield lag


def _counter(name: str, doc: str, group: str, count: int) -> CounterMetricFamily:
    counter = CounterMetricFamily(name, doc, labels=["group"])
    counter.add_metric([group], count)
    return counter


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
