"""Offsets that the leaders of partitions know: the ListOffsets and OffsetForLeaderEpoch APIs.

`list_offsets` tells where partitions begin and end, and where they were at a time. `find_truncations` finds logs that
have lost records that were read already (KIP-320): when a partition has a newer leader epoch than a position, the
leader is asked where the position's epoch ended. If that is before the position, the records before the position are
gone, and others have taken their offsets. Both send one request to each leader, for all its partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from broker.client.broker_connection import BrokerConnection
from broker.client.client_settings import isolation_id
from broker.client.cluster import Cluster
from broker.client.leader_requests import ask_leaders, partition_rows
from broker.errors import ErrorCode, PykafkaError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition, topic_rows

logger = logging.getLogger(__name__)

LATEST: Final = -1
"""As a timestamp: the offset that the next record will get (with read_committed, the last stable offset)."""
EARLIEST: Final = -2
"""As a timestamp: the log start offset."""
MAX_TIMESTAMP: Final = -3
"""As a timestamp: the record with the largest timestamp (KIP-734, Kafka 3.0)."""

EARLIEST_LOCAL: Final = -4
"""As a timestamp: the first offset that the leader has on its own disk (KIP-405, Kafka 3.6). The log start offset where
brokers are older."""
LATEST_TIERED: Final = -5
"""As a timestamp: the last offset that is archived; -1 for none (KIP-1005, Kafka 3.9)."""

_MAX_TIMESTAMP_SINCE = 7
_EARLIEST_LOCAL_SINCE = 8
_AT_ONCE = 1_000
"""Partitions of one request of those who only watch: other requests wait for it at the broker."""

NO_EPOCH = -1


class OffsetAndTimestamp(NamedTuple):
    """An offset and the timestamp (ms) of its record; -1 for EARLIEST and LATEST, (-1, -1) when there is no record.

    For LATEST, `leader_epoch` is the leader's current epoch. Otherwise it is the record's or the leader's epoch,
    whichever the broker answers. -1 from brokers before Kafka 2.1.
    """

    offset: int
    timestamp: int
    leader_epoch: int = NO_EPOCH


class Position(NamedTuple):
    """An offset, and a leader epoch in which the log reached that offset."""

    offset: int
    leader_epoch: int


class Truncation(NamedTuple):
    """A log that no longer reaches a position. From `end` on it differs from what was read; -1 if that is unknown."""

    tp: TopicPartition
    position: Position
    end: int

    def __str__(self) -> str:
        now = f"ends at offset {self.end}" if self.end >= 0 else "is not known to the broker"
        return (
            f"{self.tp} was truncated: it was read up to offset {self.position.offset}, and its leader epoch "
            f"{self.position.leader_epoch} now {now}"
        )


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: str | None = None,
    timeout_s: float | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition, the first offset whose record has its timestamp (ms) or a later one.

    EARLIEST, LATEST and MAX_TIMESTAMP are timestamps too. A partition without such a record gives (-1, -1).
    Retriable errors are retried for the partitions that failed. Any other error raises a BrokerError that names the
    partition (UnknownTopic when it does not exist).
    """
    isolation = isolation_id(isolation_level or cluster.settings.isolation_level)

    def ask(connection: BrokerConnection, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        largest = any(timestamps[tp] == MAX_TIMESTAMP for tp in epochs)
        if largest and connection.version(ApiKey.LIST_OFFSETS) < _MAX_TIMESTAMP_SINCE:
            raise UnsupportedVersion(
                f"{connection.address} cannot look for the largest timestamp (Kafka 3.0 and later can)"
            )
        if connection.version(ApiKey.LIST_OFFSETS) < _EARLIEST_LOCAL_SINCE:
            older = {tp: EARLIEST if timestamps[tp] == EARLIEST_LOCAL else timestamps[tp] for tp in epochs}
            return _list_offsets(connection, older, epochs, isolation)
        return _list_offsets(connection, timestamps, epochs, isolation)

    def read(row: Any) -> OffsetAndTimestamp:
        return OffsetAndTimestamp(
            int(row.offset), int(field(row, "timestamp", -1)), int(field(row, "leader_epoch", NO_EPOCH))
        )

    what = "listing the offsets of {}".format
    return ask_leaders(cluster, ApiKey.LIST_OFFSETS, timestamps, ask, read, what, timeout_s=timeout_s)


def _list_offsets(
    connection: BrokerConnection,
    timestamps: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    isolation: int,
) -> Mapping[TopicPartition, Any]:
    """One request about the partitions of `epochs`; the rows of the response."""
    rows = (
        (tp, {"partition_index": tp.partition, "timestamp": timestamps[tp], "current_leader_epoch": epoch})
        for tp, epoch in epochs.items()
    )
    body = {"replica_id": -1, "isolation_level": isolation, "topics": topic_rows(rows)}
    return partition_rows(connection.request(ApiKey.LIST_OFFSETS, body).topics)


def offsets_at(cluster: Cluster, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """As `list_offsets` with one timestamp for all: only the offsets."""
    return {tp: found.offset for tp, found in list_offsets(cluster, dict.fromkeys(partitions, timestamp)).items()}


def known_offsets(cluster: Cluster, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """The offsets at one timestamp of the partitions whose leaders answer at once, for those who only watch.

    One attempt, by the metadata that the cluster has now. A partition without a leader hides no other one, and a broker
    that is gone costs one attempt to connect.
    """
    return {tp: int(row.offset) for tp, row in _known_rows(cluster, partitions, timestamp).items()}


def known_newest(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The largest timestamp (ms) of a record in each partition, -1 in an empty one; asked for as `known_offsets` are.

    Leaders before Kafka 3.0 do not know it.
    """
    return {tp: int(field(row, "timestamp", -1)) for tp, row in _known_rows(cluster, partitions, MAX_TIMESTAMP).items()}


def _known_rows(cluster: Cluster, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, Any]:
    asked = dict.fromkeys(partitions, timestamp)
    isolation = isolation_id(cluster.settings.isolation_level)
    found: dict[TopicPartition, Any] = {}
    for node, tps in cluster.known_leaders(asked).items():
        try:
            connection = cluster.connection(node)
            if timestamp == MAX_TIMESTAMP and connection.version(ApiKey.LIST_OFFSETS) < _MAX_TIMESTAMP_SINCE:
                continue
            for start in range(0, len(tps), _AT_ONCE):
                epochs = dict.fromkeys(tps[start : start + _AT_ONCE], NO_EPOCH)
                rows = _list_offsets(connection, asked, epochs, isolation)
                found.update((tp, row) for tp, row in rows.items() if row.error_code is ErrorCode.none)
        except PykafkaError as error:
            logger.debug("no offsets of the partitions that %s leads: %s", node.id, error)
    return found


def find_truncations(
    cluster: Cluster, positions: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, Truncation]:
    """Those of the partitions whose logs no longer reach their positions.

    Retriable errors are retried; others raise BrokerError. Brokers that do not serve the API: nothing is found.
    """

    def ask(connection: BrokerConnection, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        rows = (
            (tp, {"partition": tp.partition, "current_leader_epoch": epoch, "leader_epoch": positions[tp].leader_epoch})
            for tp, epoch in epochs.items()
        )
        body = {"replica_id": -1, "topics": topic_rows(rows, topic="topic")}
        answer = connection.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, body)
        return partition_rows(answer.topics, topic="topic", index="partition")

    try:
        ends = ask_leaders(
            cluster,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            positions,
            ask,
            lambda row: int(row.end_offset),
            "asking for the leader epochs of {}".format,
        )
    except UnsupportedVersion:
        return {}
    return {tp: Truncation(tp, positions[tp], end) for tp, end in ends.items() if end < positions[tp].offset}
