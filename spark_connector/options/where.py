"""The option `where`: a condition as SQL writes it, `timestamp >= '…Z' AND key = 'user-42' AND partition IN (0, 3)`.

A conjunction of comparisons of `partition`, `offset`, `timestamp` and `key` with constants: nothing else, because only
these say what need not be read. Each row that it lets pass would pass Spark's own `where` with the same text (whole
numbers as timestamps are milliseconds here, and Spark does not take them), and the other way round. What Spark would
understand in more than one way is refused: times without an offset from UTC, numbers that look like seconds, texts with
a backslash or a doubled quote.

Raises ConfigError, which names the term.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NoReturn

from broker.errors import ConfigError
from spark_connector.options.value_sets import LOWEST, NO_END, Intervals, KeySet, Where, parse_bytes

_TOKEN = re.compile(
    r"""(?P<bytes>[xX]'(?:[0-9a-fA-F]{2})*') | (?P<text>'[^']*') | (?P<number>[+-]?[0-9]{1,40}(?![\w.]))
    | (?P<name>\w+|`[^`]*`) | (?P<operator><=>|<=|>=|<>|!=|==|=|<|>) | (?P<other>\S)""",
    re.VERBOSE,
)
_COLUMNS = ("partition", "offset", "timestamp", "key")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SAME = {"==": "=", "!=": "<>"}
_OPERATORS = ("=", "<>", "<", "<=", ">", ">=")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?) ?(Z|UTC|[+-](?:0\d|1[0-7]):[0-5]\d|[+-]18:00)?", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = range(10**9, 10**10)
"""Seconds of the years 2001 to 2286; as milliseconds they lie in the first months of 1970."""
_LAST_MS = 253_402_300_799_999  # of the year 9999
_US_PER_MS = 1000
_LONGEST = 200  # characters of a term in a message


def parse_where(text: str | None) -> Where:
    """Raises ConfigError."""
    return Where() if text is None else _Parser(text).parse()


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    @property
    def word(self) -> str:
        """A keyword or column in lower case; empty for anything else."""
        word = self.text.strip("`").lower()
        return word if self.kind == "name" and (word == self.text.lower() or word in _COLUMNS) else ""


class _Parser:
    """Takes token after token; `_begin` is the first of the term at hand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [_Token(match.lastgroup or "", match[0], match.start()) for match in _TOKEN.finditer(text)]
        self._tokens.append(_Token("end", "", len(text)))
        self._at = self._begin = 0
        self._numbers: dict[str, Intervals] = {}
        self._keys: KeySet | None = None
        self._partition_terms: list[str] = []

    def parse(self) -> Where:
        depth = 0
        while True:
            while self._take("("):
                depth += 1
            self._begin = self._at
            column = self._term()
            if column == "partition":
                end = self._tokens[self._at - 1]
                self._partition_terms.append(self._text[self._tokens[self._begin].start : end.start + len(end.text)])
            while depth and self._take(")"):
                depth -= 1
            if self._next.kind == "end" and not depth:
                break
            if not self._take("and"):
                self._refuse("a parenthesis is not closed" if self._next.kind == "end" else "it goes on unexpectedly")
        numbers = self._numbers
        return Where(
            numbers.get("partition"),
            numbers.get("offset"),
            numbers.get("timestamp"),
            self._keys,
            " AND ".join(self._partition_terms),
        )

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _advance(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._at += 1
        return token

    def _take(self, what: str) -> bool:
        """Pass over a keyword or sign, if it is next."""
        token = self._next
        found = token.word == what if what.isalpha() else token.text == what
        self._at += found
        return found

    def _term(self) -> str:
        """One comparison; the column it is about."""
        if self._next.word in _COLUMNS and self._tokens[self._at + 1].kind not in ("text", "bytes"):
            column = self._advance().word
            self._condition(column)
            return column
        place = self._at
        self._at += self._next.word == "timestamp"
        self._advance()
        operator, column = self._advance(), self._advance().word
        if operator.kind != "operator" or column not in _COLUMNS:
            self._refuse()
        end, self._at = self._at, place
        constant = self._constant(column)
        self._at = end
        symbol = _SAME.get(operator.text, operator.text)
        self._compare(column, _FLIPPED.get(symbol, symbol), constant)
        return column

    def _condition(self, column: str) -> None:
        """What stands behind a column's name."""
        if self._take("between"):
            self._compare(column, ">=", self._constant(column))
            if not self._take("and"):
                self._refuse("BETWEEN needs AND")
            self._compare(column, "<=", self._constant(column))
        elif self._take("in"):
            self._any_of(column)
        elif column == "key" and self._take("like"):
            self._like()
        else:
            token = self._advance()
            if token.kind != "operator":
                self._refuse()
            self._compare(column, _SAME.get(token.text, token.text), self._constant(column))

    def _any_of(self, column: str) -> None:
        constants = []
        if not self._take("("):
            self._refuse("IN needs a list in parentheses")
        while True:
            constants.append(self._constant(column))
            if self._take(")"):
                break
            if not self._take(","):
                self._refuse("a list of IN is constants separated by commas")
        if column == "key":
            self._let_pass(KeySet(frozenset(one for one in constants if isinstance(one, bytes))))
        else:
            numbers = [_numbers_that("=", one, _unit(column)) for one in constants if isinstance(one, int)]
            self._bound(column, Intervals.of(part for one in numbers for part in one.parts))

    def _like(self) -> None:
        pattern = self._string(self._advance(), "LIKE takes a text").encode()
        prefix = pattern.removesuffix(b"%")
        if b"%" in prefix or b"_" in prefix:
            self._refuse("LIKE takes a prefix, as in key LIKE 'anna%'")
        self._let_pass(KeySet(frozenset([pattern])) if prefix == pattern else KeySet(prefix=prefix))

    def _compare(self, column: str, operator: str, constant: int | bytes) -> None:
        if operator not in _OPERATORS:
            self._refuse(f"{operator} is not one of {', '.join(_OPERATORS)}")
        if isinstance(constant, int):
            self._bound(column, _numbers_that(operator, constant, _unit(column)))
        elif operator == "=":
            self._let_pass(KeySet(frozenset([constant])))
        elif operator == "<>":
            self._let_pass(KeySet(without=frozenset([constant])))
        else:
            self._refuse("a key is compared by =, <>, IN, or LIKE with a prefix")

    def _bound(self, column: str, numbers: Intervals) -> None:
        known = self._numbers.get(column)
        self._numbers[column] = numbers if known is None else known & numbers

    def _let_pass(self, keys: KeySet) -> None:
        self._keys = keys if self._keys is None else self._keys & keys

    def _constant(self, column: str) -> int | bytes:
        """The next tokens as a constant of the column's type: bytes of a key, µs of a timestamp."""
        if column == "timestamp":
            return self._time()
        token = self._advance()
        if column != "key":
            if token.kind != "number":
                self._refuse(f"{column} is compared with whole numbers")
            return int(token.text)
        if token.kind == "bytes":
            return parse_bytes(token.text)
        return self._string(token, "a key is compared with 'text' or bytes like X'cafe'").encode()

    def _string(self, token: _Token, otherwise: str) -> str:
        if token.kind != "text":
            self._refuse(otherwise)
        if "\\" in token.text or self._next.kind == "text":
            self._refuse("Spark reads a backslash or a doubled quote in a text in more than one way: write X'…'")
        return token.text[1:-1]

    def _time(self) -> int:
        """µs since 1970."""
        self._take("timestamp")
        token = self._advance()
        if token.kind == "number":
            number = int(token.text)
            if number in _SECONDS or number > _LAST_MS:
                seem = "looks like seconds" if number in _SECONDS else "lies after the year 9999"
                self._refuse(f"{number} {seem}: a number is milliseconds since 1970")
            return number * _US_PER_MS
        text = self._string(token, "timestamp is compared with '2026-11-25T08:00:00Z', or milliseconds since 1970")
        match = _TIME.fullmatch(text.strip())
        if match is None and not _DATE.match(text.strip()):
            self._refuse(f"'{text}' is not a time like '2026-11-25T08:00:00Z' or '2026-11-25 08:00:00.000+01:00'")
        if match is None or match[3] is None:
            self._refuse(
                f"'{text}' has no offset from UTC, so it is another time in each session: write it like "
                "'2026-11-25T08:00:00Z' or '2026-11-25 08:00:00+01:00'"
            )
        offset = "+00:00" if match[3] in ("Z", "UTC") else match[3]
        try:
            return (datetime.fromisoformat(f"{match[1]}T{match[2]}{offset}") - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError):
            self._refuse(f"'{text}' is no time of the calendar")

    def _refuse(self, why: str = "") -> NoReturn:
        """Raise ConfigError for the term that begins at `_begin`."""
        tokens: Sequence[_Token] = self._tokens
        end, between = self._begin, False
        while tokens[end].kind != "end" and (tokens[end].word != "and" or between):
            between = tokens[end].word == "between" or (between and tokens[end].word != "and")
            end += 1
        term = self._text[tokens[self._begin].start : tokens[end].start].strip() or self._text
        term = term if len(term) <= _LONGEST else f"{term[:_LONGEST]}…"
        raise ConfigError(
            f"Option 'where' cannot use the term \"{term}\"{why and ': '}{why}. It takes comparisons (=, <>, <, <=, >, "
            ">=, BETWEEN, IN) of partition, offset, timestamp and key with constants, and key LIKE 'prefix%', joined "
            "by AND. For headers there is the option filterHeader; Spark's own where takes everything else"
        )


def _unit(column: str) -> int:
    return _US_PER_MS if column == "timestamp" else 1


_BOUNDS: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "=": lambda below, above: (above, below + 1),
    "<": lambda _below, above: (LOWEST, above),
    "<=": lambda below, _above: (LOWEST, below + 1),
    ">": lambda below, _above: (below + 1, NO_END),
    ">=": lambda _below, above: (above, NO_END),
}
"""Half-open ranges by the whole numbers around a constant: the greatest that is not above it, the least not below."""


def _numbers_that(operator: str, constant: int, unit: int) -> Intervals:
    """The whole numbers n for which `n * unit operator constant` is true."""
    below, above = constant // unit, -(-constant // unit)
    names = ("<", ">") if operator == "<>" else (operator,)
    return Intervals.of(_BOUNDS[name](below, above) for name in names)
