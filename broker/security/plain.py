"""SASL PLAIN (RFC 4616): name and password in one message, as both sides know it."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Mapping

from broker.security.login import Exchange, LoginRefused, PasswordLogin

_NO_USER = "\N{NULL}"  # no password contains it, because it separates the fields


@dataclasses.dataclass(frozen=True)
class PlainLogin(PasswordLogin):
    def begin(self, host: str) -> Exchange:
        yield f"\0{self.user}\0{self.password}".encode()


class PlainServer:
    """One login as the broker sees it. `user` is set when it is `complete`."""

    lifetime_ms = 0

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users`: name → password."""
        self._users = users
        self.user = ""
        self.complete = False

    def step(self, token: bytes) -> bytes:
        """The answer, which is empty. Raises LoginRefused."""
        try:
            authorize_as, self.user, password = token.decode().split("\0")
        except ValueError:
            raise LoginRefused("the message of PLAIN cannot be read") from None
        expected = self._users.get(self.user, _NO_USER)
        right = hmac.compare_digest(password.encode(), expected.encode())
        if not right or not password or authorize_as not in ("", self.user):
            raise LoginRefused("wrong user or password")
        self.complete = True
        return b""
