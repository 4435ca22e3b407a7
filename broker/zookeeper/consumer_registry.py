"""Consumer groups of the early generation, which live in ZooKeeper: `/consumers/G/{ids,owners,offsets}`.

Used by the console, to show and set what such consumers (and loads with the ZooKeeper offset store) have committed.
Every method blocks; called from worker threads. Offsets are the next one to be read, as decimal text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.operations import Check, Create, NodeExists, NoNode, Operation, SetData

__all__ = ["ConsumerRegistry", "group_partition_path"]


class ConsumerRegistry:
    """Groups, their members, which member owns which partition, and how far the group has come."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk

    def groups(self) -> list[str]:
        """Names of all groups, sorted."""
        return self._children(znodes.CONSUMERS)

    def members(self, group: str) -> dict[str, bytes]:
        """Live consumers of a group and what they subscribe to, Kafka's JSON as it stands."""
        return self._read_all(f"{znodes.CONSUMERS}/{group}/ids")

    def owners(self, group: str) -> dict[TopicPartition, str]:
        """The consumer thread that reads each partition."""
        return {tp: data.decode() for tp, data in self._read_partitions(group, "owners").items()}

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """What the group has committed. Raises MalformedNode."""
        return {tp: _parse_offset(group, tp, data) for tp, data in self._read_partitions(group, "offsets").items()}

    def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set them all in one transaction, creating what is missing; other partitions keep theirs."""
        self._set_offsets(group, offsets, [])

    def _set_offsets(self, group: str, offsets: Mapping[TopicPartition, int], checks: Sequence[Check]) -> None:
        """The same, if `checks` hold; raises NoNode or BadVersion when they do not."""
        checked = {check.path for check in checks}
        while True:
            for topic in {tp.topic for tp in offsets}:
                self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/offsets/{topic}")
            paths = {group_partition_path(group, "offsets", tp): str(offset).encode() for tp, offset in offsets.items()}
            existing = self._zk.get_many(list(paths))
            operations: list[Operation] = [
                Create(path, data) if node is None else SetData(path, data)
                for (path, data), node in zip(paths.items(), existing, strict=True)
            ]
            try:
                self._zk.transaction([*checks, *operations])
                return
            except (NodeExists, NoNode) as error:
                if error.path in checked:
                    raise

    def _read_partitions(self, group: str, kind: str) -> dict[TopicPartition, bytes]:
        root = f"{znodes.CONSUMERS}/{group}/{kind}"
        topics = self._children(root)
        partitions = self._zk.children_many([f"{root}/{topic}" for topic in topics])
        found = [
            TopicPartition(topic, int(partition))
            for topic, numbers in zip(topics, partitions, strict=True)
            for partition in sorted(numbers or (), key=int)
        ]
        nodes = self._zk.get_many([group_partition_path(group, kind, tp) for tp in found])
        return {tp: node[0] for tp, node in zip(found, nodes, strict=True) if node is not None}

    def _read_all(self, root: str) -> dict[str, bytes]:
        names = self._children(root)
        nodes = self._zk.get_many([f"{root}/{name}" for name in names])
        return {name: node[0] for name, node in zip(names, nodes, strict=True) if node is not None}

    def _children(self, path: str) -> list[str]:
        try:
            return self._zk.children(path)
        except NoNode:
            return []


def group_partition_path(group: str, kind: str, tp: TopicPartition) -> str:
    """Where a group keeps the owner or the offset (`kind`: owners, offsets) of a partition."""
    return f"{znodes.CONSUMERS}/{group}/{kind}/{tp.topic}/{tp.partition}"


def _parse_offset(group: str, tp: TopicPartition, data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise znodes.MalformedNode(group_partition_path(group, "offsets", tp), data, error) from error
