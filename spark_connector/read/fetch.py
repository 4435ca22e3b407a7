"""Ranges of partitions to Arrow batches: what a Spark task does, and the driver for a small micro-batch.

Several ranges are fetched together, with one request per leader at a time. What this does not bring (records that are
gone, a leader that moved) is read range by range by `read_range`, which waits, retries and reports losses. There the
next fetch is sent while Spark consumes the last, so memory holds two fetches, whatever the size of the range. Gaps from
compaction, transaction markers and aborted transactions are not data loss and are skipped silently.

Records that are gone raise DataLoss (`KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE`) with the range and the offsets that
are left. With `failOnDataLoss=false` a warning is logged, and reading continues at the first offset left. Bytes that
are not a record batch raise CorruptBatch with partition and offset in either case.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata, UnknownTopic
from broker.client.fetcher import Fetched, FetchStream, fetch_together
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.errors import BrokerError, CorruptBatch, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import decode_columns
from spark_connector.errors import report_data_loss
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.arrow_batches import MAX_BYTES, MAX_ROWS, BatchMaker, arrow_schema
from spark_connector.read.planning import OffsetRange
from spark_connector.worker_clients import keep_imports, worker_clients

if TYPE_CHECKING:
    from spark_connector.formats.record_decoder import BadRecords  # fastavro behind it
    from spark_connector.formats.value_format import UnfitRows
    from spark_connector.read.archive_plan import StoredRange  # the archive's files behind it
    from spark_connector.read.row_filter import RowFilter  # pyarrow.compute behind it

logger = logging.getLogger("pykafka.spark")

_PLAIN_BYTES = 32 << 20
"""Most decompressed bytes of one decode: bounds memory for batches with a high compression ratio."""

_PREFETCHED_BYTES = 1 << 20
"""Most bytes fetched from one leader, and a quarter of the most bytes decompressed. Tasks read larger batches."""

TopicIds = Mapping[str, str]
"""Topic ids by name when the ranges were planned. A topic of the same name with another id is not read."""


def read_range(options: SourceOptions, planned: OffsetRange, topic_id: str | None = None) -> Iterator[pa.RecordBatch]:
    """The records of `planned`, in order. Raises DataLoss, CorruptBatch, BrokerError, RequestTimedOut."""
    return _Reading(options, {} if topic_id is None else {planned.tp.topic: topic_id}).one(planned)


def read_ranges(
    options: SourceOptions,
    planned: Sequence[OffsetRange],
    ids: TopicIds,
    bad_records: BadRecords | None = None,
    unfit: UnfitRows | None = None,
) -> Generator[pa.RecordBatch]:
    """The records of all ranges, in order within each range. Raises as `read_range`.

    `bad_records` takes the records that cannot be decoded, beside the topic that the options may name, and those that
    are `unfit`.
    """
    keep_imports()
    reading = _Reading(options, ids, bad_records=bad_records, unfit=unfit)
    in_archive, left = _by_place(options, planned)
    for stored in in_archive:
        yield from reading.stored(stored)
    if len(left) > 1:
        yield from _joined(reading.together(left))
    for one in left:
        yield from reading.one(one)


def _by_place(options: SourceOptions, planned: Sequence[OffsetRange]) -> tuple[list[StoredRange], list[OffsetRange]]:
    """The ranges that the archive's store has, which only a plan with an archive has, and those of brokers."""
    if options.archive is None:
        return [], [*planned]
    from spark_connector.read.archive_plan import StoredRange

    stored = [one for one in planned if isinstance(one, StoredRange)]
    return stored, [one for one in planned if not isinstance(one, StoredRange)]


def prefetch(
    options: SourceOptions,
    planned: Sequence[OffsetRange],
    ids: TopicIds,
    cluster: Cluster | None = None,
    bad_records: BadRecords | None = None,
    unfit: UnfitRows | None = None,
) -> list[pa.RecordBatch] | None:
    """The records of all ranges, if one response of each leader holds them; else None: tasks read them and raise.
    What is in the store of an archive tasks read, too.

    `cluster`: instead of the client that a worker process keeps. `bad_records` and `unfit` as in `read_ranges`;
    `bad_records` may also have got some if the result is None.
    """
    if _by_place(options, planned)[0]:
        return None
    try:
        rows = _Reading(options, ids, cluster, bad_records, unfit).at_once(planned)
    except (PykafkaError, OSError) as error:
        logger.debug("Records were not prefetched: %s", error)
        return None
    return None if rows is None else list(_join(rows))


def read_at_once(options: SourceOptions, planned: Sequence[OffsetRange]) -> dict[OffsetRange, list[pa.RecordBatch]]:
    """The records of those ranges of which one response of each leader holds all; the others are for `read_range`,
    which waits, retries and reports losses. Raises CorruptBatch, ConfigError."""
    return _Reading(options, {}).those_at_once(planned)


class _Reading:
    """Reads ranges with the options of one read."""

    def __init__(
        self,
        options: SourceOptions,
        ids: TopicIds,
        cluster: Cluster | None = None,
        bad_records: BadRecords | None = None,
        unfit: UnfitRows | None = None,
    ) -> None:
        self._bad_records = bad_records
        self._unfit = unfit
        self._options = options
        self._ids = ids
        self._cluster = cluster or worker_clients().cluster(options.client)

    def one(self, planned: OffsetRange) -> Iterator[pa.RecordBatch]:
        settings = self._options.client
        tp, position, until = planned.tp, planned.from_offset, planned.until_offset
        maker = self._maker(tp)
        try:
            if not self._has_planned_id(tp.topic):
                raise UnknownTopic(f"topic {tp.topic!r} was deleted and recreated since the batch was planned")
            while position < until:
                try:
                    with worker_clients().fetcher(settings, tp, self._ids.get(tp.topic)) as fetcher:
                        stall_s = self._options.poll_timeout_ms / 1000
                        checked = settings.check_crcs
                        for fetched in FetchStream(fetcher, position, until, stall_s=stall_s):
                            own = maker, planned, fetched, position
                            yield from decode_fetched(*own, check_crcs=checked, consume=True)
                            position = fetched.next_offset
                except BrokerError as error:
                    if error.code is not ErrorCode.offset_out_of_range:
                        raise
                    position = self._first_left(planned, position)
        except UnknownTopic as error:
            self._report(planned, position, error.message, until)

    def stored(self, planned: StoredRange) -> Iterator[pa.RecordBatch]:
        """From the store of the archive. What is not there any more a broker is asked for, if there is one."""
        from spark_connector.read.archive_reader import StoredBatches

        settings, archive = self._options.client, self._options.archive
        assert archive is not None, "only a plan with an archive has stored ranges"
        maker, committed = self._maker(planned.tp), settings.isolation_level == "read_committed"
        left, position = planned, planned.from_offset
        while left.size:
            batches = StoredBatches(archive, left, committed=committed)
            try:
                for fetched in batches:
                    yield from decode_fetched(maker, planned, fetched, position, check_crcs=settings.check_crcs)
                    position = max(position, min(fetched.next_offset, planned.until_offset))
                return
            except FileNotFoundError as error:
                if not archive.only:
                    logger.warning("%s is gone from the archive from offset %d on: %s", planned, position, error)
                    yield from self.one(OffsetRange(planned.tp, position, planned.until_offset))
                    return
                left = batches.left(position)
                self._report(planned, position, f"The archive no longer has {error}.", left.from_offset)
                position = left.from_offset

    def together(self, left: list[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Repeat joint fetches while they make progress. What they do not bring stays in `left`."""
        progress = True
        while left and progress:
            found = self._fetch(left, self._options.client.max_partition_fetch_bytes)
            still: list[OffsetRange] = []
            progress = False
            for one in left:
                fetched = found.pop(one.tp, None)  # a second range of the partition is fetched next time
                if fetched is not None and fetched.next_offset > one.from_offset:
                    yield from self._decode(one, fetched, consume=True)
                    progress, one = True, replace(one, from_offset=min(fetched.next_offset, one.until_offset))
                if one.size:
                    still.append(one)
            left[:] = still

    def at_once(self, planned: Sequence[OffsetRange]) -> list[pa.RecordBatch] | None:
        """All rows by one response of each leader; None if they are more."""
        self._cluster.reach()  # only tasks wait for a cluster
        found = self._fetch(planned, _PREFETCHED_BYTES)
        if any(one.tp not in found or found[one.tp].next_offset < one.until_offset for one in planned):
            return None
        rows: list[pa.RecordBatch] = []
        size = 0
        for one in planned:
            for batch in self._decode(one, found[one.tp]):
                size += batch.nbytes
                if size > 4 * _PREFETCHED_BYTES:
                    return None
                rows.append(batch)
        return rows

    def those_at_once(self, planned: Sequence[OffsetRange]) -> dict[OffsetRange, list[pa.RecordBatch]]:
        found = self._fetch(planned, _PREFETCHED_BYTES)
        whole = (one for one in planned if one.tp in found and found[one.tp].next_offset >= one.until_offset)
        return {one: list(self._decode(one, found[one.tp])) for one in whole}

    def _fetch(self, ranges: Sequence[OffsetRange], max_bytes: int) -> dict[TopicPartition, Fetched]:
        """A joint fetch of the first range of each partition whose topic has not been recreated."""
        topics = {topic for topic in {one.tp.topic for one in ranges} if self._is_current(topic)}
        positions: dict[TopicPartition, int] = {}
        for one in ranges:
            if one.tp.topic in topics:
                positions.setdefault(one.tp, one.from_offset)
        return fetch_together(self._cluster, positions, max_bytes=max_bytes) if positions else {}

    def _is_current(self, topic: str) -> bool:
        try:
            return self._has_planned_id(topic)
        except UnknownTopic:
            return False

    def _has_planned_id(self, topic: str) -> bool:
        """Cached or a broker's metadata may be older than the plan, so they are refreshed. Raises UnknownTopic."""
        planned = self._ids.get(topic)

        def has_id(found: TopicMetadata) -> bool:
            return found.topic_id is None or str(found.topic_id) == planned

        return planned is None or has_id(self._cluster.topic(topic, has_id))

    def _decode(self, planned: OffsetRange, fetched: Fetched, *, consume: bool = False) -> Iterator[pa.RecordBatch]:
        which = self._maker(planned.tp), planned, fetched, planned.from_offset
        return decode_fetched(*which, check_crcs=self._options.client.check_crcs, consume=consume)

    def _maker(self, tp: TopicPartition) -> BatchMaker:
        """Makes the Arrow batches of this read from decoded columns. Raises ConfigError."""
        formats, decoder = self._options.formats, None
        if formats.columns:
            from spark_connector.formats.record_decoder import RecordDecoder

            bad_records = self._bad_records
            if formats.bad_records_topic is not None:
                from spark_connector.formats.bad_records import BadRecordsTopic

                bad_records = BadRecordsTopic(self._cluster, formats.bad_records_topic).beside(bad_records)
            decoder = RecordDecoder(formats, arrow_schema(self._options.columns), tp, bad_records, self._unfit)
        return BatchMaker(self._options.columns, self._row_filter(), decoder)

    def _row_filter(self) -> RowFilter | None:
        if not self._options.filters.of_rows:
            return None
        from spark_connector.read.row_filter import RowFilter

        return RowFilter(self._options.filters)

    def _first_left(self, planned: OffsetRange, position: int) -> int:
        """The broker does not have `position`: report the loss, and return where to continue."""
        tp, until = planned.tp, planned.until_offset
        earliest, latest = (list_offsets(self._cluster, {tp: place})[tp].offset for place in (EARLIEST, LATEST))
        resume_at = min(max(earliest, position), until) if position < latest else until
        self._report(planned, position, f"The broker has offsets [{earliest}, {latest}) of it.", resume_at)
        return resume_at

    def _report(self, planned: OffsetRange, position: int, why: str, resume_at: int) -> None:
        fail = self._options.fail_on_data_loss
        skipped = "" if fail else f" Offsets skipped: {resume_at - position}."
        reason = (
            f"Could not read records in offset [{position}, {planned.until_offset}) for topic partition {planned.tp} "
            f"(topic '{planned.tp.topic}', partition {planned.tp.partition}). {why}{skipped}"
        )
        report_data_loss("COULD_NOT_READ_OFFSET_RANGE", reason, fail=fail)


def decode_fetched(
    maker: BatchMaker,
    planned: OffsetRange,
    fetched: Fetched,
    position: int,
    *,
    check_crcs: bool,
    consume: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of one fetch that are in the range, a bounded number of bytes at a time. `consume`: nobody else reads
    it, so that the values may stay where they are.

    The decoder reads every transaction marker of the fetch, even before `low`, so in the middle of a fetch it knows
    which transactions are aborted.
    """
    low, end = position, min(fetched.next_offset, planned.until_offset)
    while low < end:
        try:
            columns = decode_columns(
                fetched.records,
                fields=maker.fields,
                low=low,
                high=end,  # of a segment that a truncation has cut, the batches reach further
                check_crcs=check_crcs,
                aborted=fetched.aborted,
                max_bytes=_PLAIN_BYTES,
                consume=consume,
            )
        except CorruptBatch as error:
            raise CorruptBatch(f"{planned.tp} at or after offset {low}, reading {planned}: {error.message}") from error
        if columns.num_rows:
            yield from maker.batches(columns, planned.tp)
        if columns.exhausted or columns.next_offset <= low:
            return  # the rest of this fetch lies after the range
        low = columns.next_offset


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if rows + batch.num_rows > MAX_ROWS or size + batch.nbytes > MAX_BYTES:
            yield from _join(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield from _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows in one batch, because every batch costs a message to the JVM."""
    if len(batches) > 1:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
    else:
        yield from batches
