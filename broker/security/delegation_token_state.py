"""Delegation tokens (KIP-48, KIP-373): who may have one, how long it lives, what it logs in with. Pure.

A token lets whoever knows its HMAC log in by SCRAM as the token's owner, the user being its id and the password the
HMAC in base64. The HMAC is made of the id with the brokers' secret (`delegation.token.secret.key`), so it is stored
nowhere. Times are in ms since the epoch, principals are `User:name`. Each event says what becomes of a token, or raises
BrokerError with Kafka's code (`DelegationTokenControlManager`).
"""

from __future__ import annotations

import base64
import dataclasses
import hmac
from typing import NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.security.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism

USER = "User"
"""The one type of principals that may renew a token."""


@dataclasses.dataclass(frozen=True)
class DelegationToken:
    """What is stored of a token, and what its owner may see beside its HMAC."""

    token_id: str
    owner: str
    requester: str
    """Who asked for it: another one than the owner if he may create tokens of the owner."""
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    """It cannot be renewed beyond this."""
    expires_ms: int

    @property
    def user(self) -> str:
        """The owner without the type."""
        return self.owner.partition(":")[2]

    def is_expired(self, now_ms: int) -> bool:
        return min(self.max_ms, self.expires_ms) < now_ms

    def is_of(self, principal: str) -> bool:
        """Whether the principal may see the token without any right."""
        return principal in (self.owner, self.requester, *self.renewers)


@dataclasses.dataclass(frozen=True)
class IssuedToken:
    """A token and the HMAC of its id, with which its holder logs in. Only the HMAC is secret."""

    token: DelegationToken
    hmac: bytes = dataclasses.field(repr=False)

    @property
    def password(self) -> str:
        """Of a login by SCRAM, whose user is the id."""
        return base64.b64encode(self.hmac).decode()


class Limits(NamedTuple):
    """The brokers' settings, ms."""

    max_lifetime_ms: int
    expiry_time_ms: int


class Create(NamedTuple):
    """`lifetime_ms`: at most this long; the brokers' limit if it is not above 0."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    lifetime_ms: int


class Renew(NamedTuple):
    """Expire `period_ms` from now; after the brokers' time if it is not above 0."""

    requester: str
    period_ms: int


class Expire(NamedTuple):
    """Expire `period_ms` from now, or at once if it is below 0."""

    requester: str
    period_ms: int


def created(event: Create, now_ms: int, limits: Limits) -> DelegationToken:
    """Raises BrokerError `invalid_principal_type`."""
    if any(not renewer.startswith(f"{USER}:") for renewer in event.renewers):
        raise BrokerError(ErrorCode.invalid_principal_type, "only principals of type User may renew a token")
    max_ms = now_ms + _at_most(event.lifetime_ms, limits.max_lifetime_ms)
    expires_ms = min(max_ms, now_ms + limits.expiry_time_ms)
    return DelegationToken(event.token_id, event.owner, event.requester, event.renewers, now_ms, max_ms, expires_ms)


def changed(
    token: DelegationToken | None, event: Renew | Expire, now_ms: int, limits: Limits
) -> DelegationToken | None:
    """The token after the event; None if it is to be removed.

    Raises BrokerError: `delegation_token_not_found`, `…_owner_mismatch`, `…_expired`.
    """
    if token is None:
        raise BrokerError(ErrorCode.delegation_token_not_found, "no delegation token has this HMAC")
    mismatch = event.requester != token.owner and event.requester not in token.renewers
    ends_now = isinstance(event, Expire) and event.period_ms < 0
    if isinstance(event, Expire) and mismatch:  # Kafka looks at the expiry of a token to renew first
        raise _mismatch(token, event.requester)
    if not ends_now and token.is_expired(now_ms):
        raise BrokerError(ErrorCode.delegation_token_expired, f"delegation token {token.token_id} has expired")
    if mismatch:
        raise _mismatch(token, event.requester)
    if ends_now:
        return None
    period_ms = event.period_ms
    if isinstance(event, Renew):
        period_ms = _at_most(period_ms, limits.expiry_time_ms)
    return dataclasses.replace(token, expires_ms=min(token.max_ms, now_ms + period_ms))


def _at_most(wanted_ms: int, limit_ms: int) -> int:
    return min(wanted_ms, limit_ms) if wanted_ms > 0 else limit_ms


def _mismatch(token: DelegationToken, requester: str) -> BrokerError:
    return BrokerError(
        ErrorCode.delegation_token_owner_mismatch,
        f"{requester} is neither the owner nor a renewer of delegation token {token.token_id}",
    )


def hmac_of(token_id: str, secret: str) -> bytes:
    """64 bytes: HMAC-SHA-512 of the id."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def credential_of(token: IssuedToken, secret: str, mechanism: ScramMechanism) -> ScramCredential:
    """The keys of a token's login. All brokers derive the same, with the same salt, so none has to be stored."""
    salt = hmac.digest(secret.encode(), b"salt of " + token.token.token_id.encode(), "sha256")[:16]
    return ScramCredential.make(mechanism, token.password, MIN_ITERATIONS, salt)
