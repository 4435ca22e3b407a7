"""CreateAcls: add ACLs (KIP-140, KIP-290). They are in force on this broker when the answer is sent."""

from __future__ import annotations

from broker.api.acl_requests import NO_AUTHORIZER, acl_of
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError
from broker.protocol.permissions import CREATE_ACLS
from broker.security.acl_types import Acl


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each ACL succeeds or fails alone."""
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
