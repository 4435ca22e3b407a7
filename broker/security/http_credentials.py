"""Who may make HTTP requests: a user with a password, or who has a token.

Used by `/metrics` of the broker and by the console in the browser.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hmac

CHALLENGE = {"www-authenticate": 'Basic realm="pykafka", charset="UTF-8"'}
"""The header of an answer 401."""


@dataclasses.dataclass(frozen=True)
class Credentials:
    """A user with a password, a token, both or none. Secrets are in no repr."""

    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    token: str = dataclasses.field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.password or self.token)

    def allow(self, authorization: str) -> bool:
        """Whether they fit to a header as ASGI servers decode it: each byte is a character (latin-1)."""
        scheme, _, rest = authorization.partition(" ")
        given = rest.strip()
        if scheme.lower() == "bearer" and self.token:
            return hmac.compare_digest(given.encode("latin-1", "replace"), self.token.encode())
        if scheme.lower() == "basic" and self.password:
            try:
                user_and_password = base64.b64decode(given, validate=True)
            except (binascii.Error, ValueError):
                return False
            return hmac.compare_digest(user_and_password, f"{self.user}:{self.password}".encode())
        return False
