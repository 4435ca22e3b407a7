"""The offset store told of a stream's last batch, where Spark tells its source of it no more.

The source publishes the end of a batch when Spark asks for the next one (read/micro_batches.py). At the end of an
`availableNow` run Spark asks once more, so all is told; a `processingTime` query that is stopped while it waits for
its next trigger, and a `once` query, leave out their last batch until the query runs again. Who cannot wait gives the
listener a `LastCommit` with the reader's options: when a run ends, it publishes the end of the last batch that Spark
reported, which Spark does only for finished ones.

A report does not say which options its query has. A source counts when all its topics are selected by the options,
and, if `query` is given, its query has that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.subscription_options import Assign, Subscribe, Subscription
from spark_connector.progress.stream_lag import QueryLag
from spark_connector.read.offset_reader import CommittedOffsets
from spark_connector.read.stream_offset import Offsets

__all__ = ["LastCommit"]


class LastCommit:
    """For `LagListener(LastCommit(options))`. Connects when a run ends, and hangs up again."""

    def __init__(self, options: Mapping[str, str], *, query: str | None = None) -> None:
        """`options`: those of the reader, `offsetStore` and `group` among them. Raises ConfigError."""
        self._options = parse_options(options, Mode.STREAM)
        if self._options.offset_store is None:
            raise ConfigError("LastCommit needs options 'offsetStore' and 'group': where a stream's end is published")
        self._query = query
        self._ends: dict[str, Offsets] = {}

    def progressed(self, lag: QueryLag) -> None:
        """Remember where the run stands."""
        if self._query is not None and lag.name != self._query:
            return
        for source in lag.sources:
            if _selects(self._options.subscription, source.end):
                self._ends[lag.run_id] = source.end

    def ended(self, run_id: str) -> None:
        """Publish. A store that cannot be reached is warned about, as while the query runs. Raises ConfigError."""
        end = self._ends.pop(run_id, None)
        if end is not None:
            with closing(CommittedOffsets(self._options)) as committed:
                committed.publish(end)


def _selects(subscription: Subscription, offsets: Mapping[TopicPartition, int]) -> bool:
    if isinstance(subscription, Assign):
        return offsets.keys() <= set(subscription.partitions)
    if isinstance(subscription, Subscribe):
        return {tp.topic for tp in offsets} <= set(subscription.topics)
    return all(subscription.matches(tp.topic) for tp in offsets)
