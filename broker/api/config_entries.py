"""Settings as DescribeConfigs and CreateTopics show them: value, where it comes from, type, synonyms.

Called by those handlers. Sources and types are numbered as in Kafka's ConfigSource and ConfigType.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.log.log_config import TOPIC_KEYS, LogConfig
from broker.settings import settings_of

__all__ = ["ConfigEntry", "ConfigSource", "broker_entries", "topic_entries"]


class ConfigSource(IntEnum):
    """Where a value was set."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "password": 9}


class ConfigEntry(NamedTuple):
    """One setting in force. `synonyms` lists (name, value, source), the strongest first."""

    name: str
    value: str
    source: ConfigSource
    type: int
    doc: str
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


def topic_entries(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a topic that has `overrides`, over the broker's settings, over Kafka's defaults."""
    built_in = LogConfig()
    from_broker = config.topic_defaults()
    entries = []
    for name, key in TOPIC_KEYS.items():
        default = key.format(getattr(built_in, key.attribute))
        synonyms = [(name, default, ConfigSource.DEFAULT)]
        if from_broker.get(name, default) != default:
            synonyms.insert(0, (name, from_broker[name], ConfigSource.STATIC_BROKER))
        if name in overrides:
            synonyms.insert(0, (name, overrides[name], ConfigSource.TOPIC))
        _, value, source = synonyms[0]
        entries.append(ConfigEntry(name, value, source, _TYPES[key.type], key.doc, tuple(synonyms)))
    return entries


def broker_entries(config: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of this broker."""
    entries = []
    values = config.describe()
    for name, key in settings_of(BrokerConfig).items():
        default = key.format(key.default)
        value = values[name]
        source = ConfigSource.DEFAULT if value == default else ConfigSource.STATIC_BROKER
        entries.append(ConfigEntry(name, value, source, _TYPES[key.type], key.doc, ((name, value, source),)))
    return entries
