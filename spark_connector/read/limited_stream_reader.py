"""The end of a batch as Spark 4.2 and newer ask for it: from a start, under a limit, with a say in `availableNow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_connector.read.stream_reader import KafkaStreamReader

if TYPE_CHECKING:
    from spark_connector.read.micro_batches import Document

__all__ = ["LimitedStreamReader"]


class LimitedStreamReader(KafkaStreamReader, SupportsTriggerAvailableNow):
    """A stream reader with admission control."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit by our options. Spark can hand back only its own kinds, one at a time; see `latestOffset`."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        if self._options.byte_limits.per_trigger is not None:
            return ReadMaxBytes(self._options.byte_limits.per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Called before any offset is known; the target is set at the first `latestOffset` (SPARK-53560)."""
        self._driver().freeze()

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        """The end of the next batch, never None; `start` itself when there is none.

        `ReadAllAvailable` overrules the options (`Trigger.Once`); any other limit means them, with the cap Spark says.
        """
        cap = byte_cap = at_least = None
        if not isinstance(limit, ReadAllAvailable):
            cap = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
            byte_cap = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.byte_limits.per_trigger
            at_least = self._options.min_offsets_per_trigger
        return self._driver().next_end(start, cap=cap, byte_cap=byte_cap, at_least=at_least)

    def reportLatestOffset(self) -> Document | None:  # noqa: N802
        """What the brokers had at the last look: `sources[].latestOffset` in the progress, to compute lag from."""
        return self._driver().latest_known()
