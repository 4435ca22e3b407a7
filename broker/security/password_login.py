"""The login by a user name and a password, as its mechanism has it."""

from __future__ import annotations

from typing import Any

from broker.security.login import PasswordLogin
from broker.security.plain import PlainLogin
from broker.security.scram import ScramLogin


def password_login(mechanism: str, user: str, password: str, **where: Any) -> PasswordLogin:
    """`where`: `settings` of the login."""
    return (PlainLogin if mechanism == "PLAIN" else ScramLogin)(mechanism, user, password, **where)
