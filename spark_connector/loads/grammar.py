"""The grammar of `columns`, `partition_by` and `sort_by`: what users write becomes items, and items become text again.

    columns        value.*, value.address.city, key as order_key
    partition_by   topic, day(at), bucket(16, customer)
    sort_by        customer, at desc

and that of `schema_evolution`: none, add or add,widen.

A name with blanks, commas, dots or parentheses stands in backticks, as in Spark; two of them stand for one. Loads keep
the items' texts in their records, so `str(item)` is the same for every spelling. Pure; request.py calls it before
anything is opened. Whether the columns exist is known later (tasks/columns.py). Raises ConfigError.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from broker.errors import ConfigError

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([,.()*])|([^\s,.()*`]+)|(\S))")
_PLAIN = re.compile(r"[^\s,.()*`]+")

POSITION: Final = ("topic", "partition", "offset")
"""The columns of a record that identify it."""

TRANSFORMS: Final = {"year": "year", "month": "month", "day": "day", "hour": "hour", "bucket": "bucket"} | {
    "truncate": "trunc"
}
"""Transform → how Iceberg ends the name of its column."""

_SPELLINGS: Final = {**{name: name for name in TRANSFORMS}, **{f"{name}s": name for name in ("year", "month", "day")}}
_SPELLINGS["hours"] = "hour"
_NUMBERED: Final = ("bucket", "truncate")


@dataclass(frozen=True)
class ColumnItem:
    """A column of the table: a source column or, by its path, a field in it. `every`: all fields of that struct."""

    path: tuple[str, ...]
    every: bool = False
    alias: str | None = None

    @property
    def name(self) -> str:
        return self.alias or self.path[-1]

    def __str__(self) -> str:
        path = ".".join(map(quoted, self.path)) + (".*" if self.every else "")
        return path if self.alias is None else f"{path} as {quoted(self.alias)}"


@dataclass(frozen=True)
class PartitionItem:
    """A column that rows are partitioned by, as it is (`identity`) or by a transform, with Iceberg's meaning."""

    column: str
    transform: str = "identity"
    argument: int | None = None

    @property
    def name(self) -> str:
        """The name of the partition column; for transforms as Iceberg's Spark gives them: `at_day`, `code_trunc`."""
        return self.column if self.transform == "identity" else f"{self.column}_{TRANSFORMS[self.transform]}"

    def __str__(self) -> str:
        if self.transform == "identity":
            return quoted(self.column)
        number = "" if self.argument is None else f"{self.argument},"
        return f"{self.transform}({number}{quoted(self.column)})"


@dataclass(frozen=True)
class SortItem:
    """A column that the rows of a file are sorted by."""

    column: str
    descending: bool = False

    def __str__(self) -> str:
        return quoted(self.column) + (" desc" if self.descending else "")


Given = str | Sequence[str] | None
"""A list, or one text with commas; None or an empty list for nothing."""


def parse_columns(given: Given) -> tuple[ColumnItem, ...]:
    """The columns in their order. Raises ConfigError."""
    items = _parse(given, _column, "columns (--columns)", "such as value.*, value.address.city, key as order_key")
    _refuse_twice([str(item) for item in items], "columns (--columns)")
    return items


def identify_rows(columns: Given) -> bool:
    """Whether a table of these columns has the topic, partition and offset of each row, by which rows are told apart.

    A value may have fields of these names, which are something else.
    """
    items = parse_columns(columns)
    return not items or set(POSITION) <= {item.name for item in items if item.path == (item.name,)}


def parse_partition_by(given: Given) -> tuple[PartitionItem, ...]:
    """The partition columns in their order. Raises ConfigError."""
    option = "partition_by (--partition-by)"
    items = _parse(given, _partition, option, "such as topic, day(at), bucket(16, customer), truncate(4, code)")
    _refuse_twice([item.name for item in items], option)
    return items


def partition_columns(partition_by: Given) -> list[str]:
    """The names of the partition columns."""
    return [item.name for item in parse_partition_by(partition_by)]


def parse_sort_by(given: Given) -> tuple[SortItem, ...]:
    """The columns to sort by, the first one first. Raises ConfigError."""
    items = _parse(given, _sort, "sort_by (--sort-by)", "such as customer, at desc")
    _refuse_twice([item.column for item in items], "sort_by (--sort-by)")
    return items


def quoted(name: str) -> str:
    """The name as users write it."""
    return name if _PLAIN.fullmatch(name) and name.lower() != "as" else f"`{name.replace('`', '``')}`"


def refuse_unknown(name: str, names: Sequence[str], what: str) -> None:
    """Raise ConfigError unless `name` is one of `names`; `what` says what it would be."""
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(names)}"
        raise ConfigError(f"{what} '{name}'. {hint}")


def refuse_unknown_column(item: PartitionItem | SortItem, names: Sequence[str]) -> None:
    """Raise ConfigError unless the item's column is one of `names`, the columns of the table."""
    option = "sort_by (--sort-by)" if isinstance(item, SortItem) else "partition_by (--partition-by)"
    refuse_unknown(item.column, names, f"{option} {item}: the table has no column")


def _refuse_twice(names: Sequence[str], option: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{option} names '{name}' twice")


class _Reader:
    """The tokens of one text, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, str, str]] = _TOKEN.findall(text)

    @property
    def mark(self) -> str:
        """The punctuation, or what is out of place, that comes next; empty for a name and at the end."""
        return (self._tokens[0][1] or self._tokens[0][3]) if self._tokens else ""

    @property
    def word(self) -> str:
        """The bare word that comes next, in lower case."""
        return self._tokens[0][2].lower() if self._tokens else ""

    @property
    def at_end(self) -> bool:
        return not self._tokens

    def name(self) -> str:
        if not self._tokens or self.mark:
            raise ValueError(f"a name is missing before '{self.mark}'" if self._tokens else "a name is missing")
        token = self._tokens.pop(0)
        return token[2] or token[0].replace("``", "`")

    def take(self, mark: str) -> bool:
        """Whether `mark` comes next, which is consumed then."""
        if self.mark != mark:
            return False
        self._tokens.pop(0)
        return True

    def take_word(self, word: str) -> bool:
        if self.word != word:
            return False
        self._tokens.pop(0)
        return True

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise ValueError(f"'{mark}' is missing")


Item = TypeVar("Item", ColumnItem, PartitionItem, SortItem)


def _parse(given: Given, one: Callable[[_Reader], Item], option: str, example: str) -> tuple[Item, ...]:
    text = given if isinstance(given, str) else ", ".join(given or ())
    reader, items = _Reader(text), []
    try:
        if isinstance(given, str) and not given.strip():
            raise ValueError("a name is missing")
        while not reader.at_end:
            items.append(one(reader))
            if not reader.at_end:
                reader.expect(",")
                if reader.at_end:
                    raise ValueError("a name is missing at the end")
    except ValueError as error:
        raise ConfigError(f"{option} is a list of columns, {example}: {error}, in '{text}'") from None
    return tuple(items)


def _column(reader: _Reader) -> ColumnItem:
    path = [reader.name()]
    while reader.take("."):
        if reader.take("*"):
            if reader.word == "as":
                raise ValueError("'.*' is several columns, which cannot get one name by 'as'")
            return ColumnItem(tuple(path), every=True)
        path.append(reader.name())
    return ColumnItem(tuple(path), alias=reader.name() if reader.take_word("as") else None)


def _partition(reader: _Reader) -> PartitionItem:
    is_bare, name = bool(reader.word), reader.name()
    if not is_bare or not reader.take("("):
        return PartitionItem(_top_level(reader, name))
    transform = _SPELLINGS.get(name.lower())
    if transform is None:
        raise ValueError(f"'{name}' is no transform, which are {', '.join(TRANSFORMS)}")
    number = None
    if transform in _NUMBERED:
        number = _number(reader, transform)
        reader.expect(",")
    column = _top_level(reader, reader.name())
    reader.expect(")")
    return PartitionItem(column, transform, number)


def _number(reader: _Reader, transform: str) -> int:
    word = reader.word
    if not word.isascii() or not word.isdecimal() or not 0 < int(word[:11]) < 2**31:
        raise ValueError(f"{transform} needs a positive number first, as in {transform}(16, customer)")
    return int(reader.name())


def _top_level(reader: _Reader, name: str) -> str:
    if reader.mark == ".":
        raise ValueError(
            f"'{name}.' is no column of the table: make the field a column by columns (--columns), and name that here"
        )
    return name


def _sort(reader: _Reader) -> SortItem:
    name = _top_level(reader, reader.name())
    if reader.take_word("desc"):
        return SortItem(name, descending=True)
    reader.take_word("asc")
    return SortItem(name)


@dataclass(frozen=True)
class Evolution:
    """What a load may change in the schema of its table, before it writes a row (evolution.py)."""

    add: bool = False
    widen: bool = False

    @classmethod
    def parse(cls, text: str) -> Evolution:
        """`none`, `add` or `add,widen`. Raises ConfigError."""
        words = {word.strip().lower() for word in text.split(",")}
        if words not in ({"none"}, {"add"}, {"add", "widen"}):
            raise ConfigError(
                f"schema_evolution (--schema-evolution) must be one of none, add or add,widen, not '{text}'"
            )
        return cls("add" in words, "widen" in words)


NO_CHANGES = Evolution()
