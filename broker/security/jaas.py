"""The login module of a `sasl.jaas.config`: `…PlainLoginModule required username="u" password="p" user_alice="s";`.

The broker reads the users of PLAIN from it, and its own name and password for other brokers; the client reads its own
name and password, or the credentials with which it gets tokens. The syntax is that of Java's `JaasConfig`, for one
module. Errors do not repeat the text, because it has passwords.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from broker.errors import ConfigError

_TOKEN = re.compile(r'\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')|(?P<bare>[^\s=;"\']+)|(?P<mark>[=;]))')
_FLAGS = ("required", "requisite", "sufficient", "optional")
_USER = "user_"


@dataclasses.dataclass(frozen=True)
class LoginModule:
    """A login module, without its package, and its options."""

    name: str
    options: Mapping[str, str] = dataclasses.field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """User → password: the options `user_NAME`."""
        return {key[len(_USER) :]: value for key, value in self.options.items() if key.startswith(_USER)}


def parse_jaas(text: str, key: str = "sasl.jaas.config") -> LoginModule:
    """Parse `text`, the value of the setting `key`. Raises ConfigError."""
    tokens = _tokens(text, key)
    if len(tokens) < 3 or tokens[1].lower() not in _FLAGS or tokens[-1] != ";":
        raise _unreadable(key)
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if len(rest) % 3 or ";" in rest[::3]:
        raise _unreadable(key)
    for name, mark, value in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if mark != "=":
            raise _unreadable(key)
        options[name] = value
    return LoginModule(tokens[0].rpartition(".")[2], options)


def _tokens(text: str, key: str) -> list[str]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(key)
        quoted = match["quoted"]
        tokens.append(re.sub(r"\\(.)", r"\1", quoted[1:-1]) if quoted else match["bare"] or match["mark"])
        position = match.end()
    return tokens


def _unreadable(key: str) -> ConfigError:
    return ConfigError(
        f'{key}: expected org.apache.kafka.common.security.….PlainLoginModule required username="…" password="…"; '
        "(or ScramLoginModule, OAuthBearerLoginModule), with the semicolon"
    )
