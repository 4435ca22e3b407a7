"""Where leader epochs ended: how a client finds out that a log has lost its end (KIP-320, OffsetForLeaderEpoch).

Called by consumer_positions.py and fetcher.py when a partition has a newer leader epoch than the one a position is
from. Where that epoch ended before the position, the records before it are gone, and others stand in their place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker.client.cluster import Cluster
from broker.client.connection import Connection
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

__all__ = ["NO_EPOCH", "Position", "Truncation", "find_truncations"]

NO_EPOCH = -1


class Position(NamedTuple):
    """An offset, and a leader epoch under which the log reached up to it."""

    offset: int
    leader_epoch: int


class Truncation(NamedTuple):
    """A log that no longer reaches up to a position: `end` is where it parts from what was read, -1 if unknown."""

    tp: TopicPartition
    position: Position
    end: int

    def __str__(self) -> str:
        now = f"ends at offset {self.end}" if self.end >= 0 else "is not known to the broker"
        return (
            f"{self.tp} was truncated: it was read up to offset {self.position.offset}, and its leader epoch "
            f"{self.position.leader_epoch} now {now}"
        )


def find_truncations(
    cluster: Cluster, positions: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, Truncation]:
    """Those of the partitions whose logs no longer reach up to their positions.

    Raises BrokerError; what is retriable is retried. Of brokers too old to say (before 0.11) none is found.
    """
    missing = dict(positions)
    found: dict[TopicPartition, Truncation] = {}

    def ask_the_missing() -> None:
        failure: BrokerError | None = None
        for node, epochs in cluster.by_leader(missing).items():
            for tp, answer in _ask(cluster.connection(node), missing, epochs).items():
                if isinstance(answer, BrokerError):
                    if not answer.retriable:
                        raise answer
                    failure = answer
                    continue
                position = missing.pop(tp)
                if answer < position.offset:
                    found[tp] = Truncation(tp, position, answer)
        if failure is not None:
            raise failure

    try:
        cluster.retrying(ask_the_missing)
    except UnsupportedVersion:
        return {}
    return found


def _ask(
    connection: Connection, positions: Mapping[TopicPartition, Position], epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | BrokerError]:
    """End offsets, of the partitions that `epochs` names with their leader's epoch; one broker leads them."""
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for tp, epoch in epochs.items():
        row = {
            "partition": tp.partition,
            "current_leader_epoch": epoch,
            "leader_epoch": positions[tp].leader_epoch,
        }
        topics[tp.topic].append(row)
    body = {"replica_id": -1, "topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()]}
    answer = connection.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, body)
    rows = {TopicPartition(str(t.topic), int(p.partition)): p for t in answer.topics for p in t.partitions}
    return {tp: _read(tp, rows.get(tp)) for tp in epochs}


def _read(tp: TopicPartition, row: Any) -> int | BrokerError:
    if row is None:
        return BrokerError(ErrorCode.unknown_server_error, f"the broker said nothing about the leader epochs of {tp}")
    if row.error_code is not ErrorCode.none:
        return BrokerError(row.error_code, f"asking for the leader epochs of {tp}")
    return int(row.end_offset)
