"""`LagListener`: how far streams are behind, told after every batch to whoever wants to know.

    spark.streams.addListener(LagListener())                                    # bars in a terminal or notebook
    spark.streams.addListener(LagListener(PrometheusLag(), sizes_from=options))  # metrics, with bytes behind
    spark.streams.addListener(LagListener(lambda lag: print(lag.label, lag.sources[0].metrics())))

Runs where the session is: in the driver's Python, or in the client of Spark Connect. Spark reports a batch when it
has ended, and nothing while a query waits for data. The rules are in progress/lag.py; here are only Spark's events.
A publisher that fails is logged and disturbs neither the query nor the other publishers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_connector.progress.bar import LagBar
from spark_connector.progress.lag import QueryLag, query_lag
from spark_connector.progress.last_commit import LastCommit
from spark_connector.progress.prometheus import PrometheusLag
from spark_connector.progress.publisher import Callback, Publisher
from spark_connector.progress.record_sizes import RecordSizes

__all__ = ["LagBar", "LagListener", "LastCommit", "PrometheusLag"]

logger = logging.getLogger("pykafka.spark")


class LagListener(StreamingQueryListener):
    """Tells `publishers` (objects with `progressed` and `ended`, or functions of a QueryLag); without any, a LagBar."""

    def __init__(
        self,
        *publishers: Publisher | Callable[[QueryLag], object],
        sizes_from: str | Iterable[str] | Mapping[str, str] | None = None,
    ) -> None:
        """`sizes_from`: bootstrap servers, client properties or a reader's options: whom to ask for record sizes.

        Without it no bytes are estimated. Raises ConfigError.
        """
        self._publishers = [_publisher(one) for one in publishers] or [LagBar()]
        self._sizes = None if sizes_from is None else RecordSizes(sizes_from)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch has ended."""
        lag = self._attempt(query_lag, json.loads(event.progress.json), self._sizes)
        if lag is not None and lag.sources:
            for publisher in self._publishers:
                self._attempt(publisher.progressed, lag)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """No news: Spark tells no offsets then."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A run is over."""
        for publisher in self._publishers:
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


def _publisher(given: Publisher | Callable[[QueryLag], object]) -> Publisher:
    return given if hasattr(given, "progressed") else Callback(given)  # type: ignore[return-value]
