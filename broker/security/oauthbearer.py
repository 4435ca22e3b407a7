"""SASL OAUTHBEARER (RFC 7628): the messages of both sides. Pure; who verifies the token is given.

The client sends one message: `n,a=NAME,` %x01 `auth=Bearer TOKEN` %x01 `extension=value` %x01 %x01. The broker answers
with nothing, or with a JSON error that the client acknowledges with %x01 before the login fails. Errors never contain
the token. Idea: Kafka's `OAuthBearerSaslServer`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Awaitable, Callable, Mapping

from broker.errors import ConfigError
from broker.security.access_token import AccessToken, TokenRefused
from broker.security.login import Exchange, Login, LoginRefused, RefusedByBroker
from broker.security.token_source import TokenSource

ACKNOWLEDGED = b"\x01"
"""The client's answer to a JSON error."""
_SEPARATOR = "\x01"
_HEADER = re.compile(r"n,(?:a=(?P<name>(?:[^\0=,]|=2C|=3D)+))?,")
_PAIR = re.compile(r"(?P<key>[A-Za-z]+)=(?P<value>[\x21-\x7e \t\r\n]+)")
_AUTH = re.compile(r"(?i:bearer) +(?P<token>[-A-Za-z0-9._~+/]+=*)")
_STATUS = re.compile(r"[\x20-\x7e]{1,60}")


@dataclasses.dataclass(frozen=True)
class ClientFirst:
    token: str = dataclasses.field(repr=False)
    authorize_as: str = ""
    """Must be the subject of the token, or empty."""
    extensions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Extensions of the SASL exchange (KIP-342). They are accepted and have no meaning here."""

    @classmethod
    def parse(cls, message: bytes) -> ClientFirst:
        """Raises LoginRefused."""
        try:
            header, *pairs = message.decode().split(_SEPARATOR)
        except UnicodeDecodeError:
            raise _unreadable() from None
        begin = _HEADER.fullmatch(header)
        if begin is None or pairs[-2:] != ["", ""]:
            raise _unreadable()
        found: dict[str, str] = {}
        for pair in pairs[:-2]:
            match = _PAIR.fullmatch(pair)
            if match is None or match["key"] in found:
                raise _unreadable()
            found[match["key"]] = match["value"]
        auth = _AUTH.fullmatch(found.pop("auth", ""))
        if auth is None:
            raise _unreadable()
        name = (begin["name"] or "").replace("=2C", ",").replace("=3D", "=")
        return cls(auth["token"], name, found)


class OAuthBearerServer:
    """One login as the broker sees it. `user` and `lifetime_ms` are set when it is `complete`."""

    def __init__(self, verify: Callable[[str], Awaitable[AccessToken]]) -> None:
        """`verify` raises TokenRefused."""
        self._verify = verify
        self._refused: TokenRefused | None = None
        self.user = ""
        self.lifetime_ms = 0
        """How long the token is still valid."""
        self.complete = False

    async def step(self, message: bytes) -> bytes:
        """The answer. Raises LoginRefused, and what `verify` raises besides TokenRefused."""
        if self._refused is not None:
            raise self._refused
        first = ClientFirst.parse(message)
        try:
            token = await self._verify(first.token)
        except TokenRefused as error:
            self._refused = error
            return json.dumps({"status": error.status}).encode()
        if first.authorize_as not in ("", token.subject):
            raise LoginRefused("a user cannot log in as another user")
        self.user, self.lifetime_ms, self.complete = token.subject, token.lifetime_ms, True
        return b""


@dataclasses.dataclass(frozen=True)
class TokenLogin(Login):
    """By access tokens. `user` is the id at the identity provider, as far as settings tell."""

    tokens: TokenSource = dataclasses.field(repr=False, compare=False)
    extensions: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Extensions of OAUTHBEARER (KIP-342)."""

    waits = True

    @property
    def principal(self) -> None:
        return None

    @property
    def described(self) -> str:
        return self.tokens.described

    def begin(self, host: str) -> Exchange:
        provided = self.tokens.current()
        return self._exchange(provided.token, client_first(provided.token, {**provided.extensions, **self.extensions}))

    def _exchange(self, token: str, first: bytes) -> Exchange:
        """A JSON error is acknowledged before the login ends (RFC 7628, 3.2.3)."""
        try:
            answer = yield first
        except RefusedByBroker as error:
            self.tokens.forget(token)
            raise RefusedByBroker(f"{error}; {self.tokens.provider.advice}") from None
        if not answer:
            return
        self.tokens.forget(token)
        with contextlib.suppress(RefusedByBroker):  # which tells less than the JSON
            yield ACKNOWLEDGED
        raise RefusedByBroker(f"{error_status(answer)}, its log says why; {self.tokens.provider.advice}")


def client_first(token: str, extensions: Mapping[str, str]) -> bytes:
    """The client's message. Raises ConfigError for what cannot be sent."""
    if _AUTH.fullmatch(f"Bearer {token}") is None:
        raise ConfigError("the access token is empty, or has characters that no token may have")
    pairs = [("auth", f"Bearer {token}"), *extensions.items()]
    texts = [f"{key}={value}" for key, value in pairs]
    wrong = [
        key
        for (key, _), text in zip(pairs, texts, strict=True)
        if not _PAIR.fullmatch(text) or (key == "auth" and key in extensions)
    ]
    if wrong:
        raise ConfigError(f"the SASL extension {wrong[0]!r} cannot be sent: a name has letters only, a value is ASCII")
    return (f"n,,{_SEPARATOR}" + "".join(f"{text}{_SEPARATOR}" for text in texts) + _SEPARATOR).encode()


def error_status(answer: bytes) -> str:
    """The status in a broker's JSON error, such as invalid_token."""
    try:
        status = json.loads(answer)["status"]
    except (ValueError, TypeError, KeyError, RecursionError):
        status = None
    return status if isinstance(status, str) and _STATUS.fullmatch(status) else "an error that cannot be read"


def _unreadable() -> LoginRefused:
    return LoginRefused("the message of OAUTHBEARER cannot be read")
