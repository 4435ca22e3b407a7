"""DeleteAcls: delete the ACLs that filters choose (KIP-140, KIP-290), and say which they were."""

from __future__ import annotations

from collections.abc import Sequence

from broker.api.acl_requests import NO_AUTHORIZER, entry_fields, filter_of, pattern_fields
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.cluster.acls import Deleted
from broker.errors import BrokerError
from broker.protocol.permissions import DELETE_ACLS
from broker.security.acl_types import AclFilter


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each filter succeeds or fails alone."""
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
