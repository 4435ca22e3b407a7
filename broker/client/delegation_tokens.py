"""Delegation tokens as clients ask for them (KIP-48): a part of `Admin`, and the settings of a login by one.

Brokers give tokens to clients that logged in by another proof of who they are than a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.denials import refusal
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.security.delegation_token_state import DelegationToken, IssuedToken
from broker.security.scram import TOKEN_AUTH

__all__ = ["DelegationToken", "DelegationTokenAdmin", "IssuedToken", "settings_with_token", "without_login"]

_WHY: Final = {
    ErrorCode.delegation_token_auth_disabled: "the brokers have no delegation.token.secret.key",
    ErrorCode.delegation_token_request_not_allowed: "who asks must have logged in by SASL or a certificate, and not by "
    "a delegation token",
    ErrorCode.delegation_token_not_found: "no delegation token has this HMAC",
    ErrorCode.delegation_token_owner_mismatch: "only the owner and the renewers of a delegation token may change it",
    ErrorCode.delegation_token_expired: "the delegation token has expired",
    ErrorCode.invalid_principal_type: "only principals of type User may renew a delegation token",
}

_NO_LOGIN: Final[Mapping[str, Any]] = {
    one.name: one.default for one in dataclasses.fields(ClientSettings) if one.name.startswith("sasl_")
}


class DelegationTokenAdmin:
    """What `Admin` can do with tokens. Principals are `User:name`, times in ms since the epoch, periods in ms."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def create_delegation_token(
        self, *, owner: str | None = None, renewers: Iterable[str] = (), max_lifetime_ms: int = -1
    ) -> IssuedToken:
        """A token of this client, or of `owner` (Kafka 3.3, KIP-373). -1: it lives as long as the brokers allow.

        Raises BrokerError: `delegation_token_auth_disabled`, `…_request_not_allowed`, `…_authorization_failed`, ….
        """
        kind, name = _parts(owner) if owner is not None else (None, None)
        wanted = tuple(renewers)
        body = {
            "owner_principal_type": kind,
            "owner_principal_name": name,
            "renewers": [_row(renewer) for renewer in wanted],
            "max_lifetime": max_lifetime_ms,
        }
        answer = self._ask_for_token(ApiKey.CREATE_DELEGATION_TOKEN, body, "creating a delegation token", owner or "")
        return _issued(answer, wanted)

    def renew_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Let a token expire `period_ms` from now (-1: as the brokers have it). Returns when it expires."""
        body = {"hmac": hmac, "renew_period": period_ms}
        answer = self._ask_for_token(ApiKey.RENEW_DELEGATION_TOKEN, body, "renewing a delegation token")
        return to_ms(answer.expiry_timestamp)

    def expire_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Let a token expire `period_ms` from now (-1: at once). Returns when it expires."""
        body = {"hmac": hmac, "expiry_time_period": period_ms}
        answer = self._ask_for_token(ApiKey.EXPIRE_DELEGATION_TOKEN, body, "expiring a delegation token")
        return to_ms(answer.expiry_timestamp)

    def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[IssuedToken]:
        """The tokens of these owners and renewers, or all, of those that this client may see."""
        body = {"owners": None if owners is None else [_row(owner) for owner in owners]}
        answer = self._ask_for_token(ApiKey.DESCRIBE_DELEGATION_TOKEN, body, "describing delegation tokens")
        return [_issued(row, tuple(map(_principal, row.renewers))) for row in answer.tokens]

    def _ask_for_token(self, api: ApiKey, body: Mapping[str, Any], what: str, name: str = "") -> Any:
        """The answer of any broker. Raises the error in it."""

        def ask() -> Any:
            answer = self.cluster.any_connection().request(api, body)
            code = answer.error_code
            if code in _WHY:
                raise BrokerError(code, f"{what}: {_WHY[code]}")
            if code is not ErrorCode.none:
                raise refusal(self.cluster.settings, api, code, what, name)
            return answer

        return self.cluster.retrying(ask)


def settings_with_token(settings: ClientSettings, token: IssuedToken, mechanism: str) -> ClientSettings:
    """To log in by the token, without any other credential of SASL."""
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token.token.token_id}" password="{token.password}" {TOKEN_AUTH}="true";'
    )
    return dataclasses.replace(settings, **{**_NO_LOGIN, "sasl_mechanism": mechanism, "sasl_jaas_config": jaas})


def without_login(settings: ClientSettings) -> ClientSettings:
    """Without what it takes to log in by SASL, and so of no use at a listener with SASL."""
    protocol = settings.security_protocol.upper().removeprefix("SASL_")
    return dataclasses.replace(settings, **_NO_LOGIN, security_protocol=protocol)


def _issued(row: Any, renewers: tuple[str, ...]) -> IssuedToken:
    owner = _principal(row)
    of_requester = (field(row, f"token_requester_principal_{part}") for part in ("type", "name"))
    requester = ":".join(filter(None, of_requester)) or owner  # before version 3 they were the same
    times = (to_ms(getattr(row, f"{kind}_timestamp")) for kind in ("issue", "max", "expiry"))
    return IssuedToken(DelegationToken(row.token_id, owner, requester, renewers, *times), bytes(row.hmac))


def _principal(row: Any) -> str:
    return f"{row.principal_type}:{row.principal_name}"


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def _row(principal: str) -> dict[str, str]:
    kind, name = _parts(principal)
    return {"principal_type": kind, "principal_name": name}
