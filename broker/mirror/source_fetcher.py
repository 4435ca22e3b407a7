"""Fetches many partitions of the source. The next requests are sent before the responses are copied, so that the
source, the mirror and the target work at the same time."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.client.auto_closeable import AutoCloseable
from broker.client.cluster import Cluster
from broker.client.fetch_protocol import FetchFrom, FetchLimits
from broker.client.fetcher import end_of_batches
from broker.client.leader_fetches import LeaderFetches
from broker.client.partition_offsets import Position
from broker.errors import BrokerError, ErrorCode
from broker.protocol.fetch_parser import FetchedPartition
from broker.protocol.topic_partition import TopicPartition

_LOST: Final = (ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)
"""Errors that only the mirror can act on."""


class FetchedBatches(NamedTuple):
    """What a leader answered for one partition. `next` is the position after it."""

    tp: TopicPartition
    start: int
    next: Position
    partition: FetchedPartition


class SourceFetcher(AutoCloseable):
    """Reads committed records of the partitions in `positions`. Not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self.positions: dict[TopicPartition, Position] = {}
        """The next position of each partition."""
        self.lost: dict[TopicPartition, BrokerError] = {}
        """Partitions that are not fetched any more, until `seek`: the position or the partition does not exist."""
        self._found: list[FetchedBatches] = []
        self._fetches = LeaderFetches(cluster, FetchLimits.of(cluster.settings, "read_committed"), self._take)

    @property
    def doubtful(self) -> dict[TopicPartition, Position]:
        """Partitions whose leader is newer than the position. They are not fetched until `seek` (KIP-320)."""
        return {tp: self.positions[tp] for tp in self._fetches.doubtful}

    def seek(self, tp: TopicPartition, position: Position) -> None:
        """Fetch `tp` from `position` on. A response to an earlier request for another offset is ignored."""
        self.forget(tp)
        self.positions[tp] = position

    def forget(self, tp: TopicPartition) -> None:
        self.positions.pop(tp, None)
        self.lost.pop(tp, None)
        self._fetches.doubtful.discard(tp)

    def poll(self, timeout_s: float) -> list[FetchedBatches]:
        """What has arrived within `timeout_s`, also for partitions without records. Raises what is not retriable."""
        self._send()
        self._fetches.receive(timeout_s)
        self._send()
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._fetches.close()

    def _send(self) -> None:
        self.lost |= self._fetches.send({tp: at for tp, at in self.positions.items() if tp not in self.lost})

    def _take(self, asked: FetchFrom, partition: FetchedPartition, error: BrokerError | None) -> None:
        tp = asked.tp
        position = self.positions.get(tp)
        if position is None or position.offset != asked.offset:
            return
        if error is None:
            following = Position(end_of_batches(partition.records, asked.offset), asked.leader_epoch)
            self.positions[tp] = following
            self._found.append(FetchedBatches(tp, asked.offset, following, partition))
        elif error.code in _LOST:
            self.lost[tp] = error
        elif not error.retriable:
            raise error
