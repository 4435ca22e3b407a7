"""Requests about partitions: rows grouped by topic in both directions, and one request to the leader of each.

Called by partition_offsets.py and admin.py, and for the rows by everything that names partitions in a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from broker.client.broker_connection import BrokerConnection
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.denials import DENIED, refusal
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

T = TypeVar("T")

Rows = Mapping[TopicPartition, Any]


def partition_rows(
    topics: Iterable[Any], *, topic: str = "name", partitions: str = "partitions", index: str = "partition_index"
) -> dict[TopicPartition, Any]:
    """A response's rows by partition. `topic`, `partitions` and `index` are the names of the fields."""
    return {
        TopicPartition(str(getattr(topic_row, topic)), int(getattr(row, index))): row
        for topic_row in topics
        for row in getattr(topic_row, partitions)
    }


def error_of(settings: ClientSettings, api: ApiKey, row: Any, what: str, name: str = "") -> BrokerError | None:
    """The error in a row of a response, with the broker's message if there is one; the rest is as in `refusal`."""
    if row.error_code is ErrorCode.none:
        return None
    message = None if row.error_code in DENIED else field(row, "error_message")
    return refusal(settings, api, row.error_code, f"{what}: {message}" if message else what, name)


def ask_leaders(
    cluster: Cluster,
    api: ApiKey,
    partitions: Collection[TopicPartition],
    ask: Callable[[BrokerConnection, Mapping[TopicPartition, int]], Rows],
    read: Callable[[Any], T],
    what: Callable[[TopicPartition], str],
    *,
    timeout_s: float | None = None,
) -> dict[TopicPartition, T]:
    """`read(row)` of each partition.

    `ask(connection, leader epochs)` sends a leader the request of `api` for its partitions and returns the rows of the
    response. Partitions that fail with a retriable error are asked for again; any other error is raised, and
    `what(partition)` names the action in it.
    """
    found: dict[TopicPartition, T] = {}

    def attempt() -> None:
        failure: BrokerError | None = None
        for node, epochs in cluster.by_leader([tp for tp in partitions if tp not in found]).items():
            rows = ask(cluster.connection(node), epochs)
            for tp in epochs:
                if tp in rows:
                    error = error_of(cluster.settings, api, rows[tp], what(tp), tp.topic)
                else:
                    error = BrokerError(ErrorCode.unknown_server_error, f"{what(tp)}: the reply does not name it")
                if error is None:
                    found[tp] = read(rows[tp])
                elif error.retriable:
                    failure = error
                else:
                    raise error
        if failure is not None:
            raise failure

    cluster.retrying(attempt, timeout_s=timeout_s)
    return {tp: found[tp] for tp in partitions}
