"""Publishes the end of a stream's last batch to the offset store, when Spark does not tell the source about it.

The source publishes the end of a batch when Spark asks for the next one (read/micro_batches.py). At the end of an
`availableNow` run Spark asks once more, so nothing is missing. A `once` query, and a `processingTime` query that is
stopped while it waits for its next trigger, leave the last batch unpublished until the query runs again. A user who
cannot wait gives the listener a `LastCommit` with the reader's options. When a run ends, it publishes the end of the
last batch that Spark reported; Spark reports only finished batches.

A report does not contain the options of its query. So a source counts if the options select all its topics, and, if
`query` is given, its query has that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from broker.errors import ConfigError
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.progress.stream_lag import QueryLag, SourceLag
from spark_connector.read.offset_reader import CommittedOffsets


class LastCommit:
    """For `LagListener(LastCommit(options))`. Connects only when a run ends."""

    def __init__(self, options: Mapping[str, str], *, query: str | None = None) -> None:
        """`options`: those of the reader, with `offsetStore` and `group`. Raises ConfigError."""
        self._options = parse_options(options, Mode.STREAM)
        if self._options.offset_store is None:
            raise ConfigError("LastCommit needs options 'offsetStore' and 'group', to publish the end of a stream")
        self._query = query
        self._ends: dict[str, SourceLag] = {}

    def progressed(self, lag: QueryLag) -> None:
        if self._query is not None and lag.name != self._query:
            return
        for source in lag.sources:
            if all(map(self._options.subscription.selects, source.end)):
                self._ends[lag.run_id] = source

    def ended(self, run_id: str) -> None:
        """Publish the position. An unreachable store is only a warning, as while the query runs. Raises ConfigError."""
        last = self._ends.pop(run_id, None)
        if last is not None:
            with closing(CommittedOffsets(self._options)) as committed:
                committed.publish(last.end, last.topic_ids)
