"""Lag as Prometheus metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.progress.prometheus import PrometheusLag
from spark_connector.progress.stream_lag import QueryLag, query_lag
from tests.spark_connector.progress.reports import offset, report, source

PREFIX = "pykafka_stream_"


def a_lag(run: str = "run-1", name: str | None = "flights", *, behind: int = 10, known: bool = True) -> QueryLag:
    end, latest = offset({"t": {0: 10, 1: 10}}, t=7), offset({"t": {0: 10 + behind, 1: 10}, "u": {0: 2}})
    reported = report(source(None, end, latest if known else None), name=name, runId=run)
    return query_lag(reported, lambda read, ends: {TopicPartition("t", p): 2.0 for p in (0, 1)})


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_every_topic_and_source_has_its_figures(registry: CollectorRegistry) -> None:
    PrometheusLag(registry).progressed(a_lag())
    assert samples(registry) == {
        ("min_offsets_behind_latest", "flights", "0", "t"): 0,
        ("max_offsets_behind_latest", "flights", "0", "t"): 10,
        ("avg_offsets_behind_latest", "flights", "0", "t"): 5,
        ("offsets_behind_latest", "flights", "0", "t"): 10,
        ("bytes_behind_latest", "flights", "0", "t"): 20,
        ("min_offsets_behind_latest", "flights", "0", "u"): 2,
        ("max_offsets_behind_latest", "flights", "0", "u"): 2,
        ("avg_offsets_behind_latest", "flights", "0", "u"): 2,
        ("offsets_behind_latest", "flights", "0", "u"): 2,
        ("skipped_offsets", "flights", "0", "t"): 7,
        ("input_rows_per_second", "flights", "0"): 10.5,
        ("processed_rows_per_second", "flights", "0"): 24.25,
    }


def test_a_later_report_replaces_the_one_before(registry: CollectorRegistry) -> None:
    lags = PrometheusLag(registry)
    lags.progressed(a_lag())
    lags.progressed(a_lag(behind=0))
    assert samples(registry)["max_offsets_behind_latest", "flights", "0", "t"] == 0
    lags.progressed(a_lag(known=False))
    known = {"input_rows_per_second", "processed_rows_per_second", "skipped_offsets"}
    assert {name for name, *_ in samples(registry)} == known


def test_a_query_that_ends_takes_its_metrics_along(registry: CollectorRegistry) -> None:
    lags = PrometheusLag(registry)
    lags.progressed(a_lag())
    lags.progressed(a_lag("run-2", "other"))
    lags.ended("run-1")
    assert {labels[0] for _, *labels in samples(registry)} == {"other"}
    lags.ended("run-2")
    lags.ended("never heard of")
    assert samples(registry) == {}


def test_a_registry_takes_one(registry: CollectorRegistry) -> None:
    PrometheusLag(registry)
    with pytest.raises(ConfigError, match="create one and pass it to every listener"):
        PrometheusLag(registry)


def test_queries_of_one_name_in_two_sessions_are_told_apart(registry: CollectorRegistry) -> None:
    lags = PrometheusLag(registry)
    lags.progressed(a_lag("run-1", behind=10))
    lags.progressed(a_lag("run-2", behind=20))
    exposed = generate_latest(registry).decode().splitlines()
    series = [line.rpartition(" ")[0] for line in exposed if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert samples(registry)["max_offsets_behind_latest", "flights run-2", "0", "t"] == 20
    lags.ended("run-1")
    assert samples(registry)["max_offsets_behind_latest", "flights", "0", "t"] == 20
