"""Writing the markers that end a transaction into the partitions it wrote to.

Called by the transaction coordinator, and by the WriteTxnMarkers handler for a coordinator on another
broker. `MarkerWriter` is the seam the coordinator is tested on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from broker.cluster.topics import Topics
from broker.log.pending_append import AppendResult
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType

__all__ = ["EndMarker", "LogMarkerWriter", "MarkerWriter", "OffsetsEnded"]

OffsetsEnded = Callable[[int, int, bool, Awaitable[object] | None], object]
"""(partition of __consumer_offsets, producer id, whether it committed, what to wait for): the marker stands in it or,
where there is something to wait for, has its place in it."""


class EndMarker(NamedTuple):
    """Who ends a transaction, and how; the coordinator's epoch keeps one that was replaced from doing so."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


class MarkerWriter(Protocol):
    """Puts markers into partitions."""

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        """Append a marker; gives what to wait for until it is safe, if it is not already. Raises BrokerError, as does
        what is waited for."""
        ...


class LogMarkerWriter:
    """The markers of partitions led by this broker."""

    def __init__(self, topics: Topics, offsets_ended: OffsetsEnded) -> None:
        self._topics = topics
        self._offsets_ended = offsets_ended

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        partition = self._topics.partition(tp)
        appended = partition.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            ControlType.COMMIT if marker.commit else ControlType.ABORT,
            marker.coordinator_epoch,
        )
        waiting = None if isinstance(appended, AppendResult) else asyncio.ensure_future(appended)
        if tp.topic == GROUP_OFFSETS_TOPIC:
            self._offsets_ended(tp.partition, marker.producer_id, marker.commit, waiting)
        # Two wait for it: a client that hangs up must not end it for the group coordinator.
        return partition.flushed() if waiting is None else asyncio.shield(waiting)
