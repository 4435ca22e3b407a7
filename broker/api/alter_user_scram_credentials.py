"""AlterUserScramCredentials: set and delete the SCRAM credentials of users (KIP-554).

The client sends the salted password, and the broker stores two keys derived from it. If one change of a user is wrong,
all changes of that user are refused. Other users are not affected (`kafka.server.ZkAdminManager`). Only super users
change super users, which brokers are: whoever could set a broker's password could act as a broker.
"""

from __future__ import annotations

from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import ALTER_SCRAM
from broker.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism

_MECHANISMS = {one.number: one for one in ScramMechanism}

Changes = dict[ScramMechanism, ScramCredential | None]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each user succeeds or fails alone."""
    changes: dict[str, Changes] = {}
    failed: dict[str, BrokerError] = {}
    every = (*request.body.deletions, *request.body.upsertions)
    if not context.allows(client, ALTER_SCRAM):
        refused = outcome(context.refusal(client, ALTER_SCRAM))
        return {"results": [{"user": user, **refused} for user in dict.fromkeys(change.name for change in every)]}
    may_change_all = context.authorizer.acts_as_super_user(client)
    for change in every:
        if not may_change_all and context.authorizer.is_super_user(f"User:{change.name}"):
            failed[change.name] = BrokerError(
                ErrorCode.cluster_authorization_failed, "Only super users may change the credentials of super users"
            )
    for deletion in request.body.deletions:
        _note(context, deletion, None, changes, failed)
    for upsertion in request.body.upsertions:
        _note(context, upsertion, upsertion, changes, failed)
    results = []
    for user in sorted(changes.keys() | failed.keys()):
        error = failed.get(user)
        if error is None:
            try:
                await context.users.alter(user, changes[user])
            except BrokerError as caught:
                error = caught
        results.append({"user": user, **outcome(error)})
    return {"results": results}


def _note(
    context: ApiContext, change: Any, upsertion: Any | None, changes: dict[str, Changes], failed: dict[str, BrokerError]
) -> None:
    """Check one change and add it to `changes`, or its user to `failed` (the first error counts)."""
    try:
        mechanism, made = _checked(context, change, upsertion)
        of_user = changes.setdefault(change.name, {})
        if mechanism in of_user:
            raise BrokerError(
                ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
            )
        of_user[mechanism] = made
    except BrokerError as error:
        failed.setdefault(change.name, error)


def _checked(context: ApiContext, change: Any, upsertion: Any | None) -> tuple[ScramMechanism, ScramCredential | None]:
    if not change.name:
        raise BrokerError(ErrorCode.unacceptable_credential, "Username must not be empty")
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise BrokerError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if upsertion is None:
        if context.users.credential(mechanism, change.name) is None:
            raise BrokerError(ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist")
        return mechanism, None
    if upsertion.iterations < MIN_ITERATIONS:
        raise BrokerError(ErrorCode.unacceptable_credential, "Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        raise BrokerError(ErrorCode.unacceptable_credential, "Too many iterations")
    if not upsertion.salt or len(upsertion.salted_password) != mechanism.hash_bytes:
        raise BrokerError(ErrorCode.unacceptable_credential, "Salt or salted password has the wrong length")
    return mechanism, ScramCredential.of_salted(
        mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations
    )
