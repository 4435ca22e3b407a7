"""Which records a page shows: those that hold a text, or whose value has something at a JSON path (RFC 9535)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection
from typing import Any

import jsonpath_rfc9535 as jsonpath

from broker.errors import ConfigError
from broker.records.record import Record
from pykafka_ui.values import Decoder, plain

PLACES = ("key", "value", "headers")
_MOST_NODES = 10_000
"""Of one value: a path such as $..*..* has more than a browser lives to see."""

_LONGEST_PATH = 1_000
_LARGEST = 8 << 20
"""Bytes of a value that is looked into."""

_PATHS = jsonpath.JSONPathEnvironment()
for _function in ("match", "search"):  # a regular expression may run for ever
    _PATHS.function_extensions.pop(_function, None)


def record_filter(
    decoder: Decoder, text: str = "", places: Collection[str] = PLACES, path: str = "", equals: str = ""
) -> Callable[[Record], bool]:
    """True for a record that passes all of it. `text` is looked for in `places`, whatever its case.

    `path`: its value must have something there, and with `equals` something that reads so. Raises ConfigError for a
    path that is none, and for unknown places.
    """
    if unknown := set(places) - set(PLACES):
        raise ConfigError(f"in={min(unknown)}: must be one of {', '.join(PLACES)}")
    if equals and not path:
        raise ConfigError("equals needs a path, such as $.user.name")
    needle = text.casefold()
    query = _compiled(path) if path else None

    def passes(record: Record) -> bool:
        if needle and not any(_holds(one, needle) for one in _bytes_of(record, places)):
            return False
        if query is None:
            return True
        return len(record.value or b"") <= _LARGEST and _matches(query, decoder.data(record.value), equals)

    return passes


def _compiled(path: str) -> Any:
    if len(path) > _LONGEST_PATH or ".." in path.partition("[?")[2]:  # each node would look at all below it
        raise ConfigError(f"path={path[:80]}: too long, or a filter with .., which may take for ever")
    try:
        return _PATHS.compile(path)
    except (jsonpath.JSONPathError, RecursionError) as error:
        raise ConfigError(f"path={path}: {error}") from None


def _bytes_of(record: Record, places: Collection[str]) -> list[bytes]:
    found = []
    if "key" in places and record.key is not None:
        found.append(record.key)
    if "value" in places and record.value is not None:
        found.append(record.value)
    if "headers" in places:
        for name, content in record.headers:
            found += [name.encode(), content or b""]
    return found


def _matches(query: Any, data: Any, equals: str) -> bool:
    if data is None:
        return False
    try:
        for node in itertools.islice(query.finditer(data), _MOST_NODES):
            value = node.value
            if not equals or equals == (value if isinstance(value, str) else json.dumps(value, default=plain)):
                return True
    except (jsonpath.JSONPathError, RecursionError):
        pass
    return False


def _holds(content: bytes, needle: str) -> bool:
    if needle.isascii():
        return needle.encode() in content.lower()
    return needle in content.decode(errors="replace").casefold()
