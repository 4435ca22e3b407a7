"""Lag as Prometheus metrics: a collector over the last report of every running query.

For `LagListener(PrometheusLag())`; whoever owns the process serves or pushes the registry (`start_http_server` of
prometheus-client, a push gateway). The only file of the connector that imports prometheus_client. Labels are query
(name, else id; and the run's id while two have one name), source (its number in the query) and topic, never the
partition, of which there may be thousands. What ends takes its metrics along; what is not known is not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from broker.errors import ConfigError
from spark_connector.progress.lag import QueryLag, SourceLag, TopicLag

__all__ = ["PrometheusLag"]

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
    """Gauges of all queries that one or more listeners tell of; one per registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Registers itself. Raises ConfigError when the registry has one already."""
        self._latest: dict[str, QueryLag] = {}
        try:
            registry.register(self)
        except ValueError as error:
            raise ConfigError(
                f"this registry has the metrics of a PrometheusLag already ({error}): make one and give it to every "
                "listener, or give a registry of its own"
            ) from None

    def progressed(self, lag: QueryLag) -> None:
        """From now on a scrape sees this; where lag is not known for once, none."""
        self._latest = {**self._latest, lag.run_id: lag}

    def ended(self, run_id: str) -> None:
        """No scrape sees that run any more."""
        self._latest = {key: lag for key, lag in self._latest.items() if key != run_id}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without samples: how a registry learns their names."""
        return iter(_empty_families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For a scrape, in any thread."""
        families = _empty_families()
        latest = self._latest.values()
        names = Counter(lag.label for lag in latest)
        for lag in latest:
            # Two sessions may each have a query of this name; two samples with the same labels are none to Prometheus.
            label = lag.label if names[lag.label] == 1 else f"{lag.label} {lag.run_id}"
            for source in lag.sources:
                _add(families, (label, str(source.index)), _source_figures(source))
                for topic in source.topics:
                    _add(families, (label, str(source.index), topic.topic), _topic_figures(topic))
                for name in {tp.topic for tp in source.end}:
                    figure = ("skipped_offsets", source.skipped.get(name, 0))
                    _add(families, (label, str(source.index), name), [figure])
        yield from families.values()


def _empty_families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, doc, labels=labels) for name, (labels, doc) in _FAMILIES.items()}


def _add(
    families: dict[str, GaugeMetricFamily], labels: tuple[str, ...], figures: Iterable[tuple[str, float | None]]
) -> None:
    for name, value in figures:
        if value is not None:
            families[f"pykafka_stream_{name}"].add_metric(labels, value)


def _source_figures(source: SourceLag) -> list[tuple[str, float | None]]:
    return [
        ("input_rows_per_second", source.input_rows_per_second),
        ("processed_rows_per_second", source.processed_rows_per_second),
    ]


def _topic_figures(topic: TopicLag) -> list[tuple[str, float | None]]:
    behind = topic.offsets_behind.values()
    return [
        ("min_offsets_behind_latest", min(behind)),
        ("max_offsets_behind_latest", max(behind)),
        ("avg_offsets_behind_latest", topic.total / len(behind)),
        ("offsets_behind_latest", topic.total),
        ("bytes_behind_latest", topic.bytes_behind),
    ]
