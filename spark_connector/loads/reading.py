"""Which of the reader's options decide what a load takes of its topics and what becomes of it. Pure.

loads/request.py keeps them with each load's record, so that loads/planner.py can refuse a load that changes them in the
middle of a group, and loads/verify.py reads Kafka's log as the load did. Names are the reader's; logins in URLs are not
kept. Loads read committed records unless `kafka.isolation.level` says otherwise: a record of an aborted transaction is
not data, and one of an open transaction may still be aborted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from spark_connector.options.option_table import OPTIONS

__all__ = ["DEFAULTS", "describe_changes", "reading_of"]

_ISOLATION = "kafka.isolation.level"
DEFAULTS = {_ISOLATION: "read_committed"}
"""What a load reads with where the user does not say; other readers' default is Kafka's, read_uncommitted."""

_FORMATS = ("keyFormat", "valueFormat", "keySchema", "valueSchema", "columnNameOfCorruptRecord", "schema.registry.url")
_NAMES = (_ISOLATION, *(option.name for option in OPTIONS if option.name.startswith("filter")), *_FORMATS)
_WORDS = (_ISOLATION, "keyFormat", "valueFormat", "mode")  # values that are the same in any case
_UNSET = {"keyFormat": "binary", "valueFormat": "binary", "mode": "permissive", "sep": ","}
_LOGIN = re.compile(r"^(https?://)[^/@\s]*@")
_LONGEST = 60  # characters of a value in a message


def reading_of(options: Mapping[str, str]) -> dict[str, str]:
    """Those of the reader's `options` (names in any case) that a load's record keeps; defaults are left out, but for
    the isolation."""
    given = {name.lower(): str(value).strip() for name, value in {**DEFAULTS, **options}.items()}
    kept = {}
    for name in (*_NAMES, "mode", "sep"):
        if name.lower() in given:
            value = given[name.lower()]
            value = value.lower() if name in _WORDS else _LOGIN.sub(r"\1", value)
            if value != _UNSET.get(name):
                kept[name] = value
    return kept


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The options that differ, in words; empty when none does."""
    differing = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return ", ".join(f"{name}={_shown(now, name)} (before: {_shown(before, name)})" for name in differing)


def _shown(options: Mapping[str, str], name: str) -> str:
    value = options.get(name, _UNSET.get(name, "not set"))
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
