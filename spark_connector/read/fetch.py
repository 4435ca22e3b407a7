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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

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
from spark_connector.read.arrow_batches import MAX_BYTES, MAX_ROWS, BatchMaker, RowFilter, arrow_schema
from spark_connector.read.planning import OffsetRange
from spark_connector.worker_clients import keep_imports, worker_clients

_PLAIN_BYTES = 32 << 20
"""Most decompressed bytes of one decode: bounds memory for batches with a high compression ratio."""


def read_range(options: SourceOptions, planned: OffsetRange, topic_id: str | None = None) -> Iterator[pa.RecordBatch]:
    """The records of `planned`, in order. Raises DataLoss, CorruptBatch, BrokerError, RequestTimedOut.

    `topic_id`: the id of the topic when the range was planned. A topic of the same name with another id is not read.
    """
    settings = options.client
    cluster = worker_clients().cluster(settings)
    tp, position, until = planned.tp, planned.from_offset, planned.until_offset
    maker = batch_maker(options, cluster, tp)
    try:
        if topic_id is not None and not has_topic_id(topic_id, tp.topic, cluster):
            raise UnknownTopic(f"topic {tp.topic!r} was deleted and recreated since the batch was planned")
        while position < until:
            try:
                with worker_clients().fetcher(settings, tp) as fetcher:
                    for fetched in FetchStream(fetcher, position, until, stall_s=options.poll_timeout_ms / 1000):
                        yield from decode_fetched(maker, planned, fetched, position, check_crcs=settings.check_crcs)
                        position = fetched.next_offset
            except BrokerError as error:
                if error.code is not ErrorCode.offset_out_of_range:
                    raise
                position = _first_left(options, cluster, planned, position)
    except UnknownTopic as error:
        _report(options, planned, position, error.message, until)


def decode_fetched(
    maker: BatchMaker, planned: OffsetRange, fetched: Fetched, position: int, *, check_crcs: bool
) -> Iterator[pa.RecordBatch]:
    """The records of one fetch that are in the range, a bounded number of bytes at a time.

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
                high=planned.until_offset,
                check_crcs=check_crcs,
                aborted=fetched.aborted,
                max_bytes=_PLAIN_BYTES,
            )
        except CorruptBatch as error:
            raise CorruptBatch(f"{planned.tp} at or after offset {low}, reading {planned}: {error.message}") from error
        if columns.num_rows:
            yield from maker.batches(columns, planned.tp)
        if columns.next_offset <= low:
            return  # the rest of this fetch lies after the range
        low = columns.next_offset


def batch_maker(options: SourceOptions, cluster: Cluster, tp: TopicPartition) -> BatchMaker:
    """Makes the Arrow batches of this read from decoded columns. One per task. Raises ConfigError."""
    formats, decoder = options.formats, None
    if formats.columns:
        from spark_connector.formats.record_decoder import RecordDecoder

        bad_records = None
        if formats.bad_records_topic is not None:
            from spark_connector.formats.bad_records import BadRecordsTopic

            bad_records = BadRecordsTopic(cluster, formats.bad_records_topic)
        decoder = RecordDecoder(formats, arrow_schema(options.columns), tp, bad_records)
    return BatchMaker(options.columns, RowFilter(options.filters), decoder)


def _first_left(options: SourceOptions, cluster: Cluster, planned: OffsetRange, position: int) -> int:
    """The broker does not have `position`: report the loss, and return where to continue."""
    tp, until = planned.tp, planned.until_offset
    earliest, latest = (list_offsets(cluster, {tp: place})[tp].offset for place in (EARLIEST, LATEST))
    resume_at = min(max(earliest, position), until) if position < latest else until
    _report(options, planned, position, f"The broker has offsets [{earliest}, {latest}) of it.", resume_at)
    return resume_at


def _report(options: SourceOptions, planned: OffsetRange, position: int, why: str, resume_at: int) -> None:
    skipped = "" if options.fail_on_data_loss else f" Offsets skipped: {resume_at - position}."
    reason = (
        f"Could not read records in offset [{position}, {planned.until_offset}) for topic partition {planned.tp} "
        f"(topic '{planned.tp.topic}', partition {planned.tp.partition}). {why}{skipped}"
    )
    report_data_loss("COULD_NOT_READ_OFFSET_RANGE", reason, fail=options.fail_on_data_loss)


def has_topic_id(topic_id: str, topic: str, cluster: Cluster) -> bool:
    """Whether `topic` still has that id. Cached or a broker's metadata may be older than the plan, so it is
    refreshed."""

    def has_id(found: TopicMetadata) -> bool:
        return found.topic_id is None or str(found.topic_id) == topic_id

    return has_id(cluster.topic(topic, has_id))


logger = logging.getLogger("pykafka.spark")

_PREFETCHED_BYTES = 1 << 20
"""Most bytes fetched from one leader, and a quarter of the most bytes decompressed. Tasks read larger batches."""

TopicIds = Mapping[str, str]


def read_ranges(options: SourceOptions, planned: Sequence[OffsetRange], ids: TopicIds) -> Iterator[pa.RecordBatch]:
    """The records of all ranges, in order within each range. Raises as `read_range`.

    `ids`: topic ids by name when the ranges were planned. A topic of the same name with another id is not read.
    """
    keep_imports()
    left = list(planned)
    if len(left) > 1:
        yield from _joined(_read_together(options, left, ids))
    for one in left:
        yield from read_range(options, one, ids.get(one.tp.topic))


def prefetch(options: SourceOptions, planned: Sequence[OffsetRange], ids: TopicIds) -> list[pa.RecordBatch] | None:
    """The records of all ranges, if one response of each leader holds them; else None: tasks read them and raise."""
    cluster = worker_clients().cluster(options.client)
    try:
        cluster.reach()  # only tasks wait for a cluster
        found = _fetch(options, cluster, planned, ids, _PREFETCHED_BYTES)
        if any(one.tp not in found or found[one.tp].next_offset < one.until_offset for one in planned):
            return None
        rows: list[pa.RecordBatch] = []
        size = 0
        for one in planned:
            for batch in _decode(options, cluster, one, found[one.tp]):
                size += batch.nbytes
                if size > 4 * _PREFETCHED_BYTES:
                    return None
                rows.append(batch)
    except (PykafkaError, OSError) as error:
        logger.debug("Records were not prefetched: %s", error)
        return None
    return list(_join(rows))


def _read_together(options: SourceOptions, left: list[OffsetRange], ids: TopicIds) -> Iterator[pa.RecordBatch]:
    """Repeat joint fetches while they make progress. What they do not bring stays in `left`."""
    cluster = worker_clients().cluster(options.client)
    progress = True
    while left and progress:
        found = _fetch(options, cluster, left, ids, options.client.max_partition_fetch_bytes)
        still: list[OffsetRange] = []
        progress = False
        for one in left:
            fetched = found.pop(one.tp, None)  # a second range of the partition is fetched next time
            if fetched is not None and fetched.next_offset > one.from_offset:
                yield from _decode(options, cluster, one, fetched)
                progress, one = True, replace(one, from_offset=min(fetched.next_offset, one.until_offset))
            if one.size:
                still.append(one)
        left[:] = still


def _fetch(
    options: SourceOptions, cluster: Cluster, ranges: Sequence[OffsetRange], ids: TopicIds, max_bytes: int
) -> dict[TopicPartition, Fetched]:
    """A joint fetch of the first range of each partition whose topic has not been recreated."""
    topics = {topic for topic in {one.tp.topic for one in ranges} if _is_current(topic, ids, cluster)}
    positions: dict[TopicPartition, int] = {}
    for one in ranges:
        if one.tp.topic in topics:
            positions.setdefault(one.tp, one.from_offset)
    return fetch_together(cluster, positions, max_bytes=max_bytes) if positions else {}


def _is_current(topic: str, ids: TopicIds, cluster: Cluster) -> bool:
    try:
        return topic not in ids or has_topic_id(ids[topic], topic, cluster)
    except UnknownTopic:
        return False


def _decode(
    options: SourceOptions, cluster: Cluster, planned: OffsetRange, fetched: Fetched
) -> Iterator[pa.RecordBatch]:
    maker = batch_maker(options, cluster, planned.tp)
    return decode_fetched(maker, planned, fetched, planned.from_offset, check_crcs=options.client.check_crcs)


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
