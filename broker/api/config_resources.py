"""The kinds of things that have settings: topics, brokers, and the loggers of a broker.

Called by the config handlers. Each kind describes one of its members, tells what that has of its own, and alters it.
Errors are BrokerError with Kafka's codes; the text says what was wrong and what to set. ConfigError is a bad setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

from broker.api.broker_loggers import LEVEL, alter_loggers, check_loggers, logger_entries, own_levels
from broker.api.config_changes import Changes
from broker.api.config_entries import ConfigEntry, broker_entries, cluster_entries, topic_entries
from broker.api.context import ApiContext
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ErrorCode
from broker.log.log_config import TOPIC_KEYS
from broker.protocol.topic_names import check_topic_name
from broker.settings import Setting, settings_of
from broker.zookeeper.cluster_metadata import Topic

__all__ = ["ConfigResource", "ResourceType", "resource"]


class ResourceType(IntEnum):
    """Numbers of Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(Protocol):
    """One thing that has settings."""

    replaceable: bool
    """Whether AlterConfigs, too, may alter it."""

    @property
    def keys(self) -> Mapping[str, Setting]:
        """What is known of its settings."""

    def describe(self) -> list[ConfigEntry]:
        """All its settings in force."""

    def current(self) -> Mapping[str, str]:
        """What it has of its own."""

    async def alter(self, changes: Changes, *, validate_only: bool) -> None:
        """All or none of the changes. Raises BrokerError or ConfigError."""


def resource(context: ApiContext, kind: int, name: str) -> ConfigResource:
    """The resource of that kind and name. Raises BrokerError when there is none."""
    if kind == ResourceType.TOPIC:
        return _Topic(context, name)
    if kind == ResourceType.BROKER:
        if name:
            _check_broker(context, name)
        return _Broker(context, cluster_wide=not name)
    if kind == ResourceType.BROKER_LOGGER:
        _check_broker(context, name)
        return _Loggers()
    if kind in (ResourceType.CLIENT_METRICS, ResourceType.GROUP):
        raise BrokerError(ErrorCode.invalid_request, f"{ResourceType(kind).name} resources have no settings here")
    raise BrokerError(ErrorCode.invalid_request, f"there is no resource type {kind}")


def _check_broker(context: ApiContext, name: str) -> None:
    try:
        broker_id = int(name)
    except ValueError:
        raise BrokerError(ErrorCode.invalid_request, f"the broker id must be an integer, but it is {name!r}") from None
    if broker_id != context.broker_id:
        raise BrokerError(
            ErrorCode.invalid_request, f"this is broker {context.broker_id}, not {broker_id}: ask that one"
        )


class _Topic:
    replaceable = True
    keys = TOPIC_KEYS

    def __init__(self, context: ApiContext, name: str) -> None:
        self._context = context
        self._name = name

    def _found(self) -> Topic:
        topic = self._context.topics.metadata.topics.get(self._name)
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {self._name}")
        return topic

    def describe(self) -> list[ConfigEntry]:
        check_topic_name(self._name)
        return topic_entries(self._context.configs.dynamic, self._found().config)

    def current(self) -> Mapping[str, str]:
        if not self._name:
            raise BrokerError(ErrorCode.invalid_request, "there are no settings for all topics: name one")
        check_topic_name(self._name)
        return self._found().config

    async def alter(self, changes: Changes, *, validate_only: bool) -> None:
        await self._context.topics.alter_config(self._name, changes, validate_only=validate_only)


class _Broker:
    replaceable = True
    keys = settings_of(BrokerConfig)

    def __init__(self, context: ApiContext, *, cluster_wide: bool) -> None:
        self._configs = context.configs
        self._cluster_wide = cluster_wide

    def describe(self) -> list[ConfigEntry]:
        dynamic = self._configs.dynamic
        return cluster_entries(dynamic) if self._cluster_wide else broker_entries(dynamic)

    def current(self) -> Mapping[str, str]:
        return self._configs.dynamic.cluster_wide if self._cluster_wide else self._configs.dynamic.own

    async def alter(self, changes: Changes, *, validate_only: bool) -> None:
        await self._configs.alter(changes, cluster_wide=self._cluster_wide, validate_only=validate_only)


class _Loggers:
    replaceable = False

    @property
    def keys(self) -> Mapping[str, Setting]:
        return dict.fromkeys(own_levels(), LEVEL)

    def describe(self) -> list[ConfigEntry]:
        return logger_entries()

    def current(self) -> Mapping[str, str]:
        return own_levels()

    async def alter(self, changes: Changes, *, validate_only: bool) -> None:
        check_loggers(changes)
        if not validate_only:
            alter_loggers(changes)
