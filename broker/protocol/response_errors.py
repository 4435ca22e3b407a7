"""Finds the error codes in a response.

Called by the request log for every response that is a mapping. The places of error codes come from kio's schemas, once
for each API: the union over all versions, because a body may have the fields of any version (see messages.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kio.static.constants import EntityType

from broker.protocol.entities import entity_class, fields_of
from broker.protocol.messages import known_versions


class _ErrorFields(NamedTuple):
    """The fields of a structure that are error codes, and those that hold structures with error codes."""

    codes: tuple[str, ...]
    inner: tuple[tuple[str, _ErrorFields], ...]


def error_codes(api: int, body: Mapping[str, Any]) -> list[int]:
    """Every error code in `body` that is not NONE, in no particular order."""
    found: list[int] = []
    _collect(_place(api), body, found)
    return found


def _collect(place: _ErrorFields, body: Mapping[str, Any], found: list[int]) -> None:
    found += [int(code) for name in place.codes if (code := body.get(name))]
    for name, inner in place.inner:
        if held := body.get(name):
            for item in (held,) if isinstance(held, Mapping) else held:
                _collect(inner, item, found)


@functools.cache
def _place(api: int) -> _ErrorFields:
    low, high = known_versions(api)
    return _merged(_of(entity_class(api, version, EntityType.response)) for version in range(low, high + 1))


def _of(entity: Any) -> _ErrorFields:
    codes, inner = [], []
    for field in fields_of(entity):
        if field.kafka_type == "error_code":
            codes.append(field.name)
        elif field.struct is not None and any(place := _of(field.struct)):
            inner.append((field.name, place))
    return _ErrorFields(tuple(codes), tuple(inner))


def _merged(places: Iterable[_ErrorFields]) -> _ErrorFields:
    codes: dict[str, None] = {}
    inner: dict[str, list[_ErrorFields]] = {}
    for place in places:
        codes.update(dict.fromkeys(place.codes))
        for name, below in place.inner:
            inner.setdefault(name, []).append(below)
    return _ErrorFields(tuple(codes), tuple((name, _merged(below)) for name, below in inner.items()))
