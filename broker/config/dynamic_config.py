"""The broker's settings in force: its file, and over that what was altered while it runs (KIP-226). Pure.

Held by the server. Two layers lie over the file, both kept in ZooKeeper: settings for all brokers, and settings for
this one, which win. Whoever must hear of a change subscribes; everybody else reads `current` when he needs a value.
Idea: Kafka's `DynamicBrokerConfig`. cluster/broker_configs.py reads and writes the layers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.settings import Setting, UpdateMode, did_you_mean, parse_properties, settings_of

__all__ = ["DynamicConfig"]

logger = logging.getLogger(__name__)

KEYS = settings_of(BrokerConfig)


class DynamicConfig:
    """Lives on the event loop, but for the first `apply`, which comes before anyone else knows it."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        self.cluster_wide: Mapping[str, str] = {}
        """What was altered for all brokers, as far as it can be used."""
        self.own: Mapping[str, str] = {}
        """What was altered for this broker, as far as it can be used."""
        self._subscribers: list[Callable[[BrokerConfig], None]] = []

    def subscribe(self, told: Callable[[BrokerConfig], None]) -> None:
        """Call `told` with the settings, now and after each change."""
        self._subscribers.append(told)
        told(self.current)

    def candidate(self, altered: Mapping[str, str], *, cluster_wide: bool) -> BrokerConfig:
        """The settings that would be in force if one layer became `altered`. Raises ConfigError with all that is
        wrong about the first bad key: unknown, not to be changed (at this level), or of a bad value."""
        for name in altered:
            _check_alterable(name, cluster_wide=cluster_wide)
        layers = (altered, self.own) if cluster_wide else (self.cluster_wide, altered)
        return self._merged(*layers)

    def apply(self, cluster_wide: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take over both layers as ZooKeeper has them and tell the subscribers.

        What cannot be used was written there by another program: it is logged and left out, so that the others hold.
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
        for key in KEYS.values():
            old, new = getattr(before, key.attribute), getattr(self.current, key.attribute)
            if old != new:
                shown = "(hidden)" if key.sensitive else key.format(new)
                logger.info("setting changed: %s=%s", key.name, shown)
        for told in self._subscribers:
            told(self.current)

    def _merged(self, cluster_wide: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        merged = parse_properties(BrokerConfig, {**cluster_wide, **own}, base=self.static)
        merged.check_together()
        return merged


def _check_alterable(name: str, *, cluster_wide: bool) -> Setting:
    key = KEYS.get(name)
    if key is None:
        raise ConfigError(f"unknown setting {name!r}{did_you_mean(name, KEYS)}")
    if key.update is UpdateMode.READ_ONLY:
        raise ConfigError(f"cannot update {name} dynamically: set it in the broker's file and start the broker again")
    if cluster_wide and key.update is UpdateMode.PER_BROKER:
        raise ConfigError(f"cannot update {name} at default cluster level, broker id must be specified")
    return key
