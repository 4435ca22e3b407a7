"""The current leader of a partition, for clients that asked another broker (KIP-951). They need no Metadata request.

Called by fetch.py and produce.py.
"""

from __future__ import annotations

from typing import Final

from broker.errors import ErrorCode
from broker.protocol.fetch_response import CurrentLeader
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import ClusterMetadata

LED_ELSEWHERE: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
"""Errors that come with the leader."""


def current_leader(metadata: ClusterMetadata, tp: TopicPartition, listener: str) -> CurrentLeader | None:
    """The leader that this broker knows, and its address on the client's listener; None for an unknown partition."""
    topic = metadata.topics.get(tp.topic)
    info = topic.partitions.get(tp.partition) if topic is not None else None
    if info is None:
        return None
    broker = metadata.brokers.get(info.leader)
    at = broker.endpoint(listener) if broker is not None else None
    if broker is None or at is None:
        return CurrentLeader(info.leader, info.leader_epoch)
    return CurrentLeader(info.leader, info.leader_epoch, at.host, at.port, broker.rack)
