"""The resources that have settings: topics, groups, brokers, and loggers. Used by the config handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from broker.api.config_entries import broker_entries, cluster_entries, group_entries, topic_entries
from broker.api.context import ApiContext, Client
from broker.config.broker_config import BrokerConfig
from broker.config.group_config import GROUP_KEYS
from broker.config.topic_settings import TOPIC_KEYS
from broker.errors import BrokerError, ErrorCode
from broker.protocol.described_config import ConfigEntry, ConfigSource, ResourceType
from broker.protocol.permissions import Permission
from broker.protocol.topic_names import check_topic_name
from broker.replica.cluster_metadata import Topic
from broker.security.acl_types import CLUSTER_NAME, AclResourceType
from broker.settings import Setting, settings_of

Changes = dict[str, str | None]
"""Setting → new value, or None to delete it."""

_ACL_TYPES = {ResourceType.TOPIC: AclResourceType.TOPIC, ResourceType.GROUP: AclResourceType.GROUP}
_ROOT = "root"
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_LEVEL = Setting("level", "level", "string", None, "Level of a logger.", "", None)


class ConfigResource(Protocol):
    """One resource with settings."""

    replaceable: bool
    """Whether AlterConfigs may alter it too."""

    @property
    def keys(self) -> Mapping[str, Setting]:
        """Its known settings."""

    def describe(self) -> list[ConfigEntry]:
        """All its settings in force."""

    def current(self) -> Mapping[str, str]:
        """The values set on it."""

    async def alter(self, changes: Changes, *, validate_only: bool) -> None:
        """Make all of the changes, or none. Raises BrokerError (Kafka's codes) or ConfigError (a bad value)."""


def check_resource(context: ApiContext, client: Client, needs: Iterable[Permission], asked: Any) -> None:
    """Raise BrokerError if the client lacks the one of `needs` that is for the type of the resource.

    Brokers and what belongs to them need a right on the cluster.
    """
    kind, name = _ACL_TYPES.get(asked.resource_type, AclResourceType.CLUSTER), asked.resource_name
    need = next(one for one in needs if one.resource is kind)
    context.check(client, need, CLUSTER_NAME if kind is AclResourceType.CLUSTER else name)


def resource(context: ApiContext, kind: int, name: str) -> ConfigResource:
    """The resource of this kind and name. Raises BrokerError if there is none."""
    if kind == ResourceType.TOPIC:
        return _Topic(context, name)
    if kind == ResourceType.BROKER:
        if name:
            _check_broker(context, name)
        return _Broker(context, cluster_wide=not name)
    if kind == ResourceType.BROKER_LOGGER:
        _check_broker(context, name)
        return _Loggers()
    if kind == ResourceType.GROUP:
        return _Group(context, name)
    if kind == ResourceType.CLIENT_METRICS:
        raise BrokerError(ErrorCode.invalid_request, "CLIENT_METRICS resources have no settings here")
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
        await self._context.topic_changes.alter_config(self._name, changes, validate_only=validate_only)


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


class _Group:
    replaceable = True
    keys = GROUP_KEYS

    def __init__(self, context: ApiContext, name: str) -> None:
        self._context = context
        self._name = name

    def describe(self) -> list[ConfigEntry]:
        if not self._name:
            raise BrokerError(ErrorCode.invalid_request, "there are no settings for all groups: name one")
        return group_entries(self._context.configs.dynamic, self.current())

    def current(self) -> Mapping[str, str]:
        return self._context.group_configs.known.get(self._name, {})

    async def alter(self, changes: Changes, *, validate_only: bool) -> None:
        await self._context.group_configs.alter(self._name, changes, validate_only=validate_only)


class _Loggers:
    """The loggers of this broker process (KIP-412). Levels are not stored: a restart resets them.

    Names are those of Python's loggers (`broker.server`), `root` is the topmost. Levels are Kafka's.
    """

    replaceable = False

    @property
    def keys(self) -> Mapping[str, Setting]:
        return dict.fromkeys(_logger_names(), _LEVEL)

    def describe(self) -> list[ConfigEntry]:
        return [
            ConfigEntry(name, _level_name(_logger(name).getEffectiveLevel()), ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG)
            for name in _logger_names()
        ]

    def current(self) -> Mapping[str, str]:
        """Each logger with its own level, or an empty text if it takes its parent's."""
        return {name: _level_name(_logger(name).level) if _logger(name).level else "" for name in _logger_names()}

    async def alter(self, changes: Changes, *, validate_only: bool) -> None:
        known = _logger_names()
        for name, level in changes.items():
            if name not in known:
                raise BrokerError(ErrorCode.invalid_config, f"there is no logger {name!r}")
            if level is None and name == _ROOT:
                raise BrokerError(ErrorCode.invalid_request, "the level of the root logger cannot be removed")
            if level is not None and level.upper() not in _LEVELS:
                raise BrokerError(ErrorCode.invalid_config, f"{name}={level}: the levels are {', '.join(_LEVELS)}")
        if not validate_only:
            for name, level in changes.items():
                _logger(name).setLevel(logging.NOTSET if level is None else _LEVELS[level.upper()])


def _logger_names() -> set[str]:
    made = (name for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger))
    return {_ROOT, *made}


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == _ROOT else name)


def _level_name(level: int) -> str:
    """The lowest of Kafka's levels that is not below `level`."""
    return next((name for name, number in _LEVELS.items() if level <= number), "FATAL")
