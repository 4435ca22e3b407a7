"""`ssl.principal.mapping.rules`: what a client is called whose certificate has a distinguished name (KIP-371). Pure.

    RULE:^CN=(.*?),OU=ops.*$/$1/L,DEFAULT

The first rule whose pattern matches the whole name gives the user: its replacement with `$1` for what the first group
matched, in lower (`/L`) or upper case (`/U`). DEFAULT gives the whole name. Kafka's `SslPrincipalMapper` has the same
grammar. Patterns are Java's: one that Python would understand otherwise is refused when the broker starts, and so is
a replacement for which Kafka refuses clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from broker.errors import ConfigError, PykafkaError
from broker.patterns.java import JavaPattern, UnsupportedPattern

_PART: Final = r"(?:\\.|[^\\/])*"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:({_PART})/({_PART})/([LU]?))\s*(?:,|\Z)", re.ASCII)
_PIECE: Final = re.compile(r"\\(.)|\$(\d+)|([^\\$]+|.)", re.DOTALL | re.ASCII)
_BLANKS: Final = "".join(map(chr, range(0x21)))  # what Java's trim() takes away
_CASES: Final[dict[str, Callable[[str], str]]] = {"L": str.lower, "U": str.upper, "": str}


class NoMatchingRule(PykafkaError):
    """No rule gives a user for the name of a certificate."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    """Java's, for `re`."""
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern.fullmatch(name) is None:
            return None
        return _CASES[self.case]("".join(self._replaced(name)))

    def _replaced(self, name: str) -> Iterator[str]:
        """As Java's replaceAll: behind an empty match comes a character as it is. Python's `sub` looks there again."""
        at = copied = 0
        while at <= len(name) and (match := self.pattern.search(name, at)) is not None:
            yield name[copied : match.start()] + self._expanded(match)
            at = copied = match.end()
            at += match.start() == match.end()
        yield name[copied:]

    def _expanded(self, match: re.Match[str]) -> str:
        return "".join(_expanded_piece(piece, match) for piece in _PIECE.finditer(self.replacement))


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


def _rule(text: str, replacement: str, case: str) -> _Rule:
    """Raises ConfigError."""
    try:
        pattern = JavaPattern(text).compiled
    except UnsupportedPattern as error:
        raise ConfigError(f"ssl.principal.mapping.rules: the pattern {text} cannot be taken: {error}") from None
    pieces = list(_PIECE.finditer(replacement))
    missing = [piece[0] for piece in pieces if piece[2] and int(piece[2][0]) > pattern.groups]
    if any(piece[0] in ("$", "\\") for piece in pieces) or len(missing) > (1 if pattern.groups else 0):
        raise ConfigError(
            f"ssl.principal.mapping.rules: the replacement {replacement} names what the pattern {text} has not "
            f"({pattern.groups} groups); write \\$ for the sign itself"
        )
    return _Rule(pattern, replacement, case)


def _expanded_piece(piece: re.Match[str], match: re.Match[str]) -> str:
    """As Java replaces: `\\x` is x, `$12` is group 12, or group 1 and a 2, and a group that is not there is literal."""
    escaped, digits, literal = piece.groups()
    if digits is None:
        return str(escaped if escaped is not None else literal)
    groups, number = match.re.groups, digits
    while int(number) > groups and len(number) > 1:
        number = number[:-1]
    if int(number) > groups:
        return f"${digits}"
    return (match[int(number)] or "") + digits[len(number) :]
