"""Broker settings that are altered at run time, kept in ZooKeeper in Kafka's layout (KIP-226).

`/config/brokers/<default>` applies to all brokers, `/config/brokers/N` to broker N and takes precedence. A
notification node announces each change, and every broker then reads its two nodes again. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.config.dynamic_config import DynamicConfig
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.log_config import LogConfig
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.znodes import DEFAULT_ENTITY


class BrokerConfigs:
    def __init__(self, dynamic: DynamicConfig, store: ClusterStore) -> None:
        self.dynamic = dynamic
        self._registry = store.registry
        self._store = store

    async def alter(self, changes: Mapping[str, str | None], *, cluster_wide: bool, validate_only: bool) -> None:
        """Set settings of this broker or of all, or remove those that are None.

        Raises BrokerError `invalid_request` and changes nothing if a setting is unknown, cannot change at run time or
        has a bad value.
        """
        have = self.dynamic.cluster_wide if cluster_wide else self.dynamic.own
        merged = {**have, **changes}
        try:
            altered = {name: value for name, value in merged.items() if value is not None}
            candidate = self.dynamic.candidate(altered, cluster_wide=cluster_wide)
            LogConfig.from_properties(candidate.topic_defaults())
        except ConfigError as error:
            raise BrokerError(ErrorCode.invalid_request, str(error)) from error
        if validate_only:
            return
        entity = DEFAULT_ENTITY if cluster_wide else str(self.dynamic.static.broker_id)
        await self._store(self._registry.alter_broker_config, entity, changes)
        await self.refresh()
        await self._store(self._store.changes.notify_config_change, f"brokers/{entity}")

    async def refresh(self) -> None:
        """Read both layers again and apply them."""
        self.dynamic.apply(*await self._store(self._registry.broker_configs, self.dynamic.static.broker_id))
