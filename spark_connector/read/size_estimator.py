"""Bytes per offset of partitions, estimated without reading them: for limits in bytes, and for ranges to share tasks.

Called on the driver through offset_reader.py. What a partition's log takes on disk (DescribeLogDirs, KIP-113), divided
by its offsets, first to last: compressed bytes, as they are fetched. Brokers are asked at most once a minute, and at
once for a topic they were not asked about. Where they do not tell (it takes DESCRIBE on the cluster), the first batches
of the backlog are fetched and measured: those of the longest backlogs, whose mean stands for the rest.

An average of the whole log is wrong for a stretch of it to the degree in which the sizes of records drift. Offsets
without a record (compaction, transaction markers) count, so a record may take more than is said here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetcher
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.errors import BrokerError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches

__all__ = ["RecordBytes"]

logger = logging.getLogger("pykafka.spark")

_REFRESH_S = 60.0
_MOST_SAMPLES = 16
_SAMPLE_BYTES = 64 << 10
_UNKNOWN = 1024
"""What a record is taken for where nothing could be found out: nothing could be fetched there either."""


class RecordBytes:
    """Estimates for one cluster, kept for a while. Not thread-safe."""

    def __init__(
        self, cluster: Cluster, monotonic: Callable[[], float] = time.monotonic, *, only_to_share: bool = False
    ) -> None:
        """`only_to_share`: nobody has set a limit in bytes, so a worse estimate is nothing to warn of."""
        self._cluster = cluster
        self._monotonic = monotonic
        self._known: dict[TopicPartition, int] = {}
        self._asked: dict[str, float] = {}
        self._warned = only_to_share

    def estimate(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Bytes per offset, at least 1, of each partition that has something between `start` and `end`."""
        backlog = {tp: end[tp] - offset for tp, offset in start.items() if end.get(tp, 0) > offset}
        now = self._monotonic()
        topics = {tp.topic for tp in backlog}
        due = {topic for topic in topics if now - self._asked.get(topic, -math.inf) >= _REFRESH_S}
        due |= {tp.topic for tp in backlog if tp not in self._known}
        if due:
            self._known = {tp: size for tp, size in self._known.items() if tp.topic not in due}
            self._known |= self._from_log_dirs(due)
            self._asked |= dict.fromkeys(due, now)
        missing = sorted((tp for tp in backlog if tp not in self._known), key=lambda tp: -backlog[tp])
        self._known |= self._sampled({tp: start[tp] for tp in missing[:_MOST_SAMPLES]})
        self._known |= dict.fromkeys((tp for tp in missing if tp not in self._known), self._mean(topics))
        return {tp: self._known[tp] for tp in backlog}

    def _from_log_dirs(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        sizes: dict[TopicPartition, int] = {}
        try:
            self._cluster.reach()
            for directory in Admin(self._cluster).describe_log_dirs(topics=sorted(topics)):
                for tp, replica in directory.partitions.items():
                    if not replica.is_future:
                        sizes[tp] = max(sizes.get(tp, 0), replica.size)  # followers may lag, none has more
            first, last = (
                list_offsets(self._cluster, dict.fromkeys(sizes, place), isolation_level="read_uncommitted")
                for place in (EARLIEST, LATEST)
            )
        except PykafkaError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "Brokers do not tell the sizes of %s, samples are fetched: %s", sorted(topics), error)
            self._warned = True
            return {}
        counts = {tp: last[tp].offset - first[tp].offset for tp in sizes}
        return {tp: max(-(-size // counts[tp]), 1) for tp, size in sizes.items() if size > 0 and counts[tp] > 0}

    def _sampled(self, start: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = {}
        for tp, offset in start.items():
            try:
                self._cluster.reach()
                with Fetcher(self._cluster, tp, max_bytes=_SAMPLE_BYTES, max_wait_ms=0) as fetcher:
                    headers = [header for _, header in walk_batches(fetcher.fetch(offset).records)]
            except BrokerError:
                continue  # deleted up to here or altogether: reading will tell
            except PykafkaError as error:
                logger.warning("No sample could be fetched, sizes are guessed: %s", error)
                break
            if headers:
                count = headers[-1].next_offset - headers[0].base_offset
                found[tp] = max(-(-sum(header.size for header in headers) // count), 1)
        return found

    def _mean(self, topics: Collection[str]) -> int:
        sizes = [size for tp, size in self._known.items() if tp.topic in topics]
        return -(-sum(sizes) // len(sizes)) if sizes else _UNKNOWN
