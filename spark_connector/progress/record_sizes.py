"""Bytes per record of a topic's partitions, estimated by what their logs take on disk (KIP-113).

Used by listener.py to turn offsets behind into bytes behind. The size that DescribeLogDirs tells, divided by the
offsets from the log's begin to its end: compressed bytes as they would be fetched, and less per record where a log is
compacted or has transactions, since gaps count as records. Brokers are asked at most every `refresh_s`, with short
time-outs: Spark's event thread waits. What cannot be had is a warning and an estimate less, never an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.offsets import EARLIEST, LATEST, list_offsets
from broker.client.settings import ClientSettings
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition

__all__ = ["RecordSizes"]

logger = logging.getLogger("pykafka.spark")

_PATIENCE = {"request.timeout.ms": "5000", "default.api.timeout.ms": "5000", "client.id": "pykafka-lag"}
_PREFIX = "kafka."


class RecordSizes:
    """Averages of one cluster's partitions, kept for a while. One thread at a time; `close()` hangs up."""

    def __init__(
        self,
        source: str | Iterable[str] | Mapping[str, str],
        *,
        refresh_s: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source`: bootstrap servers, client properties, or a reader's options (`kafka.*`). Raises ConfigError."""
        self._settings = _settings(source)
        self._refresh_s = refresh_s
        self._monotonic = monotonic
        self._cluster: Cluster | None = None
        self._known: dict[str, tuple[float, dict[TopicPartition, float]]] = {}

    def __call__(self, topics: Collection[str]) -> Mapping[TopicPartition, float]:
        """Average bytes of a record, for the partitions of `topics` for which it is known."""
        now = self._monotonic()
        due = sorted(t for t in topics if t not in self._known or now - self._known[t][0] >= self._refresh_s)
        if due:
            sizes = self._ask(due)
            for topic in due:
                self._known[topic] = now, {tp: size for tp, size in sizes.items() if tp.topic == topic}
        return {tp: size for topic in topics for tp, size in self._known[topic][1].items()}

    def close(self) -> None:
        """Hang up; the next call connects again."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _ask(self, topics: list[str]) -> dict[TopicPartition, float]:
        try:
            if self._cluster is None:
                self._cluster = Cluster(self._settings, create_topics=False)
            sizes: dict[TopicPartition, int] = {}
            for directory in Admin(self._cluster).describe_log_dirs(topics=topics):
                for tp, replica in directory.partitions.items():
                    if not replica.is_future:
                        sizes[tp] = max(sizes.get(tp, 0), replica.size)  # replicas may lag, none has more
            first = list_offsets(self._cluster, dict.fromkeys(sizes, EARLIEST))
            last = list_offsets(self._cluster, dict.fromkeys(sizes, LATEST))
            counts = {tp: last[tp].offset - first[tp].offset for tp in sizes}
            return {tp: size / counts[tp] for tp, size in sizes.items() if counts[tp] > 0}
        except (PykafkaError, OSError) as error:
            logger.warning("Sizes of topics %s are not known for now: %s", ", ".join(topics), error)
            self.close()
            return {}


def _settings(source: str | Iterable[str] | Mapping[str, str]) -> ClientSettings:
    if not isinstance(source, Mapping):
        return ClientSettings.of(source, _PATIENCE)
    options = {name.lower(): value for name, value in source.items()}
    kafka = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    return ClientSettings.of({**_PATIENCE, **(kafka or source)})
