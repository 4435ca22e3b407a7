"""Ends of a batch query that were found by a timestamp: only a record may end it.

ListOffsets also finds the markers of transactions, whose timestamps say when a transaction ended. Where records have
earlier times of their own, records that pass may follow such a marker. Called by offset_reader.py.
"""

from __future__ import annotations

from broker.client.cluster import Cluster
from broker.client.fetcher import fetch_together
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header
from spark_connector.offset_store.base import Offsets

_MAGIC = 2
_PARTITION_BYTES = (1 << 14, 1 << 18, 1 << 22)
"""Bytes to ask for: most batches are small, and one that does not fit is asked for again."""


def at_records(cluster: Cluster, offsets: Offsets) -> dict[TopicPartition, int]:
    """Those of the `offsets` whose batch holds records. Partitions are left out when that cannot be found out."""
    left = dict(offsets)
    kept: dict[TopicPartition, int] = {}
    for size in _PARTITION_BYTES:
        if left:
            found = fetch_together(cluster, left, max_bytes=_PARTITION_BYTES[-1], partition_bytes=size)
            headers = {tp: parse_header(fetched.records) for tp, fetched in found.items()}
            kept |= {tp: left[tp] for tp, one in headers.items() if one.magic == _MAGIC and not one.is_control}
            left = {tp: offset for tp, offset in left.items() if tp not in found}
    return kept
