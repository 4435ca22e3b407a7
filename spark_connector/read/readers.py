"""The readers that Spark calls: a `DataSourceReader` for batches, a `DataSourceStreamReader` for streams.

`partitions` runs on the driver, `read` in Python workers on the executors. A reader is pickled in between, so it holds
options only: sockets are opened when they are first needed.

Calls of a stream (observed on 4.0.5 and 4.3.0): one long-lived Python process per query calls `initialOffset` (twice),
`latestOffset`, `partitions` and `commit`, and is killed at the end without `stop`. Another process pickles a second
instance for the `read` of the executors. So only the offsets carry state from one process to another. `commit` is
called one batch late, and never for the last batch of an `availableNow` run. The end of that batch is published when
Spark asks for the next one, because `latestOffset` begins at this end. How Spark asks for the end of a batch depends on
its version: see LimitedStreamReader and OlderStreamReader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.version import __version__ as pyspark_version

from broker.errors import PykafkaError
from spark_connector.entry_point import entry_point
from spark_connector.errors import ConnectorError
from spark_connector.options.option_table import TOKEN_AUTO
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.plan_note import tell_plan
from spark_connector.read.planning import OffsetRange, batch_ranges, keep_offsets
from spark_connector.read.spark_private import hand_over, takes_rows
from spark_connector.read.stream_offset import Document, batch_of
from spark_connector.shipped import shipped
from spark_connector.spark_versions import ADMISSION_CONTROL

if ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.client.client_settings import ClientSettings
    from spark_connector.read.micro_batches import MicroBatches

logger = logging.getLogger("pykafka.spark")


class KafkaInputPartition(InputPartition):
    """The work of one task: `value` is its ranges, `topic_ids` the ids of the topics they were planned for."""

    value: tuple[OffsetRange, ...]

    def __init__(
        self, value: Sequence[OffsetRange], topic_ids: Mapping[str, str], client: ClientSettings | None = None
    ) -> None:
        """`client`: how the task logs in, if not as its options say."""
        super().__init__(tuple(value))
        self.client = client
        topics = {one.tp.topic for one in value}
        self.topic_ids = {topic: topic_ids[topic] for topic in topics if topic in topic_ids}


class KafkaBatchReader(DataSourceReader):
    """One batch query.

    Spark asks for its partitions once per loaded DataFrame and keeps the answer, so every action on that DataFrame
    reads the same offsets. (Spark's own source looks them up again for each action, and Spark 4.0 asks ours again.)
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(KafkaBatchReader, sent_to_tasks(self._options))

    @entry_point
    def partitions(self) -> list[InputPartition]:
        """The tasks; looks up start and end once. Raises ConnectorError, ConfigError and the client's errors."""
        from spark_connector.read.offset_readers import open_offset_reader  # for the driver only; tasks do not load it

        with closing(open_offset_reader(self._options)) as reader:
            bounds = reader.batch_bounds()
            whole = keep_offsets(batch_ranges(bounds.start, bounds.end), self._options.filters)
            tell_plan(whole)
            tasks = reader.tasks(reader.split(whole, bounds.topic_ids))
        return input_partitions(self._options, tasks, bounds.topic_ids)

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


def input_partitions(
    options: SourceOptions, tasks: Sequence[Sequence[OffsetRange]], topic_ids: Mapping[str, str]
) -> list[InputPartition]:
    """The work of each task, with its login."""
    client = None
    if tasks and options.delegation_token == TOKEN_AUTO:
        from spark_connector.delegation import executors_settings  # for the driver only

        client = executors_settings(options.client)
    return [KafkaInputPartition(task, topic_ids, client) for task in tasks]


def sent_to_tasks(options: SourceOptions) -> SourceOptions:
    """What a pickle for tasks may hold."""
    if options.delegation_token != TOKEN_AUTO:
        return options
    from spark_connector.delegation import without_secrets  # for the driver only

    return without_secrets(options)


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a task, ordered by offset within each partition.

    None for the placeholder that Spark makes when there are no partitions.
    """
    if not isinstance(partition, KafkaInputPartition):
        return iter(())
    from spark_connector.read.fetch import read_ranges  # for executors only; planning does not load it

    options = options if partition.client is None else replace(options, client=partition.client)
    batches = read_ranges(options, partition.value, partition.topic_ids)
    if not options.formats.columns and not options.filters.of_rows:
        return batches  # pyarrow converts no value
    from spark_connector.pandas_later import each_without_pandas

    return each_without_pandas(batches)


class KafkaStreamReader(DataSourceStreamReader):
    """One streaming query; method names are PySpark's. Subclasses add `latestOffset` as each Spark version calls it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._batches: MicroBatches | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(KafkaStreamReader, sent_to_tasks(self._options))  # the options, no sockets and no rows

    @entry_point
    def initialOffset(self) -> Document:  # noqa: N802
        """Where a query without a checkpoint starts."""
        return self._driver().initial()

    @entry_point
    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of the batch from `start` to `end`.

        A small batch is read here: its rows go to Spark with a single task, or without any task if there are no rows.
        """
        return self._tasks(start, end)

    def _tasks(self, start: Document, end: Document) -> list[InputPartition]:
        driver = self._driver()
        plan = driver.plan(start, end)
        if takes_rows(self) and driver.fits_one_task(plan):
            from spark_connector.read.fetch import prefetch

            rows = prefetch(self._options, plan.ranges, plan.topic_ids)
            if rows is not None:
                if not rows:
                    return []
                hand_over(self, rows)
                return [KafkaInputPartition(plan.ranges, plan.topic_ids)]
        return input_partitions(self._options, driver.tasks(plan), plan.topic_ids)

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    @entry_point
    def commit(self, end: Document) -> None:
        """Spark has finished everything before `end`: publish it to the offset store, if there is one."""
        self._driver().committed(end)

    def stop(self) -> None:
        """Close connections. Spark calls it only after an error."""
        if self._batches is not None:
            self._batches.close()

    def _driver(self) -> MicroBatches:
        if self._batches is None:
            from spark_connector.read.micro_batches import MicroBatches  # for the driver only; tasks do not load it

            self._batches = MicroBatches(self._options)
        return self._batches


class RefusedStreamReader(DataSourceStreamReader):
    """Raises what is wrong with a query's options at the first question.

    If `streamReader` itself raises, PySpark stops the reader that it has not got, and only that error is seen.
    """

    def __init__(self, error: PykafkaError) -> None:
        self._error = error

    @entry_point
    def initialOffset(self) -> Document:  # noqa: N802
        raise self._error

    @entry_point
    def latestOffset(self) -> Document:  # type: ignore[override]  # noqa: N802
        raise self._error

    @entry_point
    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        raise self._error

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class OlderStreamReader(KafkaStreamReader):
    """Spark 4.0 and 4.1 call `latestOffset()` without a start and without a limit.

    So the reader remembers the position of the query. A process that resumes from a checkpoint first gets an empty
    range to plan, which tells it where the checkpoint ends (`AcceptsLatestSeenOffset`; observed on 4.0.5 and 4.1.4). A
    new query asks for the end even before the start. From then on every end returned is the end of the next batch:
    Spark writes it to the checkpoint and runs that batch before it asks again, even if the batch is never planned
    because nothing uses its rows.

    The reader applies the limits, because the engine does not. On these versions `Trigger.AvailableNow` and
    `Trigger.Once` run a single batch with a Python source, so a limit ends such a run early. A reader cannot see its
    trigger. With `spark.sql.streaming.triggerAvailableNowWrapper.enabled` Spark asks for an end before it tells where
    the checkpoint ends, and asks twice: an end returned to a restarted query then must not be read, and a batch that is
    not planned yet is not finished.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._reached: Document | None = None  # where the next batch begins
        self._asked = False
        self._planned = False  # whether the batch that ends there was planned
        self._warned = False

    @entry_point
    def latestOffset(self) -> Document:  # type: ignore[override]  # noqa: N802
        """The end of the next batch within the limits of the options; the current position when there is no batch."""
        start = self.initialOffset() if self._reached is None else self._reached
        end = self._driver().next_end(
            start,
            cap=self._options.max_offsets_per_trigger,
            byte_cap=self._options.max_bytes_per_trigger,
            at_least=self._options.min_offsets_per_trigger,
            finished=self._planned,
            add_latest=True,
        )
        if "latest" in end and not self._warned:
            self._warned = True
            logger.warning(
                "A limit of the options ends this batch before the end of the topics. With PySpark %s a run under "
                "Trigger.AvailableNow or Trigger.Once has one batch, so it ends here; other triggers continue. "
                "PySpark 4.2 runs as many batches as needed.",
                pyspark_version,
            )
        self._planned &= end == start
        self._reached, self._asked = end, True
        return end

    @entry_point
    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of the batch from `start` to `end`.

        Raises ConnectorError for a checkpoint that this source did not write, and when Spark tells a restarted query
        its position only after it has asked for an end, which was then counted from the query's first offset.
        """
        if start == end != self._reached and self._asked:
            raise ConnectorError(
                "PYKAFKA_START_UNKNOWN",
                "Spark asked for the end of a batch before it told where the checkpoint ends, because "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled is true: unset it "
                "(Trigger.AvailableNow is then one batch), or use PySpark 4.2 or newer, which does not need it; "
                f"this is {pyspark_version}",
            )
        batch_of(start, end)  # a checkpoint of another source ends the query here
        self._reached, self._planned = end, True
        return super().partitions(start, end)


if ADMISSION_CONTROL:

    class LimitedStreamReader(KafkaStreamReader, SupportsTriggerAvailableNow):
        """Spark 4.2 and newer have admission control: they ask for an end with a start and a limit."""

        @entry_point
        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            """The limit of our options. Spark returns only its own kinds, one at a time; see `latestOffset`."""
            if self._options.max_offsets_per_trigger is not None:
                return ReadMaxRows(self._options.max_offsets_per_trigger)
            if self._options.min_offsets_per_trigger is not None:
                return ReadMinRows(self._options.min_offsets_per_trigger)
            if self._options.max_bytes_per_trigger is not None:
                return ReadMaxBytes(self._options.max_bytes_per_trigger)
            return ReadAllAvailable()

        @entry_point
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """Called before any offset is known; the first `latestOffset` sets the target (SPARK-53560)."""
            self._driver().freeze()

        @entry_point
        def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
            """The end of the next batch, never None; `start` itself when there is no batch.

            `ReadAllAvailable` overrides the options (`Trigger.Once`). With any other limit the options apply, and the
            limit's own number.
            """
            cap = byte_cap = at_least = None
            if not isinstance(limit, ReadAllAvailable):
                cap = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
                byte_cap = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes_per_trigger
                at_least = self._options.min_offsets_per_trigger
            return self._driver().next_end(start, cap=cap, byte_cap=byte_cap, at_least=at_least)

        @entry_point
        def reportLatestOffset(self) -> Document | None:  # noqa: N802
            """The ends of the partitions at the last lookup, for `sources[].latestOffset` in progress reports."""
            return self._driver().latest_known()


def make_reader(options: SourceOptions) -> KafkaStreamReader:
    """The reader for the installed PySpark."""
    return LimitedStreamReader(options) if ADMISSION_CONTROL else OlderStreamReader(options)
