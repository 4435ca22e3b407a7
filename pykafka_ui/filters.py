"""Which records a page shows: those that hold a text, or whose value has something at a JSON path (RFC 9535)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import jsonpath_rfc9535 as jsonpath

from broker.errors import ConfigError
from broker.records.record import Record
from pykafka_ui.values import As, Decoder

__all__ = ["PLACES", "record_filter"]

PLACES = ("key", "value", "headers")


def record_filter(
    decoder: Decoder, how: As, text: str = "", places: Collection[str] = PLACES, path: str = "", equals: str = ""
) -> Callable[[Record], bool]:
    """True for a record that passes all of it. `text` is looked for in `places`, whatever its case.

    `path`: its value must have something there, and with `equals` something that reads so. Raises ConfigError for a
    path that is none, and for unknown places.
    """
    if unknown := set(places) - set(PLACES):
        raise ConfigError(f"in={min(unknown)}: must be one of {', '.join(PLACES)}")
    if equals and not path:
        raise ConfigError("equals needs a path, such as $.user.name")
    needle = text.encode().lower()
    try:
        query = jsonpath.compile(path) if path else None
    except jsonpath.JSONPathError as error:
        raise ConfigError(f"path={path}: {error}") from None

    def passes(record: Record) -> bool:
        if needle and not any(needle in one.lower() for one in _bytes_of(record, places)):
            return False
        return query is None or _matches(query, decoder.decode(record.value, how).data, equals)

    return passes


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
        found = query.find(data).values()
    except (jsonpath.JSONPathError, RecursionError):
        return False
    return any(not equals or equals == (one if isinstance(one, str) else json.dumps(one)) for one in found)
