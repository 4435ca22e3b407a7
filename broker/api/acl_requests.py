"""What CreateAcls, DeleteAcls and DescribeAcls share: their terms, and the answer of a broker without an authorizer.

In version 0 every pattern is literal.
"""

from __future__ import annotations

from typing import Any, TypeVar

from broker.api.context import Fields
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
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

NO_AUTHORIZER = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "no authorizer is configured on the broker: set authorizer.class.name",
}

_Term = TypeVar("_Term", AclOperation, AclPermission, AclResourceType, PatternType)


def acl_of(asked: Any) -> Acl:
    """Raises BrokerError `invalid_request` for a number that means nothing."""
    pattern = ResourcePattern(
        _term(AclResourceType, asked.resource_type),
        asked.resource_name,
        _term(PatternType, field(asked, "resource_pattern_type", PatternType.LITERAL)),
    )
    entry = AccessControlEntry(
        asked.principal,
        _term(AclOperation, asked.operation),
        _term(AclPermission, asked.permission_type),
        asked.host,
    )
    return Acl(pattern, entry)


def filter_of(asked: Any) -> AclFilter:
    """Raises BrokerError `invalid_request` for a number that means nothing."""
    return AclFilter(
        _term(AclResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _term(PatternType, field(asked, "pattern_type_filter", PatternType.LITERAL)),
        asked.principal_filter,
        asked.host_filter,
        _term(AclOperation, asked.operation),
        _term(AclPermission, asked.permission_type),
    )


def entry_fields(entry: AccessControlEntry) -> Fields:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def pattern_fields(pattern: ResourcePattern) -> Fields:
    return {"resource_type": pattern.type, "resource_name": pattern.name, "pattern_type": pattern.pattern}


def _term(terms: type[_Term], number: int) -> _Term:
    found = terms(number)
    if found == 0:
        raise BrokerError(ErrorCode.invalid_request, f"{number} is no {terms.__name__}")
    return found
