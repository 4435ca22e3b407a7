"""Who a client is: SaslHandshake and SaslAuthenticate log it in, two others show and change the users of SCRAM."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import ALTER_SCRAM, DESCRIBE_SCRAM
from broker.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism


@serves(ApiKey.SASL_HANDSHAKE, 0, 1)
def sasl_handshake(context: ApiContext, request: Request, client: Client) -> Fields:
    """SaslHandshake: the client chooses a SASL mechanism (KIP-43).

    Begin a login. The answer always has the mechanisms that are enabled. On a listener without SASL, and after a login
    that does not expire, the answer is ILLEGAL_SASL_STATE.
    Version notes: after version 0 the mechanism's messages come without a header, after version 1 in SaslAuthenticate
    (KIP-152).
    """
    if client.sasl is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    error = client.sasl.start(request.body.mechanism, raw=request.version == 0)
    return {"error_code": error, "mechanisms": client.sasl.mechanisms}


@serves(ApiKey.SASL_AUTHENTICATE, 0, 2)
async def sasl_authenticate(context: ApiContext, request: Request, client: Client) -> Fields:
    """SaslAuthenticate: exchange one message of the SASL mechanism (KIP-152).

    A failed login is answered after `connection.failed.authentication.delay.ms`, then its connection is closed. A login
    by OAUTHBEARER may wait for the keys of the identity provider; without an answer when these cannot be had.
    Version notes: from 1 the last answer of a login says how long the login is valid (KIP-368).
    """
    if client.sasl is None:
        return _login_refused(BrokerError(ErrorCode.illegal_sasl_state, "this listener has no SASL login"))
    try:
        token = await client.sasl.step(request.body.auth_bytes)
    except BrokerError as error:
        if client.sasl.failed:
            await asyncio.sleep(client.sasl.failure_delay_s)
        return _login_refused(error)
    lifetime_ms = client.sasl.lifetime_ms if client.sasl.done else 0
    return {"error_code": ErrorCode.none, "auth_bytes": token, "session_lifetime": lifetime_ms}


def _login_refused(error: BrokerError) -> Fields:
    return {"error_code": error.code, "error_message": error.message, "auth_bytes": b"", "session_lifetime": 0}


@serves(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0)
def describe_user_scram_credentials(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeUserScramCredentials: the SCRAM mechanisms of users (KIP-554), never their keys."""
    if not context.allows(client, DESCRIBE_SCRAM):
        told = outcome(context.refusal(client, DESCRIBE_SCRAM))
        each = {**told, "user": "", "credential_infos": ()}  # Kafka names nobody here
        return {**told, "results": [each for _ in request.body.users or ()]}
    known = context.users.credentials
    asked = collections.Counter(user.name for user in request.body.users or ()) or collections.Counter(list(known))
    return {**outcome(), "results": [_described(known, user, times) for user, times in sorted(asked.items())]}


def _described(known: Fields, user: str, times: int) -> Fields:
    error = None
    if times > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        error = BrokerError(ErrorCode.duplicate_resource, text)
    elif user not in known:
        text = f"Attempt to describe a user credential that does not exist: {user}"
        error = BrokerError(ErrorCode.resource_not_found, text)
    credentials = known[user] if error is None else {}
    infos = [{"mechanism": one.number, "iterations": made.iterations} for one, made in credentials.items()]
    return {"user": user, **outcome(error), "credential_infos": infos}


_MECHANISMS = {one.number: one for one in ScramMechanism}

Changes = dict[ScramMechanism, ScramCredential | None]


@serves(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, changes_metadata=True)
async def alter_user_scram_credentials(context: ApiContext, request: Request, client: Client) -> Fields:
    """AlterUserScramCredentials: set and delete the SCRAM credentials of users (KIP-554).

    Each user succeeds or fails alone. The client sends the salted password, and the broker stores two keys derived from
    it. If one change of a user is wrong, all changes of that user are refused. Other users are not affected
    (`kafka.server.ZkAdminManager`). Only super users change super users, which brokers are: whoever could set a
    broker's password could act as a broker.
    """
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
