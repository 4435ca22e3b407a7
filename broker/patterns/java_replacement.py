"""Replacements of Java's `Matcher.replaceAll` and `replaceFirst`, which stand behind patterns in Kafka's rules.

`$1` is what the first group matched, `\\x` is x. Called by security/principal_mapping.py and kerberos_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from broker.patterns.java import JavaPattern, UnsupportedPattern

_PIECE: Final = re.compile(r"\\(.)|\$(\d+)|([^\\$]+|.)", re.DOTALL | re.ASCII)


class JavaReplacement:
    """A pattern of Java and what takes the place of what it matches."""

    def __init__(self, pattern: str, replacement: str) -> None:
        """Raises UnsupportedPattern, also for a replacement that names a group that the pattern has not."""
        self.pattern: re.Pattern[str] = JavaPattern(pattern).compiled
        self._pieces = list(_PIECE.finditer(replacement))
        groups = self.pattern.groups
        missing = [piece[0] for piece in self._pieces if piece[2] and int(piece[2][0]) > groups]
        if any(piece[0] in ("$", "\\") for piece in self._pieces) or len(missing) > (1 if groups else 0):
            raise UnsupportedPattern(
                f"the replacement {replacement} names what the pattern {pattern} has not ({groups} groups); write "
                "\\$ for the sign itself"
            )

    def replaced(self, text: str, *, only_first: bool = False) -> str:
        return "".join(self._replaced(text, only_first))

    def _replaced(self, text: str, only_first: bool) -> Iterator[str]:
        """As Java's replaceAll: behind an empty match comes a character as it is. Python's `sub` looks there again."""
        at = copied = 0
        while at <= len(text) and (match := self.pattern.search(text, at)) is not None:
            yield text[copied : match.start()] + "".join(_expanded(piece, match) for piece in self._pieces)
            at = copied = match.end()
            at += match.start() == match.end()
            if only_first:
                break
        yield text[copied:]


def _expanded(piece: re.Match[str], match: re.Match[str]) -> str:
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
