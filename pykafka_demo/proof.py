"""Checks that every record was written once. Counts offsets, not rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from broker.client.cluster import Cluster
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.protocol.topic_partition import TopicPartition


@dataclass(frozen=True)
class Proof:
    """Compares what was produced with what was written."""

    rows_in: int
    rows_out: int
    duplicates: int
    missing: int

    @property
    def holds(self) -> bool:
        return self.rows_in == self.rows_out and self.duplicates == 0 and self.missing == 0


def topic_ranges(bootstrap: str, topic: str) -> dict[TopicPartition, range]:
    """The offsets of every partition, from the broker."""
    with Cluster(bootstrap) as cluster:
        partitions = [TopicPartition(topic, p) for p in cluster.partitions(topic)]
        starts = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
        ends = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return {tp: range(starts[tp].offset, ends[tp].offset) for tp in partitions}


def compare(ranges: dict[TopicPartition, range], positions: pa.Table) -> Proof:
    """Compare the offsets of the topic with the positions that were written."""
    rows_in = sum(len(offsets) for offsets in ranges.values())
    distinct = positions.group_by(["partition", "offset"]).aggregate([])
    expected = 0
    for tp, offsets in ranges.items():
        held = distinct.filter(pc.equal(distinct["partition"], tp.partition))["offset"]
        inside = pc.and_(pc.greater_equal(held, offsets.start), pc.less(held, offsets.stop))
        expected += pc.sum(inside).as_py() or 0
    return Proof(rows_in, positions.num_rows, positions.num_rows - distinct.num_rows, rows_in - expected)
