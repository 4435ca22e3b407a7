"""CreateAcls, DeleteAcls and DescribeAcls (KIP-140, KIP-290).

A broker without an authorizer answers SECURITY_DISABLED. In version 0 every pattern is literal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.cluster.acls import Deleted
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
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


@serves(ApiKey.DESCRIBE_ACLS, 0, 3)
def describe_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeAcls: the ACLs that a filter chooses (KIP-140, KIP-290).

    The entries that fit, by pattern.
    """
    if context.acls is None:
        return {**NO_AUTHORIZER, "resources": ()}
    try:
        context.check(client, DESCRIBE_ACLS)
        wanted = filter_of(request.body)
    except BrokerError as error:
        return {**outcome(error), "resources": ()}
    resources = [
        {**pattern_fields(pattern), "acls": [entry_fields(entry) for entry in entries]}
        for pattern, entries in context.acls.current.matching(wanted)
    ]
    return {**outcome(), "resources": resources}


@serves(ApiKey.CREATE_ACLS, 0, 3, changes_metadata=True)
async def create_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    """CreateAcls: add ACLs (KIP-140, KIP-290). They are in force on this broker when the answer is sent.

    Each ACL succeeds or fails alone.
    """
    creations = request.body.creations
    if context.acls is None:
        return {"results": [NO_AUTHORIZER for _ in creations]}
    if not context.allows(client, CREATE_ACLS):
        return {"results": [outcome(context.refusal(client, CREATE_ACLS)) for _ in creations]}
    made: dict[int, Acl] = {}
    errors: dict[int, BrokerError | None] = {}
    for number, asked in enumerate(creations):
        try:
            made[number] = acl_of(asked)
        except BrokerError as error:
            errors[number] = error
    errors.update(zip(made, await context.acls.create(list(made.values())), strict=True))
    return {"results": [outcome(errors[number]) for number in range(len(creations))]}


@serves(ApiKey.DELETE_ACLS, 0, 3, changes_metadata=True)
async def delete_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    """DeleteAcls: delete the ACLs that filters choose (KIP-140, KIP-290), and say which they were.

    Each filter succeeds or fails alone.
    """
    asked = request.body.filters
    if context.acls is None:
        return {"filter_results": [{**NO_AUTHORIZER, "matching_acls": ()} for _ in asked]}
    if not context.allows(client, DELETE_ACLS):
        return {"filter_results": [_refused(context.refusal(client, DELETE_ACLS)) for _ in asked]}
    filters: dict[int, AclFilter] = {}
    results: dict[int, Fields] = {}
    for number, one in enumerate(asked):
        try:
            filters[number] = filter_of(one)
        except BrokerError as error:
            results[number] = _refused(error)
    deleted = await context.acls.delete(list(filters.values()))
    results.update(zip(filters, map(_result, deleted), strict=True))
    return {"filter_results": [results[number] for number in range(len(asked))]}


def _refused(error: BrokerError) -> Fields:
    return {**outcome(error), "matching_acls": ()}


def _result(deleted: Sequence[Deleted] | BrokerError) -> Fields:
    if isinstance(deleted, BrokerError):
        return _refused(deleted)
    matching = [{**outcome(error), **pattern_fields(acl.pattern), **entry_fields(acl.entry)} for acl, error in deleted]
    return {**outcome(), "matching_acls": matching}
