"""Writes the markers that end a transaction into its partitions.

Called by the transaction coordinator, and by the WriteTxnMarkers handler for coordinators on other brokers. Tests
replace `MarkerWriter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from broker.cluster.topics import Topics
from broker.log.pending_append import AppendResult
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker

__all__ = ["LogMarkerWriter", "MarkerWriter", "OffsetsEnded"]

OffsetsEnded = Callable[[int, int, bool, Awaitable[object] | None], object]
"""Called with (partition of __consumer_offsets, producer id, whether it committed, awaitable or None): the marker is in
the partition or, with an awaitable, is being appended."""


class MarkerWriter(Protocol):
    """Appends markers to partitions."""

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        """Append a marker. Returns None if it is safe already, otherwise an awaitable. Both may raise BrokerError."""


class LogMarkerWriter:
    """Writes markers to partitions that this broker leads."""

    def __init__(self, topics: Topics, offsets_ended: OffsetsEnded) -> None:
        self._topics = topics
        self._offsets_ended = offsets_ended

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        partition = self._topics.partition(tp)
        appended = partition.append_marker(marker)
        waiting = None if isinstance(appended, AppendResult) else asyncio.ensure_future(appended)
        if tp.topic == GROUP_OFFSETS_TOPIC:
            commit = marker.control_type is ControlType.COMMIT
            self._offsets_ended(tp.partition, marker.producer_id, commit, waiting)
        # The group coordinator waits for it too, so a client that disconnects must not cancel it.
        return partition.flushed() if waiting is None else asyncio.shield(waiting)
