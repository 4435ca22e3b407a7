"""Where partitions begin, end, and stood at a time: the ListOffsets API.

Called by the consumer, the console and the Spark connector's planning. One request per leader, however
many partitions it leads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.client.cluster import Cluster
from broker.client.connection import Connection
from broker.client.leader_epochs import NO_EPOCH
from broker.client.settings import isolation_id
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "OffsetAndTimestamp", "list_offsets"]

LATEST: Final = -1
"""As a timestamp: the offset the next record will get (with read_committed, the last stable one)."""
EARLIEST: Final = -2
"""As a timestamp: the first offset that is still there."""
MAX_TIMESTAMP: Final = -3
"""As a timestamp: the record with the largest timestamp (KIP-734, Kafka 3.0)."""

_MAX_TIMESTAMP_SINCE = 7


class OffsetAndTimestamp(NamedTuple):
    """An offset, and the timestamp (ms) of its record; -1 for EARLIEST and LATEST, and (-1, -1) for "no such".

    `leader_epoch` is that of LATEST's leader, under which the log reached up to the offset; of others it is the
    record's, or the leader's, as the broker has it. -1 where it does not say (before Kafka 2.1).
    """

    offset: int
    timestamp: int
    leader_epoch: int = NO_EPOCH


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: str | None = None,
    timeout_s: float | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition the first offset whose record is at least as young as its timestamp (ms).

    EARLIEST, LATEST and MAX_TIMESTAMP are timestamps too. A partition with no such record gives (-1, -1).
    What fails with a retriable error is asked again, alone; any other error raises BrokerError that
    names the partition (UnknownTopic when it does not exist).
    """
    isolation = isolation_id(isolation_level or cluster.settings.isolation_level)
    missing = dict(timestamps)
    found: dict[TopicPartition, OffsetAndTimestamp] = {}

    def ask_the_missing() -> None:
        failure: BrokerError | None = None
        for node, epochs in cluster.by_leader(missing).items():
            for tp, answer in _ask(cluster.connection(node), missing, epochs, isolation).items():
                if isinstance(answer, BrokerError):
                    if not answer.retriable:
                        raise answer
                    failure = answer
                else:
                    found[tp] = answer
                    del missing[tp]
        if failure is not None:
            raise failure

    cluster.retrying(ask_the_missing, timeout_s=timeout_s)
    return {tp: found[tp] for tp in timestamps}


def _ask(
    connection: Connection,
    timestamps: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    isolation: int,
) -> dict[TopicPartition, OffsetAndTimestamp | BrokerError]:
    """Of the partitions that `epochs` names, which one broker leads."""
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for tp, epoch in epochs.items():
        row = {"partition_index": tp.partition, "timestamp": timestamps[tp], "current_leader_epoch": epoch}
        topics[tp.topic].append(row)
    body = {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }
    largest = any(row["timestamp"] == MAX_TIMESTAMP for rows in topics.values() for row in rows)
    if largest and connection.version(ApiKey.LIST_OFFSETS) < _MAX_TIMESTAMP_SINCE:
        raise UnsupportedVersion(f"{connection.address} cannot look for the largest timestamp (Kafka 3.0 and later)")
    answer = connection.request(ApiKey.LIST_OFFSETS, body)
    rows = {TopicPartition(str(t.name), int(p.partition_index)): p for t in answer.topics for p in t.partitions}
    return {tp: _read(tp, rows.get(tp)) for tp in epochs}


def _read(tp: TopicPartition, row: Any) -> OffsetAndTimestamp | BrokerError:
    if row is None:
        return BrokerError(ErrorCode.unknown_server_error, f"the broker said nothing about the offsets of {tp}")
    if row.error_code is not ErrorCode.none:
        return BrokerError(row.error_code, f"listing the offsets of {tp}")
    return OffsetAndTimestamp(
        int(row.offset), int(field(row, "timestamp", -1)), int(field(row, "leader_epoch", NO_EPOCH))
    )
