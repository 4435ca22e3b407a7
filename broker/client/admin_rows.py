"""Topics, settings, producers, quotas and ACLs as the rows of requests and answers. Called by admin.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.client.admin_types import ALL_BROKERS, NewTopic, ProducerState
from broker.protocol.described_config import ConfigEntry, ConfigSource, ConfigSynonym, ResourceType
from broker.protocol.messages import field
from broker.quotas.quota_entity import CLIENT_ID, IP, USER, QuotaEntity
from broker.security.acl_types import (
    AccessControlEntry,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)

_EXACT, _OF_DEFAULT, _ANY = 0, 1, 2
"""How a quota names an entity (KIP-546)."""


def creatable_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignment else topic.partitions,
        "replication_factor": -1 if topic.assignment else topic.replication,
        "assignments": [{"partition_index": i, "broker_ids": list(ids)} for i, ids in enumerate(topic.assignment)],
        "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
    }


def resource_name(resource: ResourceType, name: str) -> str:
    kind = resource.name.lower().replace("_", " ")
    return "all brokers" if resource is not ResourceType.TOPIC and name == ALL_BROKERS else f"{kind} {name!r}"


def decode_config_entry(row: Any) -> ConfigEntry:
    return ConfigEntry(
        row.name,
        row.value,
        ConfigSource(int(field(row, "config_source", -1))),
        int(field(row, "config_type", 0)),
        field(row, "documentation"),
        tuple(
            ConfigSynonym(same.name, same.value, ConfigSource(int(same.source))) for same in field(row, "synonyms", ())
        ),
        row.read_only,
        row.is_sensitive,
    )


def decode_producer(row: Any) -> ProducerState:
    return ProducerState(
        int(row.producer_id),
        int(row.producer_epoch),
        int(row.last_sequence),
        int(row.last_timestamp),
        int(row.coordinator_epoch),
        int(row.current_txn_start_offset),
    )


def quota_filter(wanted: Mapping[str, str | None], *, strict: bool) -> dict[str, Any]:
    components = [
        {"entity_type": kind, "match_type": _ANY if name is None else _EXACT if name else _OF_DEFAULT}
        | {"match": name or None}
        for kind, name in wanted.items()
    ]
    return {"components": components, "strict": strict}


def decode_quotas(row: Any) -> tuple[QuotaEntity, dict[str, float]]:
    """An entity with its limits: key → limit per second."""
    names = {str(part.entity_type): part.entity_name or "" for part in row.entity}
    entity = QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))
    return entity, {str(limit.key): float(limit.value) for limit in row.values}


def quota_row(entity: QuotaEntity, changes: Mapping[str, float | None]) -> dict[str, Any]:
    operations = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes.items()]
    parts = [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts().items()]
    return {"entity": parts, "ops": operations}


def acl_row(acl: Acl) -> dict[str, Any]:
    pattern, entry = acl
    return {
        "resource_type": int(pattern.type),
        "resource_name": pattern.name,
        "resource_pattern_type": int(pattern.pattern),
        "principal": entry.principal,
        "host": entry.host,
        "operation": int(entry.operation),
        "permission_type": int(entry.permission),
    }


def acl_filter(wanted: AclFilter) -> dict[str, Any]:
    """The body of DescribeAcls, and a row of DeleteAcls."""
    return {
        "resource_type_filter": int(wanted.type),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": int(wanted.pattern),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }


def decode_acl(resource: Any, entry: Any) -> Acl:
    """The ACL in two rows of an answer, or in one that is both. What only a newer Kafka knows is UNKNOWN."""
    return Acl(
        ResourcePattern(
            AclResourceType(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type)
        ),
        AccessControlEntry(
            entry.principal, AclOperation(entry.operation), AclPermission(entry.permission_type), entry.host
        ),
    )
