"""Figures in the formats Prometheus reads, with those of the process itself.

Called by app.py in a worker thread: with thousands of partitions the text takes longer to write than the event loop
may be kept. The only file that imports prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from broker.metrics import LATENCY_BOUNDS_S, Histogram
from broker.web.figures import Figure

__all__ = ["Exposition"]

_KINDS: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
_BOUNDS = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]


class Exposition:
    """Writes scrapes. Beside the broker's figures: `process_…` (memory, CPU, descriptors) and `python_gc_…`."""

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)

    def render(self, figures: Iterable[Figure], accept: str) -> tuple[bytes, str]:
        """The body and its content type, in the format that the Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(_Scrape(figures, self._process)), content_type


class _Scrape(CollectorRegistry):
    """What prometheus_client writes out: one collection, made of figures."""

    def __init__(self, figures: Iterable[Figure], process: CollectorRegistry) -> None:
        super().__init__()
        self._figures = figures
        self._also = process

    def collect(self) -> Iterator[Metric]:
        for figure in self._figures:
            yield _metric(figure)
        yield from self._also.collect()


def _metric(figure: Figure) -> Metric:
    name, kind, labels, doc = figure.family
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, doc, labels=labels)
        for values, value in figure.samples:
            assert isinstance(value, Histogram)
            counts = accumulate(value.counts)
            histogram.add_metric(values, [*zip(_BOUNDS, counts, strict=True)], sum_value=value.sum)
        return histogram
    metric: Any = _KINDS[kind](name.removesuffix("_total") if kind == "counter" else name, doc, labels=labels)
    for values, value in figure.samples:
        metric.add_metric(values, value)
    return metric  # type: ignore[no-any-return]
