"""DescribeUserScramCredentials: the SCRAM mechanisms of users (KIP-554), never their keys."""

from __future__ import annotations

import collections

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import ErrorCode
from broker.protocol.permissions import DESCRIBE_SCRAM


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    if not context.allows(client, DESCRIBE_SCRAM):
        told = outcome(context.refusal(client, DESCRIBE_SCRAM))
        each = {**told, "user": "", "credential_infos": ()}  # Kafka names nobody here
        return {**told, "results": [each for _ in request.body.users or ()]}
    known = context.users.credentials
    asked = collections.Counter(user.name for user in request.body.users or ()) or collections.Counter(list(known))
    return {**outcome(), "results": [_result(known, user, times) for user, times in sorted(asked.items())]}


def _result(known: Fields, user: str, times: int) -> Fields:
    code, message = ErrorCode.none, None
    if times > 1:
        code = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif user not in known:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {user}"
    credentials = known[user] if code is ErrorCode.none else {}
    infos = [{"mechanism": one.number, "iterations": made.iterations} for one, made in credentials.items()]
    return {"user": user, "error_code": code, "error_message": message, "credential_infos": infos}
