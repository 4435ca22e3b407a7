"""Settings as DescribeConfigs and CreateTopics show them: value, source, type and synonyms.

Types have the numbers of Kafka's ConfigType. Synonyms are in Kafka's order
(`kafka.server.ConfigHelper`): altered for this broker, altered for all brokers, set in the broker's file, default.
Within each of these, a name with a finer unit comes first.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from broker.config.archive_settings import OPTIONS_PREFIX
from broker.config.broker_config import (
    CONNECTION_RATE,
    TOPIC_DEFAULT_KEYS,
    BrokerConfig,
    is_connection_rate_of_listener,
)
from broker.config.dynamic_config import DynamicConfig
from broker.config.group_config import BROKER_KEYS, GROUP_KEYS
from broker.config.topic_settings import TOPIC_KEYS
from broker.protocol.described_config import ConfigEntry, ConfigSource, ConfigSynonym
from broker.settings import Setting, UpdateMode, settings_of

_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "password": 9}
_BROKER_KEYS = settings_of(BrokerConfig)


def topic_entries(dynamic: DynamicConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a topic: its `overrides`, else the broker's settings."""
    values = dynamic.current.topic_defaults()
    defaults = _defaults(dynamic, TOPIC_KEYS, TOPIC_DEFAULT_KEYS, values)
    return _overridden(defaults, overrides, ConfigSource.DYNAMIC_TOPIC_CONFIG)


def group_entries(dynamic: DynamicConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a group: its `overrides`, else the broker's settings."""
    defaults = [
        entry if entry.synonyms else entry._replace(synonyms=(ConfigSynonym(entry.name, entry.value, entry.source),))
        for entry in _defaults(dynamic, GROUP_KEYS, BROKER_KEYS)
    ]  # unlike a topic's, a default of a group alone is told as a synonym
    return _overridden(defaults, overrides, ConfigSource.DYNAMIC_GROUP_CONFIG)


def _overridden(
    defaults: Iterable[ConfigEntry], overrides: Mapping[str, str], source: ConfigSource
) -> list[ConfigEntry]:
    entries = []
    for entry in defaults:
        if entry.name in overrides:
            override = ConfigSynonym(entry.name, overrides[entry.name], source)
            synonyms = (override, *entry.synonyms)
            entry = entry._replace(value=override.value, source=override.source, synonyms=synonyms)
        entries.append(entry)
    return entries


def _defaults(
    dynamic: DynamicConfig,
    keys: Mapping[str, Setting],
    broker_keys: Mapping[str, Iterable[str]],
    values: Mapping[str, str] = MappingProxyType({}),
) -> Iterable[ConfigEntry]:
    """`broker_keys`: the broker's settings that each comes from. `values`: of those with another value than these."""
    for name, key in keys.items():
        names = tuple(broker_keys.get(name, ()))
        synonyms = _synonyms_from(names[0], dynamic, names) if names else ()
        first = synonyms[0] if synonyms else ConfigSynonym(name, key.format(key.default), ConfigSource.DEFAULT_CONFIG)
        yield ConfigEntry(name, values.get(name, first.value), first.source, _TYPES[key.type], key.doc, synonyms)


def broker_entries(dynamic: DynamicConfig) -> list[ConfigEntry]:
    entries = []
    for name, key in _BROKER_KEYS.items():
        synonyms = _synonyms_from(name, dynamic, _names_of(name))
        entries.append(_broker_entry(key, _shown(key, dynamic.current), synonyms))
    for name in sorted({*dynamic.own, *dynamic.cluster_wide}):
        if is_connection_rate_of_listener(name):
            synonyms = tuple(_synonyms(dynamic, [name]))
            entries.append(_broker_entry(_key_of(name), synonyms[0].value, synonyms))
    return entries + [_archive_option(name) for name in sorted(dynamic.static.archive_options)]


def _archive_option(name: str) -> ConfigEntry:
    """An option of the archive's store, whose value nobody sees: which of them are secret only the store knows."""
    synonym = ConfigSynonym(OPTIONS_PREFIX + name, None, ConfigSource.STATIC_BROKER_CONFIG)
    doc = "An option of the store that archive.url names."
    return ConfigEntry(synonym.name, None, synonym.source, _TYPES["password"], doc, (synonym,), True, True)


def _key_of(name: str) -> Setting:
    """The declaration of a setting that can be altered; some are for one listener."""
    return _BROKER_KEYS.get(name) or dataclasses.replace(_BROKER_KEYS[CONNECTION_RATE], name=name)


def _synonyms_from(name: str, dynamic: DynamicConfig, names: Iterable[str]) -> tuple[ConfigSynonym, ...]:
    """The synonyms from the first that is called `name` on, as in Kafka."""
    return tuple(itertools.dropwhile(lambda one: one.name != name, _synonyms(dynamic, names)))


def cluster_entries(dynamic: DynamicConfig) -> list[ConfigEntry]:
    """The settings that were altered for all brokers."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _broker_entry(_key_of(name), value, (ConfigSynonym(name, value, source),))
        for name, value in dynamic.cluster_wide.items()
    ]


def _broker_entry(key: Setting, value: str | None, synonyms: tuple[ConfigSynonym, ...]) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    read_only = key.update is UpdateMode.READ_ONLY
    return ConfigEntry(key.name, value, source, _TYPES[key.type], key.doc, synonyms, read_only, key.sensitive)


def _synonyms(dynamic: DynamicConfig, names: Iterable[str]) -> Iterable[ConfigSynonym]:
    for source, values in (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, dynamic.own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, dynamic.cluster_wide),
        (ConfigSource.STATIC_BROKER_CONFIG, _static_values(dynamic.static)),
        (ConfigSource.DEFAULT_CONFIG, _built_in_values()),
    ):
        for name in names:
            if name in values:
                yield ConfigSynonym(name, None if _key_of(name).sensitive else values[name], source)


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
