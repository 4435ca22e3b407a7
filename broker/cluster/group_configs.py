"""The settings of groups (KIP-848, KIP-932): kept in ZooKeeper, `/config/groups/<group>`, with a cache.

All are read at start, and one again when a notification names it. So no request waits for ZooKeeper. A group need not
exist. Lives on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker.cluster.cluster_watch import ClusterWatch
from broker.config.dynamic_config import DynamicConfig
from broker.config.group_config import GroupConfig
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.znodes import desanitized, sanitized

logger = logging.getLogger(__name__)


class GroupConfigs:
    def __init__(self, dynamic: DynamicConfig, store: ClusterStore) -> None:
        self._dynamic = dynamic
        self._registry = store.registry
        self._store = store
        self.known: dict[str, Mapping[str, str]] = {}
        """Group id → its own settings, of the groups that have some."""
        # The settings in force of those, and of all others (""), as long as the broker's stay the same.
        self._in_force: dict[str, GroupConfig] = {}
        self._broker = dynamic.current
        self._listeners: list[Callable[[str], object]] = []

    def add_change_listener(self, listener: Callable[[str], object]) -> None:
        """It is told each group whose settings have changed."""
        self._listeners.append(listener)

    def of(self, group_id: str) -> GroupConfig:
        if self._broker is not self._dynamic.current:
            self._broker, self._in_force = self._dynamic.current, {}
        own = self.known.get(group_id, {})
        key = group_id if own else ""
        if (found := self._in_force.get(key)) is None:
            try:
                found = GroupConfig.of(self._broker, own)
            except ConfigError as error:
                logger.warning("the settings of group %s in ZooKeeper are ignored: %s", group_id, error)
                found = GroupConfig.of(self._broker, {})
            self._in_force[key] = found
        return found

    def watch(self, changes: ClusterWatch) -> None:
        """Read again what notifications name."""
        changes.add_config_listener("groups", self.refresh)

    async def refresh(self, node: str = "") -> None:
        """Read the settings of the group of a node's name, or of all. Raises BrokerError when ZooKeeper is away."""
        found = await self._store(self._registry.group_configs, [node] if node else None)
        kept = {group: config for group, config in self.known.items() if node and group != desanitized(node)}
        before, self.known = self.known, kept | {group: config for group, config in found.items() if config}
        self._in_force = {}
        for group in before.keys() | self.known.keys():
            if before.get(group) != self.known.get(group):
                for listener in self._listeners:
                    listener(group)

    async def alter(self, group_id: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set settings of a group, or remove those that are None. Raises BrokerError and ConfigError (a bad value)."""
        if not group_id:
            raise BrokerError(ErrorCode.invalid_request, "there are no settings for all groups: name one")
        merged = {**self.known.get(group_id, {}), **changes}
        GroupConfig.of(self._dynamic.current, {name: value for name, value in merged.items() if value is not None})
        if not validate_only:
            await self._store(self._alter, sanitized(group_id), changes)
            await self.refresh(sanitized(group_id))

    def _alter(self, node: str, changes: Mapping[str, str | None]) -> None:
        """In one call of the thread, so that all brokers are notified even if the client leaves between the two."""
        self._registry.alter_group_config(node, changes)
        self._store.changes.notify_config_change(f"groups/{node}")
