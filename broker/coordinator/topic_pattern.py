"""The pattern of a consumer group's subscription (KIP-848): which topics it matches as a whole. Pure.

Kafka takes RE2's syntax, whose matches cost little whatever the pattern. Python's `re` would need exponential time for
some patterns, and hold the whole process meanwhile. So only its parser is used: a match follows all ways through the
pattern at once, as sets of positions, and a pattern that costs too much is an error. What RE2 does not have
(look-around, references to groups) is refused.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Set
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from broker.errors import BrokerError, ErrorCode

MAX_STEPS = 50_000
"""Of one match. A topic's name has at most 249 characters."""

MAX_STEPS_OF_ALL = 20_000_000
"""Of the matches with all topics, about ten seconds. A usual pattern takes some hundred steps for a name."""

_CLASSES = {"DIGIT": str.isdigit, "WORD": lambda one: one.isalnum() or one == "_", "SPACE": str.isspace}

_POSIX = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "ascii": "\0\x7f",
    "blank": "\t\t  ",
    "cntrl": "\0\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09AZ__az",
    "xdigit": "09AFaf",
}
"""RE2's classes that stand in brackets: the first and the last character of each range."""

_TOKENS = re.compile(r"\\.|\[:(\^?)(\w+):\]|\[\^?\]?|.", re.DOTALL)


def _with_ranges(pattern: str) -> str:
    """The pattern with ranges for `[:alpha:]` and the like, which `re` takes for a set. Raises KeyError."""
    parts, in_set = [], False
    for token in _TOKENS.finditer(pattern):
        text = token[0]
        if in_set and token[2]:
            text = _ranges(_POSIX[token[2]], negated=bool(token[1]))
        elif not text.startswith("\\") and not token[2]:
            in_set = not text.endswith("]") if in_set else text.startswith("[")
        parts.append(text)
    return "".join(parts)


def _ranges(bounds: str, *, negated: bool) -> str:
    edges = [ord(one) for one in bounds]
    if negated:
        edges = [0, *(edge - 1 if index % 2 == 0 else edge + 1 for index, edge in enumerate(edges)), sys.maxunicode]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in pairs if first <= last)


class TopicPattern:
    """One compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Raises BrokerError `invalid_regular_expression`."""
        self._pattern = pattern
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._parsed = _parser.parse(_with_ranges(pattern))
            self._ignores_case = bool(self._parsed.state.flags & re.IGNORECASE)
            self._steps = 0
            self.matches("")  # meets what is not supported, too
        except (re.error, KeyError, OverflowError, RecursionError) as error:
            raise self._refused(str(error)) from None

    def _refused(self, why: str) -> BrokerError:
        told = f"SubscribedTopicRegex `{self._pattern}` is not a valid pattern: {why}"
        return BrokerError(ErrorCode.invalid_regular_expression, told)

    def matching(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics that match. Internal ones never do. It may take a while: call it in a thread. Raises BrokerError
        `invalid_regular_expression` if that costs too much."""
        found, steps = set(), 0
        for topic in topics:
            if topic.startswith("__"):
                continue
            if self.matches(topic):
                found.add(topic)
            steps += self._steps
            if steps > MAX_STEPS_OF_ALL:
                raise self._refused("matches with all topics take too many steps")
        return frozenset(found)

    def matches(self, text: str) -> bool:
        self._steps = 0
        return len(text) in self._ends(self._parsed, text, {0}, self._ignores_case)

    def _ends(self, sequence: Any, text: str, starts: Set[int], ignores_case: bool) -> Set[int]:
        """Where a match of `sequence` can end that begins at one of `starts`."""
        self._count(1)  # an empty sequence may be repeated, too
        for op, value in sequence:
            self._count(1 + len(starts) * (len(value) if op is c.IN else 1))
            starts = self._after(op, value, text, starts, ignores_case)
        return starts

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise self._refused("a match takes too many steps")

    def _after(self, op: Any, value: Any, text: str, starts: Set[int], ignores_case: bool) -> Set[int]:
        if op in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            return {at + 1 for at in starts if at < len(text) and _takes(op, value, text[at], ignores_case)}
        if op is c.SUBPATTERN:
            _, added, removed, inner = value
            ignores_case = bool((ignores_case or added & re.IGNORECASE) and not removed & re.IGNORECASE)
            return self._ends(inner, text, starts, ignores_case)
        if op is c.BRANCH:
            return {end for one in value[1] for end in self._ends(one, text, starts, ignores_case)}
        if op in (c.MAX_REPEAT, c.MIN_REPEAT):
            return self._repeated(value, text, starts, ignores_case)
        if op is c.AT and value in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return starts & {0}
        if op is c.AT and value in (c.AT_END, c.AT_END_STRING):
            return starts & {len(text)}
        raise re.error(f"{str(op).lower().replace('_', ' ')} is not supported")

    def _repeated(self, value: Any, text: str, starts: Set[int], ignores_case: bool) -> Set[int]:
        least, most, inner = value
        for _ in range(least):
            starts = self._ends(inner, text, starts, ignores_case)
        found, latest = set(starts), starts
        for _ in range(least, int(most)):
            latest = self._ends(inner, text, latest, ignores_case) - found
            found |= latest
            if not latest:
                break
        return found


def _takes(op: Any, value: Any, char: str, ignores_case: bool) -> bool:
    """Whether a part of a pattern for one character takes this one."""
    if ignores_case:
        return any(_takes(op, value, one, False) for one in {char, char.lower(), char.upper()})
    if op is c.ANY:
        return True
    if op is not c.IN:
        return (ord(char) == value) is (op is c.LITERAL)
    negated = value[0][0] is c.NEGATE
    return any(_is_in(kind, item, char) for kind, item in value) is not negated


def _is_in(kind: Any, item: Any, char: str) -> bool:
    if kind is c.LITERAL:
        return bool(ord(char) == item)
    if kind is c.RANGE:
        return bool(item[0] <= ord(char) <= item[1])
    if kind is c.CATEGORY:
        name = str(item).removeprefix("CATEGORY_")
        return _CLASSES[name.removeprefix("NOT_")](char) is not name.startswith("NOT_")
    return False  # NEGATE
