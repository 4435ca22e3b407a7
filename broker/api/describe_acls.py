"""DescribeAcls: the ACLs that a filter chooses (KIP-140, KIP-290)."""

from __future__ import annotations

from broker.api.acl_requests import NO_AUTHORIZER, entry_fields, filter_of, pattern_fields
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError
from broker.protocol.permissions import DESCRIBE_ACLS


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """The entries that fit, by pattern."""
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
