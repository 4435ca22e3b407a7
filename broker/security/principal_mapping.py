"""`ssl.principal.mapping.rules`: what a client is called whose certificate has a distinguished name (KIP-371). Pure.

    RULE:^CN=(.*?),OU=ops.*$/$1/L,DEFAULT

The first rule whose pattern matches the whole name gives the user: its replacement with `$1` for what the first group
matched, in lower (`/L`) or upper case (`/U`). DEFAULT gives the whole name. Kafka's `SslPrincipalMapper` has the same
grammar. Patterns are Java's: one that Python would understand otherwise is refused when the broker starts, and so is
a replacement for which Kafka refuses clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.errors import ConfigError, PykafkaError
from broker.patterns.java import UnsupportedPattern
from broker.patterns.java_replacement import JavaReplacement

_PART: Final = r"(?:\\.|[^\\/])*"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:({_PART})/({_PART})/([LU]?))\s*(?:,|\Z)", re.ASCII)
_BLANKS: Final = "".join(map(chr, range(0x21)))  # what Java's trim() takes away
_CASES: Final[dict[str, Callable[[str], str]]] = {"L": str.lower, "U": str.upper, "": str}


class NoMatchingRule(PykafkaError):
    """No rule gives a user for the name of a certificate."""


class _Rule(NamedTuple):
    replacement: JavaReplacement
    case: str

    def apply(self, name: str) -> str | None:
        if self.replacement.pattern.fullmatch(name) is None:
            return None
        return _CASES[self.case](self.replacement.replaced(name))


class PrincipalMapping:
    def __init__(self, text: str) -> None:
        """Raises ConfigError for text that is no list of rules, and for patterns that are none."""
        self._rules: list[_Rule | None] = []
        at, text = 0, text.strip(_BLANKS)
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules={text}: expected RULE:PATTERN/REPLACEMENT/, the same with L or U "
                    f"behind it, or DEFAULT, separated by commas, at '{text[at : at + 40]}'"
                )
            default, pattern, replacement, case = found.groups()
            self._rules.append(None if default else _rule(pattern, replacement, case))
            at = found.end()

    def user_of(self, distinguished_name: str) -> str:
        """The user's name, without `User:`. Raises NoMatchingRule."""
        for rule in self._rules:
            found = distinguished_name if rule is None else rule.apply(distinguished_name)
            if found is not None:
                return found
        raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    """Raises ConfigError."""
    try:
        return _Rule(JavaReplacement(pattern, replacement), case)
    except UnsupportedPattern as error:
        raise ConfigError(
            f"ssl.principal.mapping.rules: the rule {pattern}/{replacement}/ cannot be taken: {error}"
        ) from None
