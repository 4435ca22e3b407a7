"""The broker's current settings: its file, overridden by what was altered at run time (KIP-226).

Two layers in ZooKeeper override the file: settings for all brokers, and settings for this one, which take precedence.
cluster/broker_configs.py reads and writes them. Do not cache `current`: a setting can change at run time. Idea:
Kafka's `DynamicBrokerConfig`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping

from broker.config.broker_config import BrokerConfig, is_connection_rate_of_listener
from broker.errors import ConfigError
from broker.settings import UpdateMode, did_you_mean, parse_properties, settings_of

logger = logging.getLogger(__name__)

KEYS = settings_of(BrokerConfig)


class DynamicConfig:
    """Used on the event loop, except for the first `apply` at start."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        self.cluster_wide: Mapping[str, str] = {}
        """The valid settings altered for all brokers."""
        self.own: Mapping[str, str] = {}
        """The valid settings altered for this broker."""
        self._subscribers: list[Callable[[BrokerConfig], None]] = []

    def subscribe(self, on_change: Callable[[BrokerConfig], None]) -> None:
        """Call `on_change` with the settings, now and after each change."""
        self._subscribers.append(on_change)
        on_change(self.current)

    def candidate(self, altered: Mapping[str, str], *, cluster_wide: bool) -> BrokerConfig:
        """The settings with `altered` as one layer. Raises ConfigError for a key that is unknown, cannot be altered (at
        this level) or has a bad value."""
        for name in altered:
            _check_alterable(name, cluster_wide=cluster_wide)
        layers = (altered, self.own) if cluster_wide else (self.cluster_wide, altered)
        return self._merged(*layers)

    def apply(self, cluster_wide: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Set both layers to what ZooKeeper has, and notify the subscribers.

        Another program may have written invalid settings there: they are logged and ignored, and the others apply.
        """
        for altered, at_cluster_level in ((cluster_wide, True), (own, False)):
            usable: dict[str, str] = {}
            for name, text in altered.items():
                try:
                    self.candidate({**usable, name: text}, cluster_wide=at_cluster_level)
                    usable[name] = text
                except ConfigError as error:
                    logger.error("an altered broker setting is ignored: %s", error)
            if at_cluster_level:
                self.cluster_wide = usable
            else:
                self.own = usable
        before, self.current = self.current, self._merged(self.cluster_wide, self.own)
        if before == self.current:
            return
        if before.connection_rates() != self.current.connection_rates():
            logger.info("connection rates of listeners changed: %s", self.current.connection_rates())
        for key in KEYS.values():
            old, new = getattr(before, key.attribute), getattr(self.current, key.attribute)
            if old != new:
                shown = "(hidden)" if key.sensitive else key.format(new)
                logger.info("setting changed: %s=%s", key.name, shown)
        for on_change in self._subscribers:
            on_change(self.current)

    def _merged(self, cluster_wide: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        altered = {**cluster_wide, **own}
        of_listeners = {name: altered.pop(name) for name in tuple(altered) if is_connection_rate_of_listener(name)}
        merged = parse_properties(BrokerConfig, altered, base=self.static)
        if of_listeners:
            overrides = {**self.static.listener_overrides, **of_listeners}
            merged = dataclasses.replace(merged, listener_overrides=overrides)
        merged.check_together()
        return merged


def _check_alterable(name: str, *, cluster_wide: bool) -> None:
    if is_connection_rate_of_listener(name):
        return
    key = KEYS.get(name)
    if key is None:
        raise ConfigError(f"unknown setting {name!r}{did_you_mean(name, KEYS)}")
    if key.update is UpdateMode.READ_ONLY:
        raise ConfigError(f"cannot update {name} dynamically: set it in the broker's file and restart the broker")
    if cluster_wide and key.update is UpdateMode.PER_BROKER:
        raise ConfigError(f"cannot update {name} at default cluster level, broker id must be specified")
