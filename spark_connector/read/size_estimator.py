"""Bytes per offset of partitions, estimated without reading them: for limits in bytes, shared tasks, and lag in bytes.

Called on the driver. The size of a partition's log on disk (DescribeLogDirs, KIP-113) divided by the offsets that are
on this disk gives compressed bytes, as they are fetched; what only an archive has is taken to be alike. Brokers are
asked at most once a minute, and at once for a topic that was not asked for yet. Where they do not answer (it takes
DESCRIBE on the cluster), the first batches of the longest backlogs are fetched and measured, and their mean stands for
the other partitions.

If the sizes of records drift, the average of a whole log is wrong for a part of it. Offsets without a record
(compaction, transaction markers) count, so a record may take more bytes than estimated.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from typing import Protocol

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetcher
from broker.client.partition_offsets import EARLIEST_LOCAL, LATEST, list_offsets
from broker.errors import BrokerError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from spark_connector.offset_store.base import Offsets

logger = logging.getLogger("pykafka.spark")

_REFRESH_S = 60.0
_MOST_SAMPLES = 16
_SAMPLE_BYTES = 64 << 10
_UNKNOWN = 1024
"""The estimate where neither sizes nor samples could be had; records could not be fetched there either."""


class BytesPerOffset(Protocol):
    """Estimates of sizes, wherever they come from."""

    def estimate(self, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """Bytes per offset, at least 1, of each partition that has offsets between `start` and `end`."""


class SizeEstimator:
    """Cached estimates for one cluster. Not thread-safe."""

    def __init__(
        self, cluster: Cluster, monotonic: Callable[[], float] = time.monotonic, *, only_to_share: bool = False
    ) -> None:
        """`only_to_share`: no limit in bytes is set, so a rough estimate is logged at debug level only."""
        self._cluster = cluster
        self._monotonic = monotonic
        self._known: dict[TopicPartition, int] = {}
        self._asked: dict[str, float] = {}
        self._warned = only_to_share

    def estimate(self, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """Bytes per offset, at least 1, of each partition that has offsets between `start` and `end`."""
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
                        sizes[tp] = max(sizes.get(tp, 0), replica.size)  # a follower never has more than the leader
            first, last = (
                list_offsets(self._cluster, dict.fromkeys(sizes, place), isolation_level="read_uncommitted")
                for place in (EARLIEST_LOCAL, LATEST)
            )
        except PykafkaError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "Brokers do not report sizes of %s, fetching samples: %s", sorted(topics), error)
            self._warned = True
            return {}
        counts = {tp: last[tp].offset - first[tp].offset for tp in sizes}
        return {tp: max(-(-size // counts[tp]), 1) for tp, size in sizes.items() if size > 0 and counts[tp] > 0}

    def _sampled(self, start: Offsets) -> dict[TopicPartition, int]:
        found = {}
        for tp, offset in start.items():
            try:
                self._cluster.reach()
                with Fetcher(self._cluster, tp, max_bytes=_SAMPLE_BYTES, max_wait_ms=0) as fetcher:
                    headers = [header for _, header in walk_batches(fetcher.fetch(offset).records)]
            except BrokerError:
                continue  # deleted: the read reports it
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
