"""Delegation tokens (KIP-48, KIP-373): create, renew, expire, describe. Answers with a token hold its HMAC: secret.

A client asks by a connection that knows who it is by another proof than a token: else one token would give the next,
for ever.
"""

from __future__ import annotations

from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.net.router import ANONYMOUS
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import CREATE_TOKEN, DESCRIBE_TOKEN, DESCRIBE_TOKENS_OF_USER
from broker.security.delegation_token_state import DelegationToken, Expire, IssuedToken, Renew

_UNKNOWN_MS = -1


@serves(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, changes_metadata=True)
async def create_delegation_token(context: ApiContext, request: Request, client: Client) -> Fields:
    """CreateDelegationToken: a token with which its holder logs in as its owner, the client or another user.

    Not for clients whose principal nobody has proved, nor for those that logged in by a token. Only super users create
    tokens of super users, which brokers are.
    Version notes: from 3 with another owner (KIP-373).
    """
    name = field(request.body, "owner_principal_name")
    owner = f"{field(request.body, 'owner_principal_type')}:{name}" if name else client.principal
    who = _principal(owner) | _principal(client.principal, "token_requester_principal")
    try:
        _check_may_ask(client)
        if owner != client.principal:
            context.check(client, CREATE_TOKEN, owner)
            if not _may_act_for(context, client, owner):
                raise context.refusal(client, CREATE_TOKEN, owner)
        renewers = tuple(f"{one.principal_type}:{one.principal_name}" for one in request.body.renewers)
        lifetime_ms = to_ms(request.body.max_lifetime)
        issued = await context.delegation_tokens.create(owner, client.principal, renewers, lifetime_ms)
    except BrokerError as error:
        nothing = dict.fromkeys(("issue_timestamp", "expiry_timestamp", "max_timestamp"), _UNKNOWN_MS)
        return {"error_code": error.code, **who, **nothing, "token_id": "", "hmac": b""}
    return {"error_code": ErrorCode.none, **who, **_times_and_secret(issued)}


@serves(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, changes_metadata=True)
async def renew_delegation_token(context: ApiContext, request: Request, client: Client) -> Fields:
    """RenewDelegationToken: let a token expire later, by its owner or a renewer."""
    return await _changed(context, request, client, Renew(client.principal, to_ms(request.body.renew_period)))


@serves(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, changes_metadata=True)
async def expire_delegation_token(context: ApiContext, request: Request, client: Client) -> Fields:
    """ExpireDelegationToken: let a token expire at another time or, with a period below 0, remove it at once."""
    return await _changed(context, request, client, Expire(client.principal, to_ms(request.body.expiry_time_period)))


async def _changed(context: ApiContext, request: Request, client: Client, event: Renew | Expire) -> Fields:
    try:
        _check_may_ask(client)
        expires_ms = await context.delegation_tokens.change(bytes(request.body.hmac), event)
    except BrokerError as error:
        return {"error_code": error.code, "expiry_timestamp": _UNKNOWN_MS}
    return {"error_code": ErrorCode.none, "expiry_timestamp": expires_ms}


@serves(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3)
def describe_delegation_token(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeDelegationToken: tokens with their HMACs, those of some owners or all that the client may see.

    Those of which it is owner, requester or renewer; others by rights. A super user's are shown to super users only.
    Version notes: from 3 with the requester (KIP-373).
    """
    tokens = context.delegation_tokens
    try:
        _check_may_ask(client)
        if not tokens.enabled:
            raise BrokerError(ErrorCode.delegation_token_auth_disabled)
    except BrokerError as error:
        return {"error_code": error.code, "tokens": ()}
    asked = request.body.owners
    owners = None if asked is None else {f"{one.principal_type}:{one.principal_name}" for one in asked}

    def sees(token: DelegationToken) -> bool:
        if owners is not None and not any(map(token.is_of, owners)):
            return False
        if token.is_of(client.principal):
            return True
        if not _may_act_for(context, client, token.owner):
            return False
        allows = context.allows(client, DESCRIBE_TOKEN, token.token_id, asked=False)
        return allows or context.allows(client, DESCRIBE_TOKENS_OF_USER, token.owner, asked=False)

    return {"error_code": ErrorCode.none, "tokens": [_described(one) for one in tokens.visible(sees)]}


def _check_may_ask(client: Client) -> None:
    if client.principal == ANONYMOUS or (client.sasl is not None and client.sasl.by_token):
        raise BrokerError(ErrorCode.delegation_token_request_not_allowed)


def _may_act_for(context: ApiContext, client: Client, owner: str) -> bool:
    """Whoever had a broker's token could act as a broker."""
    return context.authorizer.acts_as_super_user(client) or not context.authorizer.is_super_user(owner)


def _described(issued: IssuedToken) -> dict[str, Any]:
    token = issued.token
    return {
        **_principal(token.owner),
        **_principal(token.requester, "token_requester_principal"),
        **_times_and_secret(issued),
        "renewers": [_principal(renewer) for renewer in token.renewers],
    }


def _principal(principal: str, prefix: str = "principal") -> dict[str, Any]:
    kind, _, name = principal.partition(":")
    return {f"{prefix}_type": kind, f"{prefix}_name": name}


def _times_and_secret(issued: IssuedToken) -> dict[str, Any]:
    token = issued.token
    return {
        "token_id": token.token_id,
        "hmac": issued.hmac,
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expires_ms,
        "max_timestamp": token.max_ms,
    }
