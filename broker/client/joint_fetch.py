"""A look at many partitions at once: one Fetch request to each of their leaders, all under way together.

Called by Spark tasks and drivers for ranges too small to be worth a request, or even a connection, of their own. It
never waits for records and never complains: what did not come is asked for alone (`Fetcher`), where errors are told and
retried. Not for a cluster that other threads fetch from at the same time: it uses the shared connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.client.cluster import Cluster
from broker.client.connection import Connection
from broker.client.fetch_request import FetchFrom, FetchLimits, by_place, fetch_request, fetch_version_limit
from broker.client.fetch_response import parse_fetch_response
from broker.client.fetcher import Fetched, end_of_batches
from broker.client.settings import isolation_id
from broker.errors import ErrorCode, PykafkaError, raise_for
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

__all__ = ["fetch_together"]

_LEAST_PARTITION_BYTES: Final = 64 << 10
"""Of one partition, so that a few that have much do not crowd out the others, nor many shrink to nothing."""


def fetch_together(
    cluster: Cluster, positions: Mapping[TopicPartition, int], *, max_bytes: int
) -> dict[TopicPartition, Fetched]:
    """What is there of each partition from its position on, in answers of at most `max_bytes` (or one batch) each.

    A partition is missing for which nothing came: no room was left, nothing is there, or something is wrong with it.
    """
    settings = cluster.settings
    limits = FetchLimits(0, max_bytes, 0, isolation_id(settings.isolation_level))
    asked: list[tuple[Connection, list[FetchFrom]]] = []
    found: dict[TopicPartition, Fetched] = {}
    try:
        leaders = cluster.retrying(lambda: cluster.by_leader(positions), timeout_s=0)
    except PykafkaError:
        return found
    for node, partitions in leaders.items():
        share = min(max(max_bytes // len(partitions), _LEAST_PARTITION_BYTES), max_bytes)
        try:
            connection = cluster.connection(node)
            wanted = [FetchFrom.at(cluster, tp, positions[tp], share) for tp in partitions]
            connection.send(ApiKey.FETCH, fetch_request(limits, wanted), at_most=fetch_version_limit(wanted))
        except PykafkaError:
            cluster.invalidate()
            continue
        asked.append((connection, wanted))
    for connection, wanted in asked:
        try:
            found.update(_receive(connection, wanted))
        except PykafkaError:
            connection.close()  # a late answer would be taken for that to another request
            cluster.invalidate()
    return found


def _receive(connection: Connection, wanted: list[FetchFrom]) -> dict[TopicPartition, Fetched]:
    reply = connection.receive_reply()
    answer = parse_fetch_response(reply.version, reply.payload)
    raise_for(answer.error, f"fetching from {connection.address}")
    items = by_place(wanted)
    found = {}
    for partition in answer.partitions:
        item = items.get((partition.topic, partition.partition))
        if item is None or partition.error is not ErrorCode.none or not partition.records:
            continue
        found[item.tp] = Fetched(
            partition.records,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            partition.aborted,
            end_of_batches(partition.records, item.offset),
        )
    return found
