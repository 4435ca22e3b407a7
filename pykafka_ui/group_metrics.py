"""The lag of all groups for Prometheus, by the names of kafka_exporter, which dashboards and alerts know.

As there, a partition that a member reads without a committed offset has the offset and the lag -1, so that an alert can
find it, and is left out of the sum. What it holds is in `pykafka_ui_consumergroup_unread`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pykafka_ui.snapshot import Snapshot


class GroupMetrics(CollectorRegistry):
    """What one snapshot says."""

    def __init__(self, seen: Snapshot) -> None:
        super().__init__()
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        labels = ("consumergroup", "topic", "partition")
        lag = GaugeMetricFamily("kafka_consumergroup_lag", "Records behind the log end.", labels=labels)
        offset = GaugeMetricFamily("kafka_consumergroup_current_offset", "The committed offset.", labels=labels)
        total = GaugeMetricFamily("kafka_consumergroup_lag_sum", "The lag of a topic.", labels=labels[:2])
        unread = GaugeMetricFamily(
            "pykafka_ui_consumergroup_unread",
            "Records of a partition that a member reads without a committed offset.",
            labels=labels,
        )
        for name, group in self._seen.groups.items():
            sums: dict[str, int] = {}
            for tp, at in group.offsets.items():
                offset.add_metric([name, tp.topic, str(tp.partition)], at.offset)
                if tp in group.lags:
                    lag.add_metric([name, tp.topic, str(tp.partition)], group.lags[tp])
                    sums[tp.topic] = sums.get(tp.topic, 0) + group.lags[tp]
            for tp in group.uncommitted:
                offset.add_metric([name, tp.topic, str(tp.partition)], -1)
                lag.add_metric([name, tp.topic, str(tp.partition)], -1)
                sums.setdefault(tp.topic, 0)
            for tp, records in group.unread.items():
                unread.add_metric([name, tp.topic, str(tp.partition)], records)
            for topic, value in sums.items():
                total.add_metric([name, topic], value)
        up = GaugeMetricFamily("pykafka_ui_cluster_up", "Whether the cluster answered the last look.")
        up.add_metric([], 0 if self._seen.error else 1)
        brokers = GaugeMetricFamily("kafka_brokers", "Brokers of the cluster.")
        brokers.add_metric([], len(self._seen.brokers))
        behind = GaugeMetricFamily("pykafka_ui_under_replicated_partitions", "Partitions with fewer replicas in sync.")
        behind.add_metric([], self._seen.under_replicated)
        yield from (lag, offset, total, unread, up, brokers, behind)
