"""A client's Fetch request: sent, and its response received. protocol/fetch_parser.py parses the response.

Requests do not use fetch sessions (KIP-227), because these clients ask for few partitions at a time.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from broker.client.broker_connection import BrokerConnection
from broker.client.client_settings import ClientSettings, isolation_id
from broker.client.cluster import Cluster
from broker.errors import raise_for
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_parser import FetchedPartition, parse_fetch_response
from broker.protocol.topic_partition import TopicPartition

_TOPIC_IDS_SINCE: Final = 13


class FetchLimits(NamedTuple):
    """Limits of a response: sizes in bytes, time in ms. `isolation` is the number in the protocol."""

    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    isolation: int
    partition_bytes: int

    @classmethod
    def of(cls, settings: ClientSettings, isolation_level: str | None = None) -> FetchLimits:
        """The settings of a consumer; `isolation_level` replaces theirs."""
        return cls(
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            settings.fetch_max_wait_ms,
            isolation_id(isolation_level or settings.isolation_level),
            settings.max_partition_fetch_bytes,
        )


class FetchFrom(NamedTuple):
    tp: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    offset: int

    @classmethod
    def at(cls, cluster: Cluster, tp: TopicPartition, offset: int) -> FetchFrom:
        """Take the topic id and leader epoch from the cluster's metadata."""
        topic = cluster.topic(tp.topic)
        partition = topic.partitions.get(tp.partition)
        epoch = cluster.leader_epoch(tp) if partition is None else partition.leader_epoch
        return cls(tp, topic.topic_id, epoch, offset)


def send_fetch(
    connection: BrokerConnection, limits: FetchLimits, wanted: Sequence[FetchFrom], *, rack: str = ""
) -> None:
    """Send a request for the partitions `wanted` without waiting. With a `rack` the answer may be to read elsewhere."""
    topics: dict[tuple[str, uuid.UUID | None], list[dict[str, Any]]] = defaultdict(list)
    for item in wanted:
        topics[item.tp.topic, item.topic_id].append(
            {
                "partition": item.tp.partition,
                "current_leader_epoch": item.leader_epoch,
                "fetch_offset": item.offset,
                "partition_max_bytes": limits.partition_bytes,
            }
        )
    body = {
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "isolation_level": limits.isolation,
        "rack_id": rack,
        "topics": [{"topic": name, "topic_id": id_, "partitions": rows} for (name, id_), rows in topics.items()],
    }
    # Since version 13 requests name topics by id (KIP-516).
    at_most = None if all(item.topic_id for item in wanted) else _TOPIC_IDS_SINCE - 1
    connection.send(ApiKey.FETCH, body, at_most=at_most)


def receive_fetch(connection: BrokerConnection, what: str, *, timeout_s: float | None = None) -> list[FetchedPartition]:
    """Receive the response to `send_fetch`. Raises an error of the whole request, in which `what` names the action."""
    reply = connection.receive_reply(timeout_s=timeout_s)
    answer = parse_fetch_response(reply.version, reply.payload)
    connection.throttled(answer.throttle_ms)
    raise_for(answer.error, what)
    return answer.partitions


def by_place(wanted: Iterable[FetchFrom]) -> dict[tuple[str | uuid.UUID, int], FetchFrom]:
    """The items by topic name and by topic id, since a response has one of them, and partition."""
    places: dict[tuple[str | uuid.UUID, int], FetchFrom] = {}
    for item in wanted:
        places[item.tp.topic, item.tp.partition] = item
        if item.topic_id is not None:
            places[item.topic_id, item.tp.partition] = item
    return places
