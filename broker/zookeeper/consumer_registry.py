"""Consumer groups of the early generation, which live in ZooKeeper: `/consumers/G/{ids,owners,offsets}`.

Used by the console to show and set what such consumers (and loads with the ZooKeeper offset store) have committed, and
by `broker.client.zookeeper_consumer.ZooKeeperConsumer`, to which the application hands it. Members and owners are
ephemeral nodes of this session. An offset is that of the next record to read, as decimal text. Every method blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import BadVersion, Check, Create, NodeExists, NoNode, Operation, SetData


class ConsumerRegistry:
    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    # -- reading

    def groups(self) -> list[str]:
        return self._zk.children(znodes.CONSUMERS)

    def members(self, group: str) -> dict[str, bytes]:
        """Live consumers of a group with their subscriptions, which are Kafka's JSON."""
        root = f"{znodes.CONSUMERS}/{group}/ids"
        names = self._zk.children(root)
        nodes = self._zk.get_many([f"{root}/{name}" for name in names])
        return {name: node[0] for name, node in zip(names, nodes, strict=True) if node is not None}

    def owners(self, group: str) -> dict[TopicPartition, str]:
        return {tp: data.decode() for tp, data in self._read_partitions(group, "owners").items()}

    def offsets(self, group: str, partitions: Sequence[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """The committed offsets of these partitions, or of all; without those that have none. Raises MalformedNode."""
        read = self._read_partitions(group, "offsets", partitions)
        return {tp: _parse_offset(group, tp, data) for tp, data in read.items()}

    def watch_members(self, group: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back soon, whenever members come or go, and after each reconnection. Call the result to end it."""
        self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/ids")
        return self._zk.watch_children(f"{znodes.CONSUMERS}/{group}/ids", lambda names: callback()).cancel

    # -- being a member

    def register(self, group: str, consumer_id: str, subscription: bytes) -> None:
        """Join until `deregister` or the end of the session. Call it again to change the subscription."""
        self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/owners")
        self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/offsets")
        path = f"{znodes.CONSUMERS}/{group}/ids/{consumer_id}"
        if not self._create_own(path, subscription):
            self._zk.set(path, subscription)

    def deregister(self, group: str, consumer_id: str) -> None:
        self._delete(f"{znodes.CONSUMERS}/{group}/ids/{consumer_id}")

    def claim(self, group: str, tp: TopicPartition, owner: str) -> bool:
        """Own `tp` until `release` or the end of the session. False while another consumer owns it."""
        path = _path(group, "owners", tp)
        return self._create_own(path, owner.encode()) or self._owner_at(path) == owner

    def release(self, group: str, tp: TopicPartition, owner: str) -> None:
        path = _path(group, "owners", tp)
        if self._owner_at(path) == owner:
            self._delete(path)

    # -- committing

    def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set these offsets in one transaction; other partitions keep theirs."""
        self._set_offsets(group, offsets, [])

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], owner: str) -> None:
        """`set_offsets`. Raises BrokerError `unknown_member_id` unless `owner` owns all these partitions."""
        paths = [_path(group, "owners", tp) for tp in offsets]
        checks = []
        for path, node in zip(paths, self._zk.get_many(paths), strict=True):
            if node is None or node[0] != owner.encode():
                raise _not_owner(path, owner)
            checks.append(Check(path, node[1].version))
        try:
            self._set_offsets(group, offsets, checks)
        except (NoNode, BadVersion) as error:
            raise _not_owner(error.path, owner) from error

    def _set_offsets(self, group: str, offsets: Mapping[TopicPartition, int], checks: Sequence[Check]) -> None:
        """Raises NoNode or BadVersion when `checks` fail."""
        checked = {check.path for check in checks}
        while True:
            for topic in {tp.topic for tp in offsets}:
                self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/offsets/{topic}")
            paths = {_path(group, "offsets", tp): str(offset).encode() for tp, offset in offsets.items()}
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

    # -- nodes

    def _read_partitions(
        self, group: str, kind: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, bytes]:
        if partitions is None:
            root = f"{znodes.CONSUMERS}/{group}/{kind}"
            topics = self._zk.children(root)
            numbers = self._zk.children_many([f"{root}/{topic}" for topic in topics])
            partitions = [
                TopicPartition(topic, int(number))
                for topic, of_topic in zip(topics, numbers, strict=True)
                for number in sorted(of_topic, key=int)
            ]
        nodes = self._zk.get_many([_path(group, kind, tp) for tp in partitions])
        return {tp: node[0] for tp, node in zip(partitions, nodes, strict=True) if node is not None}

    def _create_own(self, path: str, data: bytes) -> bool:
        """Create an ephemeral node of this session, in place of an equal one that an earlier session left."""
        while True:
            try:
                self._zk.create(path, data, ephemeral=True, parents=True)
                return True
            except NodeExists:
                try:
                    found, stat = self._zk.get(path)
                except NoNode:
                    continue
                if found != data or stat.ephemeral_owner == self._zk.session_id:
                    return False
                self._delete(path)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(NoNode):
            self._zk.delete(path)

    def _owner_at(self, path: str) -> str | None:
        try:
            return self._zk.get(path)[0].decode()
        except NoNode:
            return None


def _path(group: str, kind: str, tp: TopicPartition) -> str:
    return f"{znodes.CONSUMERS}/{group}/{kind}/{tp.topic}/{tp.partition}"


def _parse_offset(group: str, tp: TopicPartition, data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise znodes.MalformedNode(_path(group, "offsets", tp), data, error) from error


def _not_owner(path: str, owner: str) -> BrokerError:
    return BrokerError(ErrorCode.unknown_member_id, f"{path}: {owner} is not the owner any more")
