"""Settings of brokers altered while they run: kept in ZooKeeper, in Kafka's layout, and taken over at once (KIP-226).

`/config/brokers/<default>` holds for all brokers, `/config/brokers/N` for broker N and wins. Whoever writes there tells
it by a notification node, and every broker reads its two nodes again. Called by the config handlers and, when told of a
change, by the server; lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.config.dynamic_config import DynamicConfig
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.log_config import LogConfig
from broker.zookeeper.client import ZooKeeperCalls
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import ALL_BROKERS

__all__ = ["BrokerConfigs"]


class BrokerConfigs:
    """The ways to change what `dynamic` holds."""

    def __init__(
        self,
        dynamic: DynamicConfig,
        registry: Registry,
        calls: ZooKeeperCalls,
        *,
        tell_changed: Callable[[str], None] = lambda entity: None,
    ) -> None:
        """`tell_changed("brokers/N")`, which blocks, tells the other brokers."""
        self.dynamic = dynamic
        self._registry = registry
        self._call = calls
        self._tell_changed = tell_changed

    async def alter(self, changes: Mapping[str, str | None], *, cluster_wide: bool, validate_only: bool) -> None:
        """Set (or with None take away) settings of this broker, or of all.

        Raises BrokerError: `invalid_request` for a setting that is unknown, cannot change at run time or has a bad
        value; nothing is changed then.
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
        entity = ALL_BROKERS if cluster_wide else str(self.dynamic.static.broker_id)
        await self._call(self._registry.alter_broker_config, entity, changes)
        await self.refresh()
        await self._call(self._tell_changed, f"brokers/{entity}")

    async def refresh(self) -> None:
        """Read both layers again and take them over."""
        self.dynamic.apply(*await self._call(self._registry.broker_configs, self.dynamic.static.broker_id))
