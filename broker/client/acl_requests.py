"""ACLs and filters as the rows of CreateAcls, DescribeAcls and DeleteAcls. Called by admin.py."""

from __future__ import annotations

from typing import Any

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


def creation_row(acl: Acl) -> dict[str, Any]:
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


def filter_fields(wanted: AclFilter) -> dict[str, Any]:
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
