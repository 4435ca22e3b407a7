"""Schema evolution of a table: which columns a load may add or widen before it writes a row. Pure.

    steps = evolve(table, incoming, Evolution.parse("add,widen"), where="the Delta table /lake/flights")

`table` and `incoming` are Arrow schemas: of the table, and of the rows that the load will write. With `none`, the
default, a column that the table lacks is refused, and so is one of another type; a narrower value is written in the
table's type. `add` adds missing columns, also fields of structs, as optional columns. `widen` lets a type grow: integer
to long, float to double, a decimal to more digits of the same scale. Columns that the rows lack stay, and are null in
them. Nothing is ever dropped, renamed or narrowed.

The driver alters the table before the rows are written. A load that is killed in between leaves an empty column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.loads.grammar import Evolution
from spark_connector.loads.request import LOAD_COLUMN

ELEMENT, VALUE = "element", "value"
"""The parts of a list and of a map in a path, as Iceberg names them."""


@dataclass(frozen=True)
class AddColumn:
    """Add an optional column, or an optional field of a struct. `path` ends in its name."""

    path: tuple[str, ...]
    type: pa.DataType


@dataclass(frozen=True)
class WidenColumn:
    """Let the type of a column, or of a field of a struct, grow."""

    path: tuple[str, ...]
    before: pa.DataType
    after: pa.DataType


Step = AddColumn | WidenColumn


def evolve(
    table: pa.Schema, incoming: pa.Schema, policy: Evolution, *, where: str, widens: bool = True
) -> tuple[Step, ...]:
    """The steps after which the table takes the incoming rows; none when it does already.

    `where` names the table in messages; `widens` is False for a kind of table whose types cannot change. Raises
    ConfigError where the policy does not allow the steps, or no step could help.
    """
    return tuple(_Comparison(where, policy, widens).of_fields((), list(table), list(incoming)))


def evolved(table: pa.Schema, steps: Collection[Step]) -> pa.Schema:
    """The table's schema after the steps; new columns are the last."""
    return pa.schema(_evolved_fields(list(table), (), steps), table.metadata)


def layout_schema(table: pa.Schema, incoming: pa.Schema) -> pa.Schema:
    """The columns of `incoming`, in their order, with the types and the metadata that the table has for them.

    The files of a load have this schema: a narrower value is widened when it is written, and a field of a struct that
    the rows lack is null.
    """
    return pa.schema([table.field(name) for name in incoming.names])


def type_name(type: pa.DataType) -> str:
    """The type as Spark names it."""
    if pa.types.is_decimal(type):
        return f"decimal({type.precision},{type.scale})"
    if pa.types.is_timestamp(type):
        return "timestamp" if type.tz else "timestamp_ntz"
    if pa.types.is_struct(type):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in type)}>"
    if _is_list(type):
        return f"array<{type_name(type.value_type)}>"
    if pa.types.is_map(type):
        return f"map<{type_name(type.key_type)}, {type_name(type.item_type)}>"
    return _NAMES.get(_plain(type), str(type))


class _Comparison:
    """Compares a table's fields with those of rows, level by level."""

    def __init__(self, where: str, policy: Evolution, widens: bool) -> None:
        self._where = where
        self._policy = policy
        self._widens = widens

    def of_fields(self, path: tuple[str, ...], table: list[pa.Field], incoming: list[pa.Field]) -> Iterator[Step]:
        there = {field.name: field for field in table}
        for field in incoming:
            way = (*path, field.name)
            if field.name in there:
                yield from self.of_types(way, there[field.name].type, field.type)
            else:
                yield self._added(way, field, there)
        lacking = [name for name in there if name not in {field.name for field in incoming}]
        if required := [".".join((*path, name)) for name in lacking if not there[name].nullable]:
            raise ConfigError(f"{self._where} has columns that a load cannot fill: {', '.join(required)}")

    def of_types(self, path: tuple[str, ...], table: pa.DataType, incoming: pa.DataType) -> Iterator[Step]:
        if pa.types.is_struct(table) and pa.types.is_struct(incoming):
            yield from self.of_fields(path, list(table), list(incoming))
        elif _is_list(table) and _is_list(incoming):
            yield from self.of_types((*path, ELEMENT), table.value_type, incoming.value_type)
        elif (
            pa.types.is_map(table) and pa.types.is_map(incoming) and _plain(table.key_type) == _plain(incoming.key_type)
        ):
            yield from self.of_types((*path, VALUE), table.item_type, incoming.item_type)
        elif _plain(table) != _plain(incoming) and not is_wider(table, incoming):
            yield self._widened(path, table, incoming)

    def _added(self, path: tuple[str, ...], field: pa.Field, there: Collection[str]) -> AddColumn:
        name = ".".join(path)
        if other := [one for one in there if one.lower() == field.name.lower()]:
            raise ConfigError(f"{self._where} has a column '{other[0]}', which is '{field.name}' to Spark: rename it")
        if self._policy.add:
            return AddColumn(path, field.type)
        if name == LOAD_COLUMN:
            raise ConfigError(
                f"{self._where} has no column '{LOAD_COLUMN}', in which a load writes its id to every row: add it "
                f"(ALTER TABLE … ADD COLUMNS ({LOAD_COLUMN} STRING), or schema_evolution=add), or use another table"
            )
        raise ConfigError(
            f"{self._where} has no column '{name}': add it (schema_evolution=add does), or leave it out (option "
            "columns)"
        )

    def _widened(self, path: tuple[str, ...], table: pa.DataType, incoming: pa.DataType) -> WidenColumn:
        name, before, after = ".".join(path), type_name(table), type_name(incoming)
        if name == LOAD_COLUMN:
            raise ConfigError(
                f"{self._where} has a column '{LOAD_COLUMN}' of its own, of type {before}: a load writes its id there, "
                "as a string. Rename that column, or use another table"
            )
        differ = f"{self._where} has column '{name}' as {before}, not {after}"
        ways = "load into another table, or leave it out (option columns)"
        if not is_wider(incoming, table):
            raise ConfigError(f"{differ}: {ways}")
        if not self._widens:
            raise ConfigError(f"{differ}, and the type of a column cannot change there: {ways}")
        if not self._policy.widen:
            raise ConfigError(f"{differ}: set schema_evolution=add,widen, or {ways}")
        return WidenColumn(path, table, incoming)


def is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether `wide` has every value of `narrow`, by the promotions of Iceberg."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision > narrow.precision)
    return (narrow, wide) in _PROMOTIONS


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_PROMOTIONS = {
    *((narrow, wide) for place, narrow in enumerate(_INTEGERS) for wide in _INTEGERS[place + 1 :]),
    (pa.float32(), pa.float64()),
}

_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}
_PLAIN = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def _plain(type: pa.DataType) -> pa.DataType:
    """One of the several Arrow types that hold the same values."""
    if pa.types.is_timestamp(type) and type.tz:
        return pa.timestamp(type.unit, "UTC")
    return _PLAIN.get(type, type)


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def _evolved_fields(fields: list[pa.Field], path: tuple[str, ...], steps: Collection[Step]) -> list[pa.Field]:
    changed = [field.with_type(_evolved_type(field.type, (*path, field.name), steps)) for field in fields]
    added = (step for step in steps if isinstance(step, AddColumn) and step.path[:-1] == path)
    return [*changed, *(pa.field(step.path[-1], step.type) for step in added)]


def _evolved_type(type: pa.DataType, path: tuple[str, ...], steps: Collection[Step]) -> pa.DataType:
    inner = [step for step in steps if step.path[: len(path)] == path]
    if not inner:
        return type
    for step in inner:
        if isinstance(step, WidenColumn) and step.path == path:
            return step.after
    if pa.types.is_struct(type):
        return pa.struct(_evolved_fields(list(type), path, inner))
    if _is_list(type):
        element = type.value_field
        return pa.list_(element.with_type(_evolved_type(element.type, (*path, ELEMENT), inner)))
    value = type.item_field
    return pa.map_(type.key_field, value.with_type(_evolved_type(value.type, (*path, VALUE), inner)))
