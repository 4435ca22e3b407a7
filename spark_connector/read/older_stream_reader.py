"""The end of a batch as Spark 4.0 and 4.1 ask for it: `latestOffset()`, without a start and without a limit.

So the reader remembers where the query is. A process that goes on from a checkpoint is told where that ends before all
else, by an empty range to plan (`AcceptsLatestSeenOffset`; observed on 4.0.5 and 4.1.4); a new query asks for the end
even before it asks for the start. From then on every end given is the end of the next batch: Spark writes it to the
checkpoint and runs that batch before it asks again, even where the batch is never planned (its rows are not wanted).

Limits are kept here, since the engine knows none. `Trigger.AvailableNow` (as `Trigger.Once`) runs one batch with a
Python source on these versions, so a limit ends such a run early; no reader can tell which trigger it is under. With
`spark.sql.streaming.triggerAvailableNowWrapper.enabled` Spark asks before it tells where the checkpoint ends, and asks
twice: what a restarted query is given then must not be read, and what is not planned yet is not finished.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.version import __version__ as pyspark_version

from spark_connector.errors import ConnectorError
from spark_connector.read.offsets import StreamOffset
from spark_connector.read.stream_reader import KafkaStreamReader

if TYPE_CHECKING:
    from spark_connector.options.read_options import SourceOptions
    from spark_connector.read.micro_batches import Document

__all__ = ["OlderStreamReader"]

logger = logging.getLogger("pykafka.spark")


class OlderStreamReader(KafkaStreamReader):
    """A stream reader without admission control."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._reached: Document | None = None  # where the next batch begins
        self._asked = False
        self._planned = False  # has the batch that ends there begun?
        self._warned = False

    def latestOffset(self) -> Document:  # type: ignore[override]  # noqa: N802
        """The end of the next batch, by the limits of the options; where the query is, when there is none."""
        start = self.initialOffset() if self._reached is None else self._reached
        end = self._driver().next_end(
            start,
            cap=self._options.max_offsets_per_trigger,
            byte_cap=self._options.byte_limits.per_trigger,
            at_least=self._options.min_offsets_per_trigger,
            finished=self._planned,
            tell_latest=True,
        )
        if "latest" in end:
            self._warn_of_single_batches()
        self._planned &= end == start
        self._reached, self._asked = end, True
        return end

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of the batch from `start` to `end`. Raises ConnectorError when Spark tells a restarted query where
        it is after it has asked for an end, which was counted from the query's first offset, and for a checkpoint that
        this source did not write."""
        if start == end != self._reached and self._asked:
            raise ConnectorError(
                "PYKAFKA_START_UNKNOWN",
                "Spark asked for the end of a batch before it told where the checkpoint ends, which "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=true makes it do: unset it "
                "(Trigger.AvailableNow is then one batch), or use PySpark 4.2 or newer, which needs it no more; "
                f"this is {pyspark_version}",
            )
        StreamOffset.from_json(end)  # a checkpoint that is not ours ends the query here
        self._reached, self._planned = end, True
        return super().partitions(start, end)

    def _warn_of_single_batches(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "A limit of the options ends this batch before the end of the topics. With PySpark %s a run under "
                "Trigger.AvailableNow or Trigger.Once is one batch, and so ends here; other triggers go on. "
                "PySpark 4.2 runs as many batches as it takes.",
                pyspark_version,
            )
