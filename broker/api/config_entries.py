"""Settings as DescribeConfigs and CreateTopics show them: value, source, type and synonyms.

Sources and types have the numbers of Kafka's ConfigSource and ConfigType. Synonyms are in Kafka's order
(`kafka.server.ConfigHelper`): altered for this broker, altered for all brokers, set in the broker's file, default.
Within each of these, a name with a finer unit comes first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from broker.config.broker_config import TOPIC_DEFAULT_KEYS, BrokerConfig
from broker.config.dynamic_config import DynamicConfig
from broker.log.log_config import TOPIC_KEYS
from broker.settings import Setting, UpdateMode, settings_of

__all__ = ["ConfigEntry", "ConfigSource", "Synonym", "broker_entries", "cluster_entries", "topic_entries"]


class ConfigSource(IntEnum):
    """Where a value was set."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "password": 9}
_BROKER_KEYS = settings_of(BrokerConfig)


class Synonym(NamedTuple):
    """A value that was set, under the name it was set by."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting in force. The first of `synonyms` wins. A secret value is None."""

    name: str
    value: str | None
    source: ConfigSource
    type: int = 0
    doc: str | None = None
    synonyms: tuple[Synonym, ...] = ()
    read_only: bool = False
    sensitive: bool = False


def topic_entries(dynamic: DynamicConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a topic: its `overrides`, else the broker's settings."""
    return [
        entry._replace(
            value=overrides[entry.name],
            source=ConfigSource.TOPIC,
            synonyms=(Synonym(entry.name, overrides[entry.name], ConfigSource.TOPIC), *entry.synonyms),
        )
        if entry.name in overrides
        else entry
        for entry in _topic_defaults(dynamic)
    ]


def _topic_defaults(dynamic: DynamicConfig) -> list[ConfigEntry]:
    defaults = dynamic.current.topic_defaults()
    entries = []
    for name, key in TOPIC_KEYS.items():
        names = tuple(TOPIC_DEFAULT_KEYS.get(name, ()))
        synonyms = _synonyms_from(names[0], dynamic, names) if names else ()
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        value = defaults.get(name, key.format(key.default))
        entries.append(ConfigEntry(name, value, source, _TYPES[key.type], key.doc, synonyms))
    return entries


def broker_entries(dynamic: DynamicConfig) -> list[ConfigEntry]:
    """Every setting of this broker."""
    entries = []
    for name, key in _BROKER_KEYS.items():
        synonyms = _synonyms_from(name, dynamic, _names_of(name))
        entries.append(_broker_entry(key, _shown(key, dynamic.current), synonyms))
    return entries


def _synonyms_from(name: str, dynamic: DynamicConfig, names: Iterable[str]) -> tuple[Synonym, ...]:
    """The synonyms from the first that is called `name` on, as in Kafka."""
    return tuple(itertools.dropwhile(lambda one: one.name != name, _synonyms(dynamic, names)))


def cluster_entries(dynamic: DynamicConfig) -> list[ConfigEntry]:
    """The settings that were altered for all brokers."""
    return [
        _broker_entry(_BROKER_KEYS[name], value, (Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER),))
        for name, value in dynamic.cluster_wide.items()
    ]


def _broker_entry(key: Setting, value: str | None, synonyms: tuple[Synonym, ...]) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    read_only = key.update is UpdateMode.READ_ONLY
    return ConfigEntry(key.name, value, source, _TYPES[key.type], key.doc, synonyms, read_only, key.sensitive)


def _synonyms(dynamic: DynamicConfig, names: Iterable[str]) -> Iterable[Synonym]:
    for source, values in (
        (ConfigSource.DYNAMIC_BROKER, dynamic.own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, dynamic.cluster_wide),
        (ConfigSource.STATIC_BROKER, _static_values(dynamic.static)),
        (ConfigSource.DEFAULT, _built_in_values()),
    ):
        for name in names:
            if name in values:
                yield Synonym(name, None if _BROKER_KEYS[name].sensitive else values[name], source)


@functools.lru_cache(maxsize=4)
def _static_values(static: BrokerConfig) -> Mapping[str, str]:
    """The settings from the file and the command line, and those that differ from their default."""
    return {
        name: key.format(value)
        for name, key in _BROKER_KEYS.items()
        if (value := getattr(static, key.attribute)) is not None and (name in static.named or value != key.default)
    }


@functools.cache
def _built_in_values() -> Mapping[str, str]:
    return {name: key.format(key.default) for name, key in _BROKER_KEYS.items() if key.default is not None}


@functools.cache
def _names_of(name: str) -> tuple[str, ...]:
    """The keys of one setting in different units, the finest first. Most settings have one key."""
    groups = (tuple(names) for names in TOPIC_DEFAULT_KEYS.values())
    return next((group for group in groups if name in group), (name,))


def _shown(key: Setting, config: BrokerConfig) -> str | None:
    value = getattr(config, key.attribute)
    return None if value is None or key.sensitive else key.format(value)
