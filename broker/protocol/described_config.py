"""A setting as DescribeConfigs shows it (KIP-133, KIP-226): what it belongs to, value, source and synonyms."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

ARCHIVE_STATUS: Final = "archive.status"
"""Asked for by this name, a broker of pykafka answers with what it knows of the archives that it fills (read-only)."""


class ResourceType(IntEnum):
    """What a setting belongs to; Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value was set, with Kafka's numbers; -1 when the broker does not say."""

    UNKNOWN = -1
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN  # from a later Kafka

    @property
    def dynamic(self) -> bool:
        """Whether the value was set at run time, so that it can be deleted."""
        return self.name.startswith("DYNAMIC")


class ConfigSynonym(NamedTuple):
    """A value that was set, under the name it was set by. It applies if the synonyms before it are deleted."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting in force. The first of `synonyms` wins. A sensitive value is None. `type` is Kafka's ConfigType."""

    name: str
    value: str | None
    source: ConfigSource
    type: int = 0
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()
    read_only: bool = False
    sensitive: bool = False
