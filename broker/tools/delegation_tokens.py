"""Delegation tokens (kafka-delegation-tokens.sh): create, renew, expire and list them.

Whoever has a token's HMAC logs in as its owner. So it is shown only where it is asked for, and read from standard input
unless it is given as an option, which other users of the machine could see.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from broker.client.admin import Admin
from broker.errors import ConfigError
from broker.security.delegation_token_state import IssuedToken
from broker.tools.client_options import JsonOutput, admin_command, flag, option
from broker.tools.output import as_time, print_view

app = typer.Typer(
    help="Create, renew, expire and describe delegation tokens.\n\n\b\nExamples:\n"
    "  pykafka delegation-tokens create --config client.properties\n"
    "  pykafka delegation-tokens describe --config client.properties",
    no_args_is_help=True,
)
_COLUMNS = "token-id,owner,requester,renewers,issued=issuedMs,expires=expiresMs,max=maxMs"

Principals = list[str] | None
Hmac = Annotated[
    str | None, option("HMAC of the token in base64; by default the first line of standard input.", "BASE64", "--hmac")
]


def _principals(meaning: str, name: str) -> Any:
    return option(meaning, "User:NAME", name)


@admin_command(app)
def create(
    admin: Admin,
    max_life_time_period: Annotated[
        int, option("Most age of the token, ms; -1 is as the brokers have it.", "MS", "--max-life-time-period")
    ] = -1,
    renewer_principal: Annotated[
        Principals, _principals("Who may renew it beside its owner; may be repeated.", "--renewer-principal")
    ] = None,
    owner_principal: Annotated[
        str | None, _principals("Whose token it is; by default yours.", "--owner-principal")
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Create a token, and print it with its HMAC: who has that logs in as the owner.

    \b
    Examples:
      pykafka delegation-tokens create --config client.properties
      pykafka delegation-tokens create --max-life-time-period 86400000 --renewer-principal User:ops
    """
    if owner_principal is not None:
        _check_principals([owner_principal], "--owner-principal")
    renewers = _check_principals(renewer_principal, "--renewer-principal")
    made = admin.create_delegation_token(owner=owner_principal, renewers=renewers, max_lifetime_ms=max_life_time_period)
    _show([made], as_json, secret=True)


@admin_command(app)
def renew(
    admin: Admin,
    hmac: Hmac = None,
    renew_time_period: Annotated[
        int, option("It expires so many ms from now; -1 is as the brokers have it.", "MS", "--renew-time-period")
    ] = -1,
) -> None:
    """Let a token expire later.

    \b
    Examples:
      pykafka delegation-tokens renew --config client.properties < hmac.txt
    """
    expires_ms = admin.renew_delegation_token(_hmac(hmac), renew_time_period)
    typer.echo(f"The token expires at {as_time(expires_ms)}.")


@admin_command(app)
def expire(
    admin: Admin,
    hmac: Hmac = None,
    expiry_time_period: Annotated[
        int, option("It expires so many ms from now; -1 is at once.", "MS", "--expiry-time-period")
    ] = -1,
) -> None:
    """Let a token expire at once, or at another time.

    \b
    Examples:
      pykafka delegation-tokens expire --config client.properties < hmac.txt
    """
    expires_ms = admin.expire_delegation_token(_hmac(hmac), expiry_time_period)
    typer.echo(f"The token expires at {as_time(expires_ms)}.")


@admin_command(app)
def describe(
    admin: Admin,
    owner_principal: Annotated[
        Principals, _principals("Only tokens of this owner or renewer; may be repeated.", "--owner-principal")
    ] = None,
    show_hmac: Annotated[bool, flag("Show the HMACs: who has one logs in as the owner.", "--show-hmac")] = False,
    as_json: JsonOutput = False,
) -> None:
    """List your tokens, and those of others that you may see.

    \b
    Examples:
      pykafka delegation-tokens describe --config client.properties
      pykafka delegation-tokens describe --owner-principal User:etl --json
    """
    owners = _check_principals(owner_principal, "--owner-principal") or None
    found = admin.describe_delegation_tokens(owners)
    _show(sorted(found, key=lambda one: one.token.issued_ms), as_json, secret=show_hmac)


def _check_principals(given: Principals, name: str) -> list[str]:
    for principal in given or ():
        if not all(principal.partition(":")):
            raise ConfigError(f"{name} {principal}: expected a type and a name, such as User:alice")
    return given or []


def _hmac(given: str | None) -> bytes:
    text = sys.stdin.readline().strip() if given is None else given
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        found = b""
    if not found:
        raise ConfigError("the HMAC is base64 text: give it on standard input or as --hmac")
    return found


def _show(tokens: list[IssuedToken], as_json: bool, *, secret: bool) -> None:
    texts: dict[str, Callable[[Any], object]] = {
        "renewers": ",".join,
        "issued": as_time,
        "expires": as_time,
        "max": as_time,
    }
    columns = _COLUMNS + (",hmac" if secret else "")
    documents = [_document(one, secret) for one in tokens]
    print_view(documents, columns, as_json, shown=texts, nothing="There are no delegation tokens.")


def _document(one: IssuedToken, secret: bool) -> dict[str, Any]:
    token = one.token
    return {
        "tokenId": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issuedMs": token.issued_ms,
        "expiresMs": token.expires_ms,
        "maxMs": token.max_ms,
        **({"hmac": one.password} if secret else {}),
    }
