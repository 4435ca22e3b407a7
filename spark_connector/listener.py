"""`LagListener`: passes the lag of streams to publishers after every batch.

    spark.streams.addListener(LagListener())                                    # bars in a terminal or notebook
    spark.streams.addListener(LagListener(PrometheusLag(), sizes_from=options))  # metrics, with bytes behind
    spark.streams.addListener(LagListener(lambda lag: print(lag.label, lag.sources[0].metrics())))

Runs in the Python process of the session: the driver's, or the client of Spark Connect. Spark reports a batch when it
has ended, and nothing while a query waits for data. progress/stream_lag.py computes the lag. An error of a publisher is
logged and disturbs neither the query nor the other publishers.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.partition_offsets import LATEST, list_offsets
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.offset_store.base import Offsets
from spark_connector.progress.console_reports import ConsoleReports
from spark_connector.progress.lag_bar import LagBar
from spark_connector.progress.last_commit import LastCommit
from spark_connector.progress.prometheus import PrometheusLag
from spark_connector.progress.stream_lag import QueryLag, query_lag
from spark_connector.read.size_estimator import SizeEstimator

__all__ = ["ConsoleReports", "LagBar", "LagListener", "LastCommit", "PrometheusLag", "Publisher", "RecordSizes"]

logger = logging.getLogger("pykafka.spark")


class LagListener(StreamingQueryListener):
    """Calls `publishers`: Publishers, or functions of a QueryLag. The default is a LagBar."""

    def __init__(
        self,
        *publishers: Publisher | Callable[[QueryLag], object],
        sizes_from: str | Iterable[str] | Mapping[str, str] | None = None,
    ) -> None:
        """`sizes_from`: bootstrap servers, client properties or a reader's options, to ask brokers for record sizes.

        Without it no bytes are estimated. Raises ConfigError.
        """
        self._publishers: tuple[Any, ...] = publishers or (LagBar(),)
        self._sizes = None if sizes_from is None else RecordSizes(sizes_from)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing to publish yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        lag = self._attempt(query_lag, json.loads(event.progress.json), self._sizes)
        if lag is not None and lag.sources:
            for publisher in self._publishers:
                self._attempt(getattr(publisher, "progressed", publisher), lag)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        for publisher in self._publishers:
            if hasattr(publisher, "ended"):
                self._attempt(publisher.ended, str(event.runId))
        if self._sizes is not None:
            self._sizes.close()

    @staticmethod
    def _attempt(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            logger.warning("Lag listener: %s: %s", type(error).__name__, error)
            return None


class Publisher(Protocol):
    """Shows or uses lag. Called on Spark's event thread, one event at a time, so it should return quickly."""

    def progressed(self, lag: QueryLag) -> None:
        """A batch has ended."""

    def ended(self, run_id: str) -> None:
        """A run of a query has ended, with or without an error; `progressed` may never have been called for it."""


_PATIENCE = {"request.timeout.ms": "5000", "default.api.timeout.ms": "5000", "client.id": "pykafka-lag"}
_PREFIX = "kafka."
_ASK_AGAIN_S = 60.0


class RecordSizes:
    """Average record sizes of one cluster, which turn lag in offsets into lag in bytes. Used by one thread at a time.

    Timeouts are short, because Spark's event thread waits. If the cluster does not answer, a warning is logged and no
    bytes are estimated for a minute. `close()` disconnects, and the next call connects again.
    """

    def __init__(
        self, source: str | Iterable[str] | Mapping[str, str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`source`: bootstrap servers, client properties, or a reader's options (`kafka.*`). Raises ConfigError."""
        self._settings = _settings(source)
        self._monotonic = monotonic
        self._open: tuple[Cluster, SizeEstimator] | None = None
        self._silent_until = -math.inf

    def __call__(self, read: Offsets, ends: Offsets) -> Mapping[TopicPartition, int]:
        """Average bytes per offset of each partition with offsets between `read` and `ends`; empty if unknown."""
        behind = sorted(tp for tp, offset in read.items() if ends.get(tp, 0) > offset)
        if not behind or self._monotonic() < self._silent_until:
            return {}
        try:
            if self._open is None:
                cluster = Cluster(self._settings, create_topics=False)
                self._open = cluster, SizeEstimator(cluster, self._monotonic)
            cluster, estimates = self._open
            list_offsets(cluster, {behind[0]: LATEST})  # fails if no broker answers; `estimate` would guess
            return estimates.estimate(read, ends)
        except (PykafkaError, OSError) as error:
            logger.warning("The lag of streams in bytes is not known for now: %s", error)
            self._silent_until = self._monotonic() + _ASK_AGAIN_S
            self.close()
            return {}

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[0].close()


def _settings(source: str | Iterable[str] | Mapping[str, str]) -> ClientSettings:
    if not isinstance(source, Mapping):
        return ClientSettings.of(source, _PATIENCE)
    options = {name.lower(): value for name, value in source.items()}
    kafka = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    return ClientSettings.of({**_PATIENCE, **(kafka or source)})
