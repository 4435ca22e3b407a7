"""What the caller of `load` asks for, checked before anything is opened.

Built by load.py from its arguments. Everything wrong raises ConfigError saying what to set. Pure.

Each load's record keeps the reader's options that decide which records are loaded and what they become (`reading_of`).
A later load of the group that changes them is refused, and verify reads Kafka's log with them. Logins in URLs are not
kept. Loads read committed records by default: the records of an aborted transaction are not data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker.errors import ConfigError
from spark_connector.loads.target import DERIVED, LOAD_COLUMN, Target, parse_partition_by
from spark_connector.options.option_table import OPTIONS
from spark_connector.options.read_options import Mode, SourceOptions, parse_options

_PATIENCE_MS = 3_000
_PLACES = ("subscribe", "subscribepattern", "assign")
_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_STRATEGY = "startingoffsetsbytimestampstrategy"  # does not choose a start by itself
_ENDS = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_STORES = ("offsetstore", "offsetstore.path", "offsetstore.zookeeper.connect", "group", "kafka.group.id")

_ISOLATION = "kafka.isolation.level"
DEFAULTS = {_ISOLATION: "read_committed"}
"""Defaults of a load. Other readers have Kafka's default, read_uncommitted."""

_FORMATS = ("keyFormat", "valueFormat", "keySchema", "valueSchema", "columnNameOfCorruptRecord", "schema.registry.url")
_NAMES = (_ISOLATION, *(option.name for option in OPTIONS if option.name.startswith("filter")), *_FORMATS)
_WORDS = (_ISOLATION, "keyFormat", "valueFormat", "mode")  # values that ignore case
_UNSET = {"keyFormat": "binary", "valueFormat": "binary", "mode": "permissive", "sep": ","}
_LOGIN = re.compile(r"^(https?://)[^/@\s]*@")
_LONGEST = 60  # characters of a value in a message


@dataclass(frozen=True)
class LoadRequest:
    """One call of `load`. `options` are the reader's, names in lower case, without those that `load` sets."""

    target: Target
    source: SourceOptions
    options: Mapping[str, str]
    partition_by: tuple[str, ...]
    write_options: Mapping[str, str] = field(default_factory=dict)
    max_records: int | None = None
    from_load: str | None = None
    from_directory: str | None = None
    allow_changed_options: bool = False
    new_group: bool = False
    publish_offsets: bool = True

    @property
    def format(self) -> str:
        return str(self.target.format)

    @property
    def reading(self) -> dict[str, str]:
        """The reader's options that each load's record keeps (`reading_of`)."""
        return reading_of(self.options)

    def impatient(self) -> LoadRequest:
        """This request with a short time-out for planning, for a service, which retries by itself.

        An outage is then reported, and a stop obeyed, within seconds. Spark's own planning keeps its time-out.
        """
        client = self.source.client
        patience = min(client.default_api_timeout_ms, _PATIENCE_MS)
        return replace(self, source=replace(self.source, client=replace(client, default_api_timeout_ms=patience)))

    @classmethod
    def build(
        cls,
        target: Target,
        *,
        bootstrap_servers: str,
        topic: str | Sequence[str] | None,
        starting_offsets: str = "earliest",
        options: Mapping[str, str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        **others: Any,
    ) -> LoadRequest:
        """Check the arguments of `load` and put the reader's options together. `others`: the fields of these names."""
        target, layout = target.check(), parse_partition_by(partition_by)
        if layout and target.format == "sql":
            raise ConfigError("partition_by (--partition-by) is for files and Delta, not for tables of a database")
        given = {name.lower(): str(value) for name, value in {**DEFAULTS, **(options or {})}.items()}
        for name in _STORES:
            if name in given:
                raise ConfigError(f"option '{name}' cannot be used in a load: use the arguments 'group' and 'offsets'")
        given["kafka.bootstrap.servers"] = bootstrap_servers
        if topic is not None:
            given["subscribe"] = topic if isinstance(topic, str) else ",".join(topic)
        if not any(name in given for name in _STARTS):
            given["startingoffsets"] = starting_offsets
        if given.get("columnnameofcorruptrecord", "").strip().lower() == LOAD_COLUMN:
            raise ConfigError(
                f"option 'columnNameOfCorruptRecord' cannot be '{LOAD_COLUMN}': this column names the load of a row; "
                "choose another name"
            )
        source = parse_options(given, Mode.BATCH)
        _check_columns(source.columns, layout)
        reader = {name: value for name, value in given.items() if name not in (*_PLACES, *_STARTS, _STRATEGY, *_ENDS)}
        return cls(target, source, reader, layout, **others)

    def __post_init__(self) -> None:
        if self.max_records is not None and self.max_records < 1:
            raise ConfigError(f"max_records must be at least 1, not {self.max_records}")
        if self.from_load is None and self.from_directory is not None:
            raise ConfigError("from_directory (--from-dir) goes with from_load (--from)")
        if self.from_load is None:
            return
        if self.target.is_table:
            raise ConfigError(f"from_load (--from) is for files; format={self.format} cannot load again")
        if self.target.offsets == "files" and self.from_directory is None:
            raise ConfigError(
                "from_load with offsets=files needs from_directory (--from-dir): the output directory that holds that "
                "load"
            )


def _check_columns(columns: Sequence[str], partition_by: Sequence[str]) -> None:
    """Raise ConfigError unless the columns are read that a load counts its rows by and names its directories by."""
    needed = ["topic", "partition", "offset"]
    if any(name in DERIVED for name in partition_by):
        needed.append("timestamp")
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ConfigError(f"option 'columns' leaves out {', '.join(missing)}, which a load needs to count its rows")


def reading_of(options: Mapping[str, str]) -> dict[str, str]:
    """Those of the reader's `options` (names in any case) that a load's record keeps.

    Options at their default are left out, except the isolation level.
    """
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
