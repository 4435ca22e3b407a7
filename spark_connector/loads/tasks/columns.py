"""The columns of a table, made of the columns of a read: picked, flattened, renamed.

The driver makes a TableColumns from the option `columns` and the Arrow schema of the read, where everything wrong is
refused. It is small and picklable; the tasks apply it to Arrow batches. A field of a null struct is null. Without the
option the table has the columns of the read.

The partition columns `date` and `hour`, of the record's timestamp in UTC, are made here, too, unless the table has
columns of these names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.loads.column_checks import DERIVED
from spark_connector.loads.grammar import (
    ColumnItem,
    PartitionItem,
    SortItem,
    quoted,
    refuse_unknown,
    refuse_unknown_column,
)
from spark_connector.loads.request import LOAD_COLUMN

_TIMESTAMP = "timestamp"
_DERIVED_TYPES = {"date": pa.date32(), "hour": pa.int32()}
_SECONDS_OF_DAY = 86_400


@dataclass(frozen=True)
class Pick:
    """One column of the table: a source column or a field in it. `derived`: date or hour of that timestamp."""

    name: str
    path: tuple[str, ...]
    derived: str | None = None


@dataclass(frozen=True)
class TableColumns:
    """How the batches of a read become rows of the table. `schema` is that of the rows, without the column `load`."""

    picks: tuple[Pick, ...]
    schema: pa.Schema

    @classmethod
    def of(
        cls, items: Sequence[ColumnItem], source: pa.Schema, partition_by: Sequence[PartitionItem] = ()
    ) -> TableColumns:
        """The columns `items` of a read with the schema `source`; all of it for no items. Raises ConfigError."""
        picks, fields = [], []
        for item in items or [ColumnItem((name,)) for name in source.names]:
            for pick, type in _picked(item, source):
                picks.append(pick)
                fields.append(pa.field(pick.name, type))
        taken = {field.name for field in fields}
        for name in (item.column for item in partition_by):
            if name in DERIVED and name not in taken:
                picks.append(Pick(name, (_TIMESTAMP,), name))
                fields.append(pa.field(name, _DERIVED_TYPES[name]))
        _check_names([pick.name for pick in picks])
        return cls(tuple(picks), pa.schema(fields))

    def apply(self, rows: pa.Table) -> pa.Table:
        """The table's rows from `rows`, which have the columns of the read."""
        return pa.Table.from_arrays([_values(rows, pick) for pick in self.picks], schema=self.schema)


def check_sort_by(items: Sequence[SortItem], schema: pa.Schema) -> None:
    """Raise ConfigError for a column that the table lacks, or that has no order."""
    for item in items:
        refuse_unknown_column(item, schema.names)
        if pa.types.is_nested(type := schema.field(item.column).type):
            raise ConfigError(f"sort_by (--sort-by) {item}: the column is of type {type}, which has no order")


def refuse_empty_structs(schema: pa.Schema) -> None:
    """Raise ConfigError for a column with a struct without fields, at any depth: parquet has no such type."""
    for field in schema:
        if empty := _empty_struct(field.type, field.name):
            raise ConfigError(
                f"'{empty}' is a record without fields, which parquet cannot hold: leave the column out, or pick other "
                "fields (columns, --columns)"
            )


def refuse_alike_fields(schema: pa.Schema) -> None:
    """Raise ConfigError for a struct with two fields, at any depth, whose names differ only in case: Spark, which does
    not tell them apart, could not read what was written."""
    for field in schema:
        if found := _alike_fields(field.type, field.name):
            path, one, other = found
            raise ConfigError(
                f"'{path}' has the fields '{one}' and '{other}', which are one name to Spark: it could not read the "
                "table. Leave one of them out, pick them as columns of other names (columns, --columns), or set "
                "spark.sql.caseSensitive=true (--conf) here and where the table is read"
            )


def _alike_fields(type: Any, path: str) -> tuple[str, str, str] | None:
    """(where, one name, the other) of the first two in a type."""
    inner = [type.field(number) for number in range(type.num_fields)]
    is_struct, names = pa.types.is_struct(type), dict[str, str]()
    for field in inner if is_struct else ():
        if field.name.lower() in names:
            return path, names[field.name.lower()], field.name
        names[field.name.lower()] = field.name
    found = (_alike_fields(field.type, f"{path}.{field.name}" if is_struct else path) for field in inner)
    return next((one for one in found if one), None)


def _empty_struct(type: Any, path: str) -> str | None:
    """Where the first struct without fields is in a type."""
    if pa.types.is_struct(type) and not type.num_fields:
        return path
    inner = [type.field(number) for number in range(type.num_fields)]
    names = [f"{path}.{field.name}" if pa.types.is_struct(type) else path for field in inner]
    found = (_empty_struct(field.type, name) for field, name in zip(inner, names, strict=True))
    return next((one for one in found if one), None)


def _picked(item: ColumnItem, source: pa.Schema) -> Iterator[tuple[Pick, Any]]:
    """(column, its type) for each column that the item makes. Raises ConfigError."""
    first, *rest = item.path
    refuse_unknown(first, source.names, "columns (--columns): the read has no column")
    type, path = source.field(first).type, [first]
    for name in [*rest, None] if item.every else rest:
        shown = ".".join(map(quoted, path))
        if not pa.types.is_struct(type):
            hint = "" if path[1:] or not pa.types.is_binary(type) else f": set {first}Format (--option) to decode it"
            raise ConfigError(f"columns (--columns) {item}: '{shown}' is of type {type}, which has no fields{hint}")
        if name is not None:
            names = [field.name for field in type]
            refuse_unknown(name, names, f"columns (--columns) {item}: '{shown}' has no field")
            type, path = type.field(name).type, [*path, name]
    if not item.every:
        yield Pick(item.name, item.path), type
        return
    for field in type:
        yield Pick(field.name, (*item.path, field.name)), field.type


def _check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for a name that comes twice (case does not count, as in Spark), is empty, or is `load`."""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise ConfigError(
                "columns (--columns): a field of the value has no name; leave it out, or rename it by 'as'"
            )
        if name.lower() == LOAD_COLUMN:
            raise ConfigError(
                f"columns (--columns): '{name}' names the load of a row in every table; rename the column: "
                f"value.{quoted(name)} as other_name"
            )
        if (before := seen.get(name.lower())) is not None:
            both = f"'{name}' comes twice" if before == name else f"'{before}' and '{name}' are one name to Spark"
            raise ConfigError(f"columns (--columns): {both}; rename one: {quoted(name)} as other_name")
        seen[name.lower()] = name


def _values(rows: pa.Table, pick: Pick) -> pa.ChunkedArray:
    column = rows.column(pick.path[0])
    if pick.derived is not None:
        return pa.chunked_array(
            [_derived(chunk, pick.derived) for chunk in column.chunks], _DERIVED_TYPES[pick.derived]
        )
    return pc.struct_field(column, list(pick.path[1:])) if len(pick.path) > 1 else column


def _derived(timestamps: pa.Array, name: str) -> pa.Array:
    """In UTC, of any year. No record is without a time: where Kafka has none it is -1 ms, which is still in 1969."""
    seconds = timestamps.cast(pa.int64()).to_numpy() // 1_000_000
    numbers = seconds // _SECONDS_OF_DAY if name == "date" else seconds % _SECONDS_OF_DAY // 3600
    return pa.array(numbers.astype(np.int32)).view(_DERIVED_TYPES[name])
