"""How a load reads, as its record keeps it: the reader's options that decide which records it loads, and as what.

A later load of the group that changes them is refused (plan.py), and verify reads Kafka's log with them. Logins in URLs
are not kept. Loads read committed records by default: the records of an aborted transaction are not data. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from spark_connector.formats.placeholder import DEFAULT as PLACEHOLDER
from spark_connector.formats.placeholder import OPTION as PLACEHOLDER_OPTION
from spark_connector.formats.placeholder import Placeholder
from spark_connector.options.option_table import OPTIONS
from spark_connector.stored_json import mapping, words

_ISOLATION = "kafka.isolation.level"
DEFAULTS = {_ISOLATION: "read_committed"}
"""Defaults of a load. Other readers have Kafka's default, read_uncommitted."""

_KEPT = {option.name: option for option in OPTIONS if option.kept}
_UNSET = {
    **{
        name: option.default.lower() if option.ignores_case else option.default
        for name, option in _KEPT.items()
        if option.default
    },
    PLACEHOLDER_OPTION: PLACEHOLDER,
}
BESIDE = {"dead_letters": "a table"}
_LOGIN = re.compile(r"^(https?://)[^/@\s]*@")
_LONGEST = 60  # characters of a value in a message


def as_loads_read(options: Mapping[str, str]) -> dict[str, str]:
    """The reader's `options` (names in lower case), and what they are in a load if they do not say so."""
    given = {**DEFAULTS, **options}
    if decodes(given):
        given.setdefault(PLACEHOLDER_OPTION, PLACEHOLDER)
    return given


def decodes(options: Mapping[str, str]) -> bool:
    """Whether keys or values become columns with types."""
    return any(options.get(name, "binary").strip().lower() != "binary" for name in ("keyformat", "valueformat"))


def placeholder_of(reading: Mapping[str, str]) -> Placeholder | None:
    """The placeholder that a load with this `reading` takes for no value."""
    return Placeholder.parse(reading.get(PLACEHOLDER_OPTION, PLACEHOLDER))


def reading_of(options: Mapping[str, str]) -> dict[str, str]:
    """Those of the reader's `options` (names in any case) that a load's record keeps.

    Options at their default are left out, except the isolation level.
    """
    given = {name.lower(): str(value).strip() for name, value in {**DEFAULTS, **options}.items()}
    kept = {}
    for name in (_ISOLATION, *_KEPT):
        if name.lower() in given:
            value = given[name.lower()]
            ignores_case = name == _ISOLATION or _KEPT[name].ignores_case
            value = value.lower() if ignores_case else _LOGIN.sub(r"\1", value)
            if value != _UNSET.get(name):
                kept[name] = value
    return kept


def check_kept(document: object) -> dict[str, str]:
    """The options in a stored record, if they are such as `reading_of` keeps, so no servers and no logins. Raises
    ValueError."""
    found = {name: words(value, name) for name, value in mapping(document, "reading").items()}
    if unknown := found.keys() - {_ISOLATION, *_KEPT, *BESIDE}:
        raise ValueError(f"reading: no load keeps the option '{min(unknown)}'")
    return found


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The options that differ, in words; empty when none does."""
    differing = [name for name in sorted({*before, *now}) if _value(before, name) != _value(now, name)]
    return ", ".join(f"{name}={_shown(now, name)} (before: {_shown(before, name)})" for name in differing)


def with_columns(reading: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    """A load's `reading`, and its columns as one more option."""
    return {**reading, "columns": ", ".join(columns)} if columns else dict(reading)


def _value(options: Mapping[str, str], name: str) -> str:
    return options.get(name, _UNSET.get(name, "not set"))


def _shown(options: Mapping[str, str], name: str) -> str:
    value = _value(options, name)
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
