"""The decoded fields that a load's table gets: its record has them, and the next load is compared with them. Pure.

A schema in a registry or a file may be another one in the next load. Of a field that it has lost, the records that
still have it would be loaded without a word, as NULL. So a load without a field of the one before is refused. A new
field and another type are the table's affair where it has a schema of its own (evolution.py), else they are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.loads.evolution import ELEMENT, VALUE, type_name
from spark_connector.loads.grammar import quoted
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import LAKE_FORMATS

_MANY = 5  # fields in a message


def fields_of(schema: pa.Schema, decoded: Collection[str]) -> dict[str, str]:
    """Path → type of the fields of the columns `decoded`, at every depth; those in lists and maps as Iceberg names
    them."""
    found = (field for name in schema.names if name in decoded for field in _fields(schema.field(name), ()))
    return {".".join(map(quoted, path)): kind for path, kind in found}


def refuse_lost_fields(record: LoadRecord, now: Mapping[str, str]) -> None:
    """Raise ConfigError when the fields `now` are not those of the group's last load, which `record` brings."""
    before = record.fields
    if before is None or before == now:
        return
    lost = [f"{path} ({kind})" for path, kind in before.items() if path not in now]
    told = [f"no longer has {_some(lost)}"] if lost else []
    if record.format not in LAKE_FORMATS:
        new = [f"{path} ({kind})" for path, kind in now.items() if path not in before]
        other = [
            f"{path} as {kind}, not {before[path]}" for path, kind in now.items() if before.get(path, kind) != kind
        ]
        told += [f"has {_some(more)}" for more in (new, other) if more]
    if not told:
        return
    why = ": records that still have it would be loaded without" if lost else ""
    raise ConfigError(
        f"the schema of the records {' and '.join(told)}, unlike in the last load of group '{record.id.group}'{why}. "
        "To go on with the former schema, set valueSchema (keySchema) to its text or to <registry>/subjects/NAME/"
        "versions/N, and allow_changed_options (--allow-changed-options) once; to go on with this one, set only the "
        "latter; or use a new group with a directory or table of its own"
    )


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MANY])
    return shown if len(names) <= _MANY else f"{shown} and {len(names) - _MANY} more"


def _fields(field: pa.Field, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each field with a value of its own: what has fields within counts by these."""
    path, kind = (*path, field.name), field.type
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        path = (*path, ELEMENT if pa.types.is_list(kind) else VALUE)
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    if not pa.types.is_struct(kind):
        yield path, type_name(kind)
        return
    for inner in kind:
        yield from _fields(inner, path)
