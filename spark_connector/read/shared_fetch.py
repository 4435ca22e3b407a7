"""Ranges of several partitions to Arrow: what a task does that small ranges share, and the driver for a tiny batch.

Called by the readers. The ranges are fetched together, an answer from each leader at a time; what does not come so
(records that are gone, a leader that moved) is left to fetch.py, which reads one range, waits, tries again and tells of
losses. Both decode with the same code.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from broker.client.cluster import Cluster
from broker.client.fetcher import Fetched
from broker.client.joint_fetch import fetch_together
from broker.client.metadata import UnknownTopic
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.arrow import MAX_BYTES, MAX_ROWS
from spark_connector.read.fetch import batch_maker, decode_fetched, is_still, read_range
from spark_connector.read.planning import OffsetRange
from spark_connector.worker_clients import keep_imports, worker_clients

__all__ = ["prefetch", "read_ranges"]

logger = logging.getLogger("pykafka.spark")

_PREFETCHED_BYTES = 1 << 20
"""As fetched from one leader, and four times as much decompressed: more is better read by tasks."""

TopicIds = Mapping[str, str]


def read_ranges(options: SourceOptions, planned: Sequence[OffsetRange], ids: TopicIds) -> Iterator[pa.RecordBatch]:
    """The records of all ranges, those of each in order. Raises as `read_range`.

    `ids`: of the topics that the ranges were planned for; records of others of these names are not read.
    """
    keep_imports()
    left = list(planned)
    if len(left) > 1:
        left = yield from _joined(_read_together(options, left, ids))
    for one in left:
        yield from read_range(options, one, ids.get(one.tp.topic))


def prefetch(options: SourceOptions, planned: Sequence[OffsetRange], ids: TopicIds) -> list[pa.RecordBatch] | None:
    """The records of all ranges if they come in one answer from each leader; else None: tasks will do, and tell why."""
    cluster = worker_clients().cluster(options.client)
    try:
        cluster.reach()  # to wait is left to tasks
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


def _read_together(
    options: SourceOptions, planned: Sequence[OffsetRange], ids: TopicIds
) -> Generator[pa.RecordBatch, None, list[OffsetRange]]:
    """Round after round of joint fetches, while they bring anything; gives back what they did not bring."""
    cluster = worker_clients().cluster(options.client)
    left, moved = list(planned), True
    while left and moved:
        found = _fetch(options, cluster, left, ids, options.client.max_partition_fetch_bytes)
        still: list[OffsetRange] = []
        moved = False
        for one in left:
            fetched = found.pop(one.tp, None)  # of two ranges of a partition, the second comes in another round
            if fetched is not None and fetched.next_offset > one.from_offset:
                yield from _decode(options, cluster, one, fetched)
                moved, one = True, replace(one, from_offset=min(fetched.next_offset, one.until_offset))
            if one.size:
                still.append(one)
        left = still
    return left


def _fetch(
    options: SourceOptions, cluster: Cluster, ranges: Sequence[OffsetRange], ids: TopicIds, max_bytes: int
) -> dict[TopicPartition, Fetched]:
    """A joint fetch of the ranges whose topics are still those that were planned for; of the first of a partition."""
    topics = {topic for topic in {one.tp.topic for one in ranges} if _is_there(topic, ids, cluster)}
    positions: dict[TopicPartition, int] = {}
    for one in ranges:
        if one.tp.topic in topics:
            positions.setdefault(one.tp, one.from_offset)
    return fetch_together(cluster, positions, max_bytes=max_bytes) if positions else {}


def _is_there(topic: str, ids: TopicIds, cluster: Cluster) -> bool:
    try:
        return topic not in ids or is_still(ids[topic], topic, cluster)
    except UnknownTopic:
        return False


def _decode(
    options: SourceOptions, cluster: Cluster, planned: OffsetRange, fetched: Fetched
) -> Iterator[pa.RecordBatch]:
    maker = batch_maker(options, cluster, planned.tp)
    return decode_fetched(maker, planned, fetched, planned.from_offset, check_crcs=options.client.check_crcs)


def _joined(
    batches: Generator[pa.RecordBatch, None, list[OffsetRange]],
) -> Generator[pa.RecordBatch, None, list[OffsetRange]]:
    """The same rows in fewer batches; what `batches` gives back."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            yield from _join(waiting)
            left: list[OffsetRange] = end.value
            return left
        if rows + batch.num_rows > MAX_ROWS or size + batch.nbytes > MAX_BYTES:
            yield from _join(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes


def _join(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One batch of them all: each costs a message to the JVM."""
    if len(batches) > 1:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
    else:
        yield from batches
