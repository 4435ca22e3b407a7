"""The committed offsets of a restored cluster, which its empty `__consumer_offsets` begins with.

`pykafka log restore` leaves them in ZooKeeper before the first broker starts (cluster_restore.py). The first
coordinator that loads a partition appends them to its log before it serves any group (record_store.py), and forgets
them then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from broker.clock import Clock
from broker.coordinator.group_records import OffsetAndMetadata, encode_offset, encode_offset_key
from broker.coordinator.record_format import KeyValue
from broker.zookeeper.archive_nodes import ArchiveNodes
from broker.zookeeper.cluster_store import ClusterStore

logger = logging.getLogger(__name__)


class RestoredOffsets:
    """Those that are left. Lives on the event loop."""

    def __init__(
        self, store: ClusterStore, nodes: ArchiveNodes, clock: Clock, left: Mapping[int, Sequence[str]]
    ) -> None:
        """`left`: as `ArchiveNodes.restored_partitions` gives it at the start of the broker."""
        self._store = store
        self._nodes = nodes
        self._clock = clock
        self._left = dict(left)

    @classmethod
    async def left_in(cls, store: ClusterStore, nodes: ArchiveNodes, clock: Clock) -> RestoredOffsets:
        """Those that a restore has left. Call it when the broker starts: none come later. Raises BrokerError."""
        return cls(store, nodes, clock, await store(nodes.restored_partitions))

    async def records(self, partition: int) -> Sequence[KeyValue]:
        """Those of a partition. Raises BrokerError when ZooKeeper is away."""
        paths = self._left.get(partition)
        if not paths:
            return ()
        groups = await self._store(self._nodes.restored_offsets, paths)
        now_ms = self._clock.now_ms()
        logger.info("partition %d gets the offsets of %d restored groups", partition, len(groups))
        return [
            (
                encode_offset_key(group, topic, index),
                encode_offset(OffsetAndMetadata(offset, leader_epoch, metadata, now_ms)),
            )
            for group, rows in groups.items()
            for topic, index, offset, leader_epoch, metadata in rows
        ]

    async def loaded(self, partition: int) -> None:
        """The log has them. Raises BrokerError when ZooKeeper is away; then the load is tried again."""
        if paths := self._left.get(partition):
            await self._store(self._nodes.forget_restored, paths)
            del self._left[partition]
