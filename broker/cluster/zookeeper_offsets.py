"""Offsets that the first clients commit: OffsetCommit and OffsetFetch 0 keep them in ZooKeeper, not in the group.

Called by the handlers of both. As in Kafka, they lie in `/consumers/G/offsets`, without their metadata. `pykafka
groups` and `pykafka offsets` show them with `--zookeeper`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.znodes import MalformedNode


class ZooKeeperOffsets:
    """Commits and reads. Lives on the event loop. Raises BrokerError, also when ZooKeeper is away."""

    def __init__(self, store: ClusterStore) -> None:
        self._registry = store.registry.consumers
        self._store = store

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        _check_name(group)
        await self._store(self._registry.set_offsets, group, offsets)

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        _check_name(group)
        try:
            return await self._store(self._registry.offsets, group, list(partitions))
        except MalformedNode as error:
            raise BrokerError(ErrorCode.unknown_server_error, str(error)) from error


def _check_name(group: str) -> None:
    """The name becomes a node: it must not be a path, nor lead to one."""
    if group in ("", ".", "..") or "/" in group or not group.isprintable():
        raise BrokerError(ErrorCode.invalid_group_id, f"a group in ZooKeeper cannot be called {group!r}")
