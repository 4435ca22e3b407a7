"""Offsets that the leaders of partitions know: the ListOffsets and OffsetForLeaderEpoch APIs.

`list_offsets` tells where partitions begin and end, and where they were at a time. `find_truncations` finds logs that
have lost records that were read already (KIP-320): when a partition has a newer leader epoch than a position, the
leader is asked where the position's epoch ended. If that is before the position, the records before the position are
gone, and others have taken their offsets. Both send one request to each leader, for all its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from broker.client.client_settings import isolation_id
from broker.client.cluster import Cluster
from broker.client.connection import Connection
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition, by_topic

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_EPOCH",
    "OffsetAndTimestamp",
    "Position",
    "Truncation",
    "find_truncations",
    "list_offsets",
]

T = TypeVar("T")

LATEST: Final = -1
"""As a timestamp: the offset that the next record will get (with read_committed, the last stable offset)."""
EARLIEST: Final = -2
"""As a timestamp: the log start offset."""
MAX_TIMESTAMP: Final = -3
"""As a timestamp: the record with the largest timestamp (KIP-734, Kafka 3.0)."""

_MAX_TIMESTAMP_SINCE = 7

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

    def ask(connection: Connection, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        largest = any(timestamps[tp] == MAX_TIMESTAMP for tp in epochs)
        if largest and connection.version(ApiKey.LIST_OFFSETS) < _MAX_TIMESTAMP_SINCE:
            raise UnsupportedVersion(
                f"{connection.address} cannot look for the largest timestamp (Kafka 3.0 and later can)"
            )
        rows = (
            (tp, {"partition_index": tp.partition, "timestamp": timestamps[tp], "current_leader_epoch": epoch})
            for tp, epoch in epochs.items()
        )
        topics = [{"name": name, "partitions": of_topic} for name, of_topic in by_topic(rows).items()]
        body = {"replica_id": -1, "isolation_level": isolation, "topics": topics}
        answer = connection.request(ApiKey.LIST_OFFSETS, body)
        return {TopicPartition(str(t.name), int(p.partition_index)): p for t in answer.topics for p in t.partitions}

    def read(row: Any) -> OffsetAndTimestamp:
        return OffsetAndTimestamp(
            int(row.offset), int(field(row, "timestamp", -1)), int(field(row, "leader_epoch", NO_EPOCH))
        )

    return _ask_leaders(cluster, timestamps, ask, read, "listing the offsets", timeout_s)


def find_truncations(
    cluster: Cluster, positions: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, Truncation]:
    """Those of the partitions whose logs no longer reach their positions.

    Retriable errors are retried; others raise BrokerError. Brokers before Kafka 0.11 cannot tell: nothing is found.
    """

    def ask(connection: Connection, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        rows = (
            (
                tp,
                {
                    "partition": tp.partition,
                    "current_leader_epoch": epoch,
                    "leader_epoch": positions[tp].leader_epoch,
                },
            )
            for tp, epoch in epochs.items()
        )
        topics = [{"topic": name, "partitions": of_topic} for name, of_topic in by_topic(rows).items()]
        answer = connection.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": topics})
        return {TopicPartition(str(t.topic), int(p.partition)): p for t in answer.topics for p in t.partitions}

    try:
        ends = _ask_leaders(
            cluster, positions, ask, lambda row: int(row.end_offset), "asking for the leader epochs", None
        )
    except UnsupportedVersion:
        return {}
    return {tp: Truncation(tp, positions[tp], end) for tp, end in ends.items() if end < positions[tp].offset}


def _ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    ask: Callable[[Connection, Mapping[TopicPartition, int]], Mapping[TopicPartition, Any]],
    read: Callable[[Any], T],
    what: str,
    timeout_s: float | None,
) -> dict[TopicPartition, T]:
    """`read(row)` of each partition. `ask(connection, leader epochs)` sends a leader the request for its partitions."""
    found: dict[TopicPartition, T] = {}

    def attempt() -> None:
        failure: BrokerError | None = None
        for node, epochs in cluster.by_leader([tp for tp in partitions if tp not in found]).items():
            rows = ask(cluster.connection(node), epochs)
            for tp in epochs:
                row = rows.get(tp)
                code = ErrorCode.unknown_server_error if row is None else row.error_code
                if code is ErrorCode.none:
                    found[tp] = read(row)
                    continue
                error = BrokerError(code, f"{what} of {tp}{': the reply does not name it' if row is None else ''}")
                if not error.retriable:
                    raise error
                failure = error
        if failure is not None:
            raise failure

    cluster.retrying(attempt, timeout_s=timeout_s)
    return {tp: found[tp] for tp in partitions}
