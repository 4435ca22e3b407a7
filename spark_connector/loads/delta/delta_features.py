"""What a Delta table demands of its writers (the table features of Delta's protocol), and what loads make of it.

`FEATURES` is the one table: for each feature, what in a table makes use of it, and which kinds of work are refused
then. All other work is kept: by `deltalake`, which commits, or because the feature demands nothing of it. A feature
that is not in `FEATURES` is refused for every kind of work.

A table lists its features (writer version 7), or its writer version implies them (2 to 6). What a table uses is obeyed
even where its protocol does not demand it. An implied feature that it does not use does not matter, except for those
to which `deltalake` commits nothing.

The decision is made before anything is staged or altered, and is final: waiting does not change it. Expressions in SQL
are never evaluated. `deltalake` would do it by DataFusion's rules, where `1 / 2` is 0 and not 0.5 as in Spark.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable

from broker.errors import ConfigError
from spark_connector.loads.record import LoadRecord

_NEWEST_WRITER = 7  # with it a table lists its features
_NOT_OPENED = re.compile(
    r"Feature '[^']*' is not supported|Unsupported minimum reader version \d+|.*catalog-managed table", re.IGNORECASE
)


class Work(enum.Enum):
    """What a commit does, in the words of a refusal."""

    APPEND = "a load"
    UPSERT = "a load with mode=upsert"
    REWIND = "a rewind"
    COMPACTION = "a compaction"


@dataclass(frozen=True)
class Demands:
    """What a table demands: its protocol, its properties, and the fields of its schema, nested ones by their path."""

    writer_version: int
    features: frozenset[str]
    properties: Mapping[str, str]
    fields: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, table: DeltaTable) -> Demands:
        protocol = table.protocol()
        return cls(
            protocol.min_writer_version,
            frozenset((*(protocol.writer_features or ()), *(protocol.reader_features or ()))),
            table.metadata().configuration,
            dict(_fields_of(json.loads(table.schema().to_json()))),
        )

    def is_true(self, name: str) -> bool:
        return self.properties.get(name, "").strip().lower() == "true"


Use = Callable[[Demands], str | None]
"""What in a table makes use of a feature, in words; None when nothing does."""


@dataclass(frozen=True)
class Feature:
    """A feature of tables. `refused`: the work that a table does not get which uses it or, if `use` is None, demands
    it. `why` completes the sentence "the table has it, which …". `since`: the writer version that implies it."""

    name: str
    use: Use | None = None
    refused: tuple[Work, ...] = ()
    why: str = ""
    since: int | None = None

    def found_in(self, demands: Demands) -> str | None:
        """What makes this feature matter in the table, in words; None when nothing does."""
        if self.use is not None:
            return self.use(demands)
        if self.name in demands.features:
            return "a feature of the table"
        implied = self.since is not None and self.since <= demands.writer_version < _NEWEST_WRITER
        return f"by its writer version {demands.writer_version}" if implied else None


def check_features(table: DeltaTable, works: Iterable[Work], shown: str) -> None:
    """Raise ConfigError when the table `shown` has a feature with which one of the works could not be committed, or
    would leave rows that the table does not allow."""
    demands, where = Demands.of(table), f"the Delta table {shown}"
    if demands.writer_version > _NEWEST_WRITER:
        raise ConfigError(
            f"{where} demands writer version {demands.writer_version}; loads know the versions up to {_NEWEST_WRITER}. "
            f"{_ELSEWHERE}"
        )
    if unknown := sorted(demands.features - FEATURES.keys()):
        raise ConfigError(f"{where} has {', '.join(unknown)}, which is not known here. {_without(unknown[0])}")
    for work in works:
        for feature in FEATURES.values():
            if work in feature.refused and (found := feature.found_in(demands)) is not None:
                raise ConfigError(f"{where} has {feature.name} ({found}), with which {work.value} {feature.why}")


def works_of(record: LoadRecord) -> tuple[Work, ...]:
    """What the commit of this entry does, and what must be possible after it: dead letters are taken back when their
    load is not committed."""
    if record.is_refusal:
        return ()
    if record.rewind is not None:
        return (Work.REWIND,)
    if record.about is not None:
        return Work.APPEND, Work.REWIND
    return (Work.APPEND if record.upsert is None else Work.UPSERT,)


def refuse_unopenable(error: Exception, shown: str) -> None:
    """Raise ConfigError when `deltalake` cannot open the table because it lacks a feature that readers need."""
    found = _NOT_OPENED.search(str(error))
    if found is not None:
        raise ConfigError(
            f"the Delta table {shown} cannot be opened: {found[0].strip()}. deltalake does not read such a table; load "
            "into another one"
        ) from error


def _append_only(demands: Demands) -> str | None:
    return "delta.appendOnly is true" if demands.is_true("delta.appendOnly") else None


def _checked(demands: Demands) -> str | None:
    found = sorted(name for name in demands.properties if name.startswith("delta.constraints."))
    return f"{found[0]} is {demands.properties[found[0]]}" if found else None


def _mapped(demands: Demands) -> str | None:
    mode = demands.properties.get("delta.columnMapping.mode", "none")
    return None if mode.strip().lower() == "none" else f"delta.columnMapping.mode is {mode}"


def _variant(demands: Demands) -> str | None:
    found = [path for path, field in demands.fields.items() if field["type"] == "variant"]
    return f"column '{found[0]}' is a variant" if found else None


def _metadata(key: str) -> Use:
    """A field whose metadata has this key."""

    def use(demands: Demands) -> str | None:
        for path, field in demands.fields.items():
            if key in field["metadata"]:
                return f"column '{path}' has {key} {field['metadata'][key]}"
        return None

    return use


def _fields_of(type: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All fields in a type of Delta's schema."""
    if not isinstance(type, Mapping):
        return
    for field in type.get("fields", ()):
        way = (*path, field["name"])
        yield ".".join(way), field
        yield from _fields_of(field["type"], way)
    for part, name in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
        yield from _fields_of(type.get(part), (*path, name))


def _without(name: str) -> str:
    return f"Remove it with Spark (ALTER TABLE … DROP FEATURE `{name}`), or load into another table"


def _not_committed(name: str, *, droppable: bool, since: int | None = None) -> Feature:
    """A feature with which `deltalake` commits nothing, whether the table uses it or not."""
    why = f"cannot be committed: deltalake does not write it. {_without(name) if droppable else _ELSEWHERE}"
    return Feature(name, None, tuple(Work), why, since)


_ELSEWHERE = "Load into another table, and insert from that one with Spark"
_JUDGED = "could leave rows that break it: Spark would evaluate it, and a load does not"
_UNREADABLE = "cannot read the files as they are: compact with Spark (OPTIMIZE)"
_ROWS = (Work.APPEND, Work.UPSERT)  # what brings new rows

FEATURES = {
    feature.name: feature
    for feature in (
        Feature(
            "appendOnly",
            _append_only,
            (Work.UPSERT, Work.REWIND),
            "cannot change or delete a row: set that property to false, or use another table",
            since=2,
        ),
        Feature("invariants", _metadata("delta.invariants"), _ROWS, f"{_JUDGED}. {_ELSEWHERE}", since=2),
        Feature("checkConstraints", _checked, _ROWS, f"{_JUDGED}. Drop the constraint, or l{_ELSEWHERE[1:]}", since=3),
        Feature("changeDataFeed", since=4),  # delta_feed.py writes the changes
        Feature("generatedColumns", _metadata("delta.generationExpression"), _ROWS, f"{_JUDGED}. {_ELSEWHERE}", 4),
        Feature(
            "columnMapping", _mapped, tuple(Work), f"cannot be done: its files know columns by name. {_ELSEWHERE}", 5
        ),
        Feature("timestampNtz"),
        # A file that has one is not written anew (delta_files.py).
        Feature("deletionVectors", None, (Work.COMPACTION,), _UNREADABLE),
        Feature("v2Checkpoint", None, (Work.COMPACTION,), _UNREADABLE),
        *(
            Feature(name, _variant, tuple(Work), f"cannot be done: it has no variants. {_ELSEWHERE}")
            for name in ("variantType", "variantType-preview")
        ),
        _not_committed("identityColumns", droppable=False, since=6),
        *(_not_committed(name, droppable=False) for name in ("allowColumnDefaults", "clustering")),
        *(_not_committed(f"icebergCompatV{number}", droppable=False) for number in (1, 2, 3)),
        *(_not_committed(name, droppable=True) for name in ("rowTracking", "domainMetadata", "inCommitTimestamp")),
        *(_not_committed(name, droppable=True) for name in ("typeWidening", "typeWidening-preview")),
        *(_not_committed(name, droppable=True) for name in ("vacuumProtocolCheck", "checkpointProtection")),
        *(_not_committed(name, droppable=True) for name in ("catalogManaged", "materializePartitionColumns")),
    )
}
"""Every feature of Delta's protocol, and those that its implementations write beside it."""
