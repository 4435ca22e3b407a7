"""Taking part in a group of the early generation: `/consumers/G/ids` and `/owners`, which vanish with the session.

Handed by the application to `broker.client.zookeeper_consumer.ZooKeeperConsumer`, which may not know ZooKeeper itself;
that class says what is expected here. Every method blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.consumer_registry import ConsumerRegistry, group_partition_path
from broker.zookeeper.operations import BadVersion, Check, NodeExists, NoNode

__all__ = ["ConsumerMembership"]


class ConsumerMembership(ConsumerRegistry):
    """The registries of every group, with what a member does to them."""

    def register(self, group: str, consumer_id: str, subscription: bytes) -> None:
        """Be a member from now on, until `deregister` or the end of the session; again, to change the subscription."""
        self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/owners")
        self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/offsets")
        path = f"{znodes.CONSUMERS}/{group}/ids/{consumer_id}"
        if not self._create_own(path, subscription):
            self._zk.set(path, subscription)

    def deregister(self, group: str, consumer_id: str) -> None:
        """Be no member any more."""
        self._delete(f"{znodes.CONSUMERS}/{group}/ids/{consumer_id}")

    def claim(self, group: str, tp: TopicPartition, owner: str) -> bool:
        """Become the owner of `tp`, until `release` or the end of the session; False while somebody else is."""
        path = group_partition_path(group, "owners", tp)
        return self._create_own(path, owner.encode()) or self._owner_at(path) == owner

    def release(self, group: str, tp: TopicPartition, owner: str) -> None:
        """Let others have `tp`, if `owner` has it."""
        path = group_partition_path(group, "owners", tp)
        if self._owner_at(path) == owner:
            self._delete(path)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], owner: str) -> None:
        """`set_offsets`, if `owner` owns every one of these partitions. Raises BrokerError `unknown_member_id` else."""
        paths = [group_partition_path(group, "owners", tp) for tp in offsets]
        checks = []
        for path, node in zip(paths, self._zk.get_many(paths), strict=True):
            if node is None or node[0] != owner.encode():
                raise _not_owner(path, owner)
            checks.append(Check(path, node[1].version))
        try:
            self._set_offsets(group, offsets, checks)
        except (NoNode, BadVersion) as error:
            raise _not_owner(error.path, owner) from error

    def watch_members(self, group: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back soon, and whenever members came or went or the connection was made anew; the result ends it."""
        self._zk.ensure_path(f"{znodes.CONSUMERS}/{group}/ids")
        return self._zk.watch_children(f"{znodes.CONSUMERS}/{group}/ids", lambda names: callback()).cancel

    def _create_own(self, path: str, data: bytes) -> bool:
        """Create an ephemeral node of this session. One that an earlier session of ours left is replaced."""
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


def _not_owner(path: str, owner: str) -> BrokerError:
    return BrokerError(ErrorCode.unknown_member_id, f"{path}: {owner} is not the owner any more")
