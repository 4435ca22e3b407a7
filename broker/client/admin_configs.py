"""Read and change the settings of topics and brokers: a part of `Admin`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from broker.client.admin_requests import AdminRequests, check
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field

__all__ = ["ALL_BROKERS", "ConfigAdmin", "ConfigEntry", "ConfigSource", "ConfigSynonym", "ResourceType"]

_SET, _DELETE = 0, 1

ALL_BROKERS: Final = ""
"""As the name of a broker: the cluster-wide defaults of all (KIP-226)."""


class ResourceType(IntEnum):
    """What has configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it; -1 where the broker does not say."""

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
        return cls.UNKNOWN  # of a later Kafka

    @property
    def dynamic(self) -> bool:
        """Whether it was set at run time, and so can be taken back."""
        return self.name.startswith("DYNAMIC")


class ConfigSynonym(NamedTuple):
    """A value that would be in force if those before it were taken away."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting as a broker sees it. `value` is None when it is hidden."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def set_on_topic(self) -> bool:
        """Whether it was set for this very topic, not inherited."""
        return self.source is ConfigSource.DYNAMIC_TOPIC_CONFIG


class ConfigAdmin(AdminRequests):
    """Settings of topics and brokers."""

    def describe_configs(
        self, resource: ResourceType, name: str, keys: Sequence[str] | None = None
    ) -> dict[str, ConfigEntry]:
        """Settings of a topic, or of the broker with id `name`, or ALL_BROKERS: `keys`, or all there are.

        Raises BrokerError: `unknown_topic_or_partition`, `broker_not_available`.
        """
        row = {"resource_type": int(resource), "resource_name": name, "configuration_keys": keys}
        body = {"resources": [row], "include_synonyms": True, "include_documentation": True}
        answer = self._ask_about(ApiKey.DESCRIBE_CONFIGS, body, resource, name)
        (result,) = answer.results
        check(result, f"describing the configuration of {_named(resource, name)}")
        return {str(entry.name): _entry(entry) for entry in result.configs}

    def alter_configs(
        self,
        resource: ResourceType,
        name: str,
        settings: Mapping[str, str],
        *,
        delete: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set `settings` and bring `delete` back to their defaults; others stay as they are (KIP-339).

        Raises BrokerError: `invalid_config`, `unknown_topic_or_partition`; nothing is changed then.
        """
        rows: list[dict[str, Any]] = [
            {"name": key, "config_operation": _SET, "value": value} for key, value in settings.items()
        ]
        rows += ({"name": key, "config_operation": _DELETE, "value": None} for key in delete)
        target = {"resource_type": int(resource), "resource_name": name, "configs": rows}
        body = {"resources": [target], "validate_only": validate_only}
        answer = self._ask_about(ApiKey.INCREMENTAL_ALTER_CONFIGS, body, resource, name)
        (result,) = answer.responses
        check(result, f"changing the configuration of {_named(resource, name)}")

    def _ask_about(self, api: ApiKey, body: Mapping[str, Any], resource: ResourceType, name: str) -> Any:
        """A broker's settings are known to that broker alone; a topic's, and those of all brokers, to all."""
        if resource is ResourceType.TOPIC or name == ALL_BROKERS:
            return self._ask_any(api, body)
        if not name.isdecimal():
            raise BrokerError(ErrorCode.invalid_request, f"there is no broker {name!r}: its id is a number")
        return self._ask_broker(int(name), api, body)


def _named(resource: ResourceType, name: str) -> str:
    kind = resource.name.lower().replace("_", " ")
    return "all brokers" if resource is not ResourceType.TOPIC and name == ALL_BROKERS else f"{kind} {name!r}"


def _entry(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        ConfigSource(int(field(entry, "config_source", -1))),
        entry.read_only,
        entry.is_sensitive,
        field(entry, "documentation"),
        tuple(
            ConfigSynonym(one.name, one.value, ConfigSource(int(one.source))) for one in field(entry, "synonyms", ())
        ),
    )
