"""Writes the markers that end a transaction into its partitions.

Called by the transaction coordinator, and by the WriteTxnMarkers handler for coordinators on other brokers. Tests
replace `MarkerWriter`.
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
"""Called with (partition of __consumer_offsets, producer id, whether it committed, awaitable or None): the marker is in
the partition or, with an awaitable, is being appended."""


class EndMarker(NamedTuple):
    """How a producer's transaction ended. `coordinator_epoch` fences a coordinator that was replaced."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


class MarkerWriter(Protocol):
    """Appends markers to partitions."""

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        """Append a marker. Returns None if it is safe already, otherwise an awaitable. Both may raise BrokerError."""
        ...


class LogMarkerWriter:
    """Writes markers to partitions that this broker leads."""

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
        # The group coordinator waits for it too, so a client that disconnects must not cancel it.
        return partition.flushed() if waiting is None else asyncio.shield(waiting)
