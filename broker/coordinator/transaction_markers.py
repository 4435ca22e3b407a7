"""Writes the markers that end a transaction into its partitions.

`LogMarkerWriter` writes to partitions that this broker leads, for the WriteTxnMarkers handler. `ClusterMarkerWriter`
writes to all partitions, for the transaction coordinator. Tests replace `MarkerWriter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from broker.background_tasks import BackgroundTasks
from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator.peer_requests import Connect, PeerRequests
from broker.errors import BrokerError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.records.control import ControlType, EndMarker
from broker.replica.cluster_metadata import NO_LEADER

OffsetsEnded = Callable[[int, int, bool, Awaitable[object] | None], object]
"""Called with (partition of __consumer_offsets, producer id, whether it committed, awaitable or None): the marker is in
the partition or, with an awaitable, is being appended."""

_WITH_TRANSACTION_VERSION = 2
"""Of WriteTxnMarkers. Asked for only where it matters: a broker of an earlier release may not have it."""


class MarkerWriter(Protocol):
    """Appends markers to partitions."""

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        """Append a marker. Returns None if it is safe already, otherwise an awaitable. Both may raise BrokerError."""


class LogMarkerWriter:
    """Writes markers to partitions that this broker leads. A marker is safe when all in-sync replicas have it."""

    def __init__(self, topics: MetadataCache, offsets_ended: OffsetsEnded) -> None:
        self._topics = topics
        self._offsets_ended = offsets_ended
        self._waiting = BackgroundTasks()

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        partition = self._topics.partition(tp)
        partition.check_min_isr()
        unsafe = partition.until_safe(partition.append_marker(marker))
        waiting = None if unsafe is None else self._waiting.add(unsafe)
        if tp.topic == GROUP_OFFSETS_TOPIC:
            commit = marker.control_type is ControlType.COMMIT
            self._offsets_ended(tp.partition, marker.producer_id, commit, waiting)
        # The group coordinator waits for it too, so a client that disconnects must not cancel it.
        return None if waiting is None else asyncio.shield(waiting)


class ClusterMarkerWriter:
    """Writes markers to partitions wherever they are led (Kafka's TransactionMarkerChannelManager).

    When the leader of a partition changes, what was asked of the old one ends with NOT_LEADER_OR_FOLLOWER, so that the
    caller tries again. Its answer would come late or never. A marker that it has written nevertheless does no harm: a
    deposed leader commits nothing, and the same marker twice is as good as once.
    """

    def __init__(self, topics: MetadataCache, broker_id: int, local: MarkerWriter, connect: Connect) -> None:
        self._topics = topics
        self._broker_id = broker_id
        self._local = local
        self._peers = PeerRequests(connect, _send)
        self._peers.follow(topics, lambda sent: self._leader(sent[0]), ErrorCode.not_leader_or_follower)

    def write(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        """Append a marker. Raises BrokerError `unknown_topic_or_partition` only when the topic was deleted."""
        leader = self._leader(tp)
        if leader == self._broker_id:
            return self._local.write(tp, marker)
        if leader is None:
            return self._read_again(tp)
        if leader == NO_LEADER:
            raise BrokerError(ErrorCode.leader_not_available, f"{tp} has no leader")
        return _answered(tp, leader, self._peers.ask(leader, (tp, marker)))

    async def close(self) -> None:
        """End all requests."""
        await self._peers.close()

    def _leader(self, tp: TopicPartition) -> int | None:
        info = self._topics.metadata.partition(tp)
        return None if info is None else info.leader

    async def _read_again(self, tp: TopicPartition) -> None:
        """This broker's metadata lack the partition. They may be old: another coordinator may have known it."""
        await self._topics.refresh([tp.topic])
        if self._leader(tp) is None and not self._topics.is_malformed(tp.topic):
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} was not known")


async def _answered(tp: TopicPartition, leader: int, answer: Awaitable[ErrorCode]) -> None:
    code = await answer
    if code is ErrorCode.unknown_topic_or_partition:
        code = ErrorCode.not_leader_or_follower  # only this broker's metadata say that a topic was deleted
    if code is not ErrorCode.none:
        raise BrokerError(code, f"broker {leader} has not written the marker to {tp}")


async def _send(
    peer: PeerConnection, items: Sequence[tuple[TopicPartition, EndMarker]]
) -> Mapping[tuple[TopicPartition, EndMarker], ErrorCode]:
    partitions: dict[EndMarker, list[TopicPartition]] = {}
    for tp, marker in items:
        partitions.setdefault(marker, []).append(tp)
    body = {"markers": [_marker_fields(marker, tps) for marker, tps in partitions.items()]}
    version = max(1, *(min(marker.transaction_version, _WITH_TRANSACTION_VERSION) for marker in partitions))
    answer = await peer.request(ApiKey.WRITE_TXN_MARKERS, version, body)
    return {
        (TopicPartition(topic.name, row.partition_index), marker): row.error_code
        for marker, answered in zip(partitions, answer.markers, strict=False)
        for topic in answered.topics
        for row in topic.partitions
    }


def _marker_fields(marker: EndMarker, tps: Sequence[TopicPartition]) -> dict[str, Any]:
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.control_type is ControlType.COMMIT,
        "topics": topic_rows(((tp, tp.partition) for tp in tps), partitions="partition_indexes"),
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
    }
