"""Two records side by side: JSON field by field, anything else line by line."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pykafka_ui.records.json_text import json_text
from pykafka_ui.records.records_query import Row
from pykafka_ui.records.values import ShownValue

MOST_LINES: Final = 1_000
"""Of a value that are compared."""


class Difference(NamedTuple):
    """What both have at `name`, as text; None where one has nothing there."""

    name: str
    left: str | None
    right: str | None

    @property
    def is_equal(self) -> bool:
        return self.left == self.right


def differences(left: Row, right: Row) -> list[Difference]:
    """Of key, headers and value, also those that are equal."""
    found = [Difference("key", _text(left.key), _text(right.key))]
    found += _by_name(*({name: _text(one) for name, one in _headers(row)} for row in (left, right)))
    if left.value.data is not None and right.value.data is not None:
        return found + _by_name(*(dict(_fields(row.value.data, "$")) for row in (left, right)))
    if "null" in (left.value.kind, right.value.kind):
        return [*found, Difference("value", _text(left.value), _text(right.value))]
    return found + _by_line(left.value.text, right.value.text)


def _text(shown: ShownValue) -> str | None:
    return None if shown.kind == "null" else shown.text


def _headers(row: Row) -> Iterator[tuple[str, ShownValue]]:
    """With their number where several have one name."""
    counts: dict[str, int] = {}
    for name, one in row.headers:
        counts[name] = counts.get(name, 0) + 1
        yield f"header {name}" + (f" ({counts[name]})" if counts[name] > 1 else ""), one


def _fields(data: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, JSON) of everything that has nothing within it."""
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _fields(value, f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]")
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from _fields(value, f"{path}[{index}]")
    else:
        yield path, json_text(data)


def _by_name(left: Mapping[str, str | None], right: Mapping[str, str | None]) -> list[Difference]:
    return [Difference(name, left.get(name), right.get(name)) for name in dict.fromkeys((*left, *right))]


def _by_line(left: str, right: str) -> list[Difference]:
    ours, theirs = left.splitlines()[:MOST_LINES], right.splitlines()[:MOST_LINES]
    found = []
    for _, begin, end, other, until in difflib.SequenceMatcher(None, ours, theirs).get_opcodes():
        pairs = itertools.zip_longest(range(begin, end), range(other, until))
        for here, there in pairs:
            line = (here if here is not None else there or 0) + 1
            texts = (None if at is None else of[at] for of, at in ((ours, here), (theirs, there)))
            found.append(Difference(f"line {line}", *texts))
    return found
