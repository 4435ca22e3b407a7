"""Create, change and delete topics, read and change configuration.

Called by the console and tests. A list of topics goes in one request; the first that failed is raised
as BrokerError with what the broker said, the others are done nevertheless, as Kafka does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from broker.client.cluster import Cluster
from broker.client.metadata import TopicMetadata
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field

__all__ = ["Admin", "ConfigEntry", "NewTopic", "ResourceType"]

_SET, _DELETE = 0, 1
_DYNAMIC_TOPIC_CONFIG: Final = 1


class ResourceType(IntEnum):
    """What has configuration."""

    TOPIC = 2
    BROKER = 4


class NewTopic(NamedTuple):
    """A topic to create; -1 leaves a number to the broker's defaults. `assignment`: broker ids per partition."""

    name: str
    partitions: int = -1
    replication: int = -1
    configs: Mapping[str, str] = {}
    assignment: Sequence[Sequence[int]] = ()


class ConfigEntry(NamedTuple):
    """One setting as a broker sees it. `value` is None when it is hidden; `source` is Kafka's ConfigSource."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    documentation: str | None

    @property
    def set_on_topic(self) -> bool:
        """Whether it was set for this very topic, not inherited."""
        return self.source == _DYNAMIC_TOPIC_CONFIG


class Admin:
    """Administration of one cluster. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Raises BrokerError: `topic_already_exists`, `invalid_topic_exception`, `invalid_partitions`, …"""
        body = {"topics": [_creatable(topic) for topic in topics], "validate_only": validate_only}
        self._change_topics(ApiKey.CREATE_TOPICS, body, "topics", "creating")

    def create_topic(
        self, name: str, partitions: int = -1, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """`create_topics` for one."""
        self.create_topics([NewTopic(name, partitions, replication, configs or {})])

    def delete_topics(self, names: Iterable[str]) -> None:
        """Raises BrokerError `unknown_topic_or_partition` for one that does not exist."""
        names = list(names)
        rows = [{"name": name, "topic_id": None} for name in names]
        self._change_topics(ApiKey.DELETE_TOPICS, {"topics": rows, "topic_names": names}, "responses", "deleting")

    def create_partitions(self, topic: str, count: int, assignment: Sequence[Sequence[int]] | None = None) -> None:
        """Grow `topic` to `count` partitions in all. Raises BrokerError `invalid_partitions` when that is no growth."""
        placed = None if assignment is None else [{"broker_ids": list(ids)} for ids in assignment]
        body = {"topics": [{"name": topic, "count": count, "assignments": placed}], "validate_only": False}
        self._change_topics(ApiKey.CREATE_PARTITIONS, body, "results", "adding partitions to")

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Names in order, internal topics only on demand."""
        return sorted(topic.name for topic in self.cluster.topics().values() if internal or not topic.internal)

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Partitions, leaders and replicas of `names` (UnknownTopic if one is missing), or of all topics."""
        if names is None:
            return self.cluster.topics()
        self.cluster.invalidate()
        return {name: self.cluster.topic(name) for name in names}

    def describe_configs(
        self, resource: ResourceType, name: str, keys: Sequence[str] | None = None
    ) -> dict[str, ConfigEntry]:
        """Settings of a topic, or of the broker with id `name`: `keys`, or all there are."""
        row = {"resource_type": int(resource), "resource_name": name, "configuration_keys": keys}
        body = {"resources": [row], "include_synonyms": False, "include_documentation": True}
        answer = self._ask(ApiKey.DESCRIBE_CONFIGS, body, resource, name)
        (result,) = answer.results
        _check(result, f"describing the configuration of {resource.name.lower()} {name!r}")
        return {
            entry.name: ConfigEntry(
                entry.name,
                entry.value,
                int(field(entry, "config_source", -1)),
                entry.read_only,
                entry.is_sensitive,
                field(entry, "documentation"),
            )
            for entry in result.configs
        }

    def alter_configs(
        self,
        resource: ResourceType,
        name: str,
        settings: Mapping[str, str],
        *,
        delete: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set `settings` and bring `delete` back to their defaults; others stay as they are (KIP-339)."""
        rows: list[dict[str, Any]] = [
            {"name": key, "config_operation": _SET, "value": value} for key, value in settings.items()
        ]
        rows += ({"name": key, "config_operation": _DELETE, "value": None} for key in delete)
        target = {"resource_type": int(resource), "resource_name": name, "configs": rows}
        body = {"resources": [target], "validate_only": validate_only}
        answer = self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body, resource, name)
        (result,) = answer.responses
        _check(result, f"changing the configuration of {resource.name.lower()} {name!r}")

    def _change_topics(self, api: ApiKey, body: Mapping[str, Any], results: str, doing: str) -> None:
        """Ask the controller; one that no longer is says so in the rows of `results`, and the new one is asked."""
        cluster = self.cluster
        timed = {"timeout": cluster.settings.request_timeout_ms, **body}

        def ask() -> Any:
            rows = getattr(cluster.connection(cluster.controller()).request(api, timed), results)
            for row in rows:
                if row.error_code is ErrorCode.not_controller:
                    raise BrokerError(row.error_code, f"{api.name} went to a broker that is not the controller")
            return rows

        rows = cluster.retrying(ask)
        cluster.invalidate()
        for row in rows:
            _check(row, f"{doing} topic {str(row.name)!r}")

    def _ask(self, api: ApiKey, body: Mapping[str, Any], resource: ResourceType, name: str) -> Any:
        """A broker's settings are known to that broker alone; a topic's to all."""
        cluster = self.cluster

        def ask() -> Any:
            if resource is not ResourceType.BROKER:
                return cluster.any_connection().request(api, body)
            nodes = [node for node in cluster.brokers() if str(node.id) == name]
            if not nodes:
                raise BrokerError(ErrorCode.broker_not_available, f"there is no broker {name!r}")
            return cluster.connection(nodes[0]).request(api, body)

        return cluster.retrying(ask)


def _check(row: Any, what: str) -> None:
    if row.error_code is not ErrorCode.none:
        said = field(row, "error_message")
        raise BrokerError(row.error_code, f"{what}: {said}" if said else what)


def _creatable(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignment else topic.partitions,
        "replication_factor": -1 if topic.assignment else topic.replication,
        "assignments": [{"partition_index": i, "broker_ids": list(ids)} for i, ids in enumerate(topic.assignment)],
        "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
    }
