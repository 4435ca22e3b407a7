"""A service of loads as Prometheus sees it."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.errors import ConfigError
from spark_connector.progress.prometheus import LoadMetrics, parse_address


def scraped(metrics: LoadMetrics) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(metrics.url, timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("pykafka_load_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("pykafka_load_")
    }


def test_what_became_of_the_loads_is_served() -> None:
    behind: dict[str, int] = {}
    with LoadMetrics("nightly", "HTTP://127.0.0.1:0", lambda: behind, clock=lambda: 17.0) as metrics:
        assert scraped(metrics) == {
            ("loads_total", "nightly"): 0,
            ("rows_total", "nightly"): 0,
            ("failures_total", "nightly"): 0,
        }
        behind |= {"t": 7, "u": 0}
        metrics.loaded(30)
        metrics.loaded(12)
        metrics.up_to_date()
        metrics.failed()
        assert scraped(metrics) == {
            ("loads_total", "nightly"): 2,
            ("rows_total", "nightly"): 42,
            ("failures_total", "nightly"): 1,
            ("last_success_timestamp_seconds", "nightly"): 17,
            ("offsets_behind_latest", "nightly", "t"): 7,
            ("offsets_behind_latest", "nightly", "u"): 0,
        }
        with pytest.raises(ConfigError, match="cannot listen on 127.0.0.1"):
            LoadMetrics("g", metrics.url.removesuffix("/metrics"), dict).__enter__()


@pytest.mark.parametrize("address", ["127.0.0.1:9645", "https://h:1", "HTTP://h", "HTTP://h:x", "HTTP://h:1/m"])
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be HTTP://host:port, such as"):
        parse_address(address)
    assert parse_address("HTTP://[::1]:9") == ("::1", 9)
