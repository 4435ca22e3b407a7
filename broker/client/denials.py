"""What to say when a broker refuses a client for want of a right: who lacks what on what, and how it is granted.

    TOPIC_AUTHORIZATION_FAILED (29): fetching orders-0 at offset 0: User:etl lacks Read on topic orders; an admin grants
    it with: pykafka acls add --allow-principal User:etl --operation Read --topic orders

Brokers answer a code only. The right follows from the API and the code, by the table that our broker itself asks by
(broker/protocol/permissions.py), and the principal from the client's own settings. Everything in this package that
makes an exception of a broker's code does it with `refusal`.
"""

from __future__ import annotations

import shlex
from typing import Final

from broker.client.client_settings import ClientSettings
from broker.errors import BrokerError, ErrorCode, VersionRefused
from broker.protocol.api_keys import ApiKey
from broker.security.stores import has_key

DENIED: Final = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.delegation_token_authorization_failed,
    }
)
"""The codes that mean: the client lacks a right."""

ANONYMOUS: Final = "User:ANONYMOUS"
_FOR_PLAIN_WRITES: Final = " (or Write on any topic, as of Kafka 2.8)"


def refusal(
    settings: ClientSettings, api: ApiKey, code: ErrorCode, what: str, name: str = "", *, also: str = ""
) -> BrokerError:
    """The exception for a code that `api` was answered. `what` names the action.

    `name`: of the topic, group, transactional id or user that the code is about; the cluster has none. `also`: what may
    be lacking instead.
    """
    from broker.protocol.permissions import lacking
    from broker.security.acl_types import AclOperation, AclResourceType

    need = lacking(api, code)
    if need is None:
        return VersionRefused(what) if code is ErrorCode.unsupported_version else BrokerError(code, what)
    kind, operation = need.resource, need.operation.title
    if kind is AclResourceType.CLUSTER:
        resource, option = "the cluster", "--cluster"
    else:
        word = "user_principal" if kind is AclResourceType.USER else kind.name.lower()
        resource, option = f"{word.replace('_', ' ')} {name}", f"--{word.replace('_', '-')} {shlex.quote(name)}"
    principal, owner = principal_of(settings)
    who = principal or owner
    if need.operation is AclOperation.IDEMPOTENT_WRITE:
        also = _FOR_PLAIN_WRITES
    grant = f"--allow-principal {shlex.quote(principal or 'User:NAME')} --operation {operation} {option}"
    return BrokerError(
        code, f"{what}: {who} lacks {operation} on {resource}{also}; an admin grants it with: pykafka acls add {grant}"
    )


def check(settings: ClientSettings, api: ApiKey, code: ErrorCode, what: str, name: str = "") -> None:
    """Raise `refusal` unless the code is `none`."""
    if code is not ErrorCode.none:
        raise refusal(settings, api, code, what, name)


def principal_of(settings: ClientSettings) -> tuple[str, str]:
    """What brokers call this client; or "" and a description, where they name it by rules of their own."""
    login = settings.login()
    if login is not None:
        return (login.principal, "") if login.principal else ("", f"the owner of {login.described}")
    if settings.encrypted and (settings.ssl_certificate_location or has_key(settings)):
        return "", f"the owner of the certificate in {settings.ssl_certificate_location or 'ssl.keystore'}"
    return ANONYMOUS, ""
