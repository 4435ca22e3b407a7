"""The Fetch request: which partitions, from which offsets, how much.

Called by fetcher.py (one partition), joint_fetch.py and consumer_fetch.py (all partitions of a leader). Every request
stands alone (no fetch session, KIP-227): a client of ours asks for few partitions at a time.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition

__all__ = ["FetchFrom", "FetchLimits", "by_place", "fetch_request", "fetch_version_limit"]

_LAST_VERSION_WITH_NAMES: Final = 12


class FetchLimits(NamedTuple):
    """How a broker shall answer: sizes in bytes, time in ms, `isolation` as the protocol has it."""

    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    isolation: int


class FetchFrom(NamedTuple):
    """One partition of a request."""

    tp: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    offset: int
    max_bytes: int

    @classmethod
    def at(cls, cluster: Cluster, tp: TopicPartition, offset: int, max_bytes: int) -> FetchFrom:
        """With the topic id and leader epoch that the cluster's metadata holds."""
        return cls(tp, cluster.topic(tp.topic).topic_id, cluster.leader_epoch(tp), offset, max_bytes)


def fetch_version_limit(wanted: Iterable[FetchFrom]) -> int | None:
    """From version 13 on topics go by id (KIP-516): stay below when an id is not known."""
    return None if all(item.topic_id for item in wanted) else _LAST_VERSION_WITH_NAMES


def fetch_request(limits: FetchLimits, wanted: Iterable[FetchFrom]) -> dict[str, Any]:
    """The body of a request for the partitions `wanted`."""
    topics: dict[tuple[str, uuid.UUID | None], list[dict[str, Any]]] = defaultdict(list)
    for item in wanted:
        topics[item.tp.topic, item.topic_id].append(
            {
                "partition": item.tp.partition,
                "current_leader_epoch": item.leader_epoch,
                "fetch_offset": item.offset,
                "partition_max_bytes": item.max_bytes,
            }
        )
    return {
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "isolation_level": limits.isolation,
        "topics": [{"topic": name, "topic_id": id_, "partitions": rows} for (name, id_), rows in topics.items()],
    }


def by_place(wanted: Iterable[FetchFrom]) -> dict[tuple[str | uuid.UUID, int], FetchFrom]:
    """The items as an answer names them: by topic name or topic id, and partition."""
    places: dict[tuple[str | uuid.UUID, int], FetchFrom] = {}
    for item in wanted:
        places[item.tp.topic, item.tp.partition] = item
        if item.topic_id is not None:
            places[item.topic_id, item.tp.partition] = item
    return places
