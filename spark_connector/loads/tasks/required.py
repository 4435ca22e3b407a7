"""Columns and fields of a table that must not be null (NOT NULL, required), or must be text, and rows in its types.

A field of a struct that is null is not missing, wherever the struct is: within structs, lists and maps. Arrow's own
cast takes it for a null, and so refuses good rows. Works by columns: no Python per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.nested_values import Rows, elements, present
from spark_connector.formats.value_format import UnfitRows
from spark_connector.loads.record import LoadError
from spark_connector.loads.tasks.columns import TableColumns

Nulls = tuple[Rows, str]
"""(rows that have a null there, the name of the column or field)"""


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the types of `schema`, of which fields' names, order and nullability count. Nulls in required columns
    are the caller's to refuse. Raises ArrowException."""
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    anything = pa.schema([relaxed(field) for field in schema])
    cast = rows.cast(anything)
    if anything.equals(schema, check_metadata=True):
        return cast
    if next(nulls_where_required(cast, schema), None) is None:
        for number, field in enumerate(schema):
            chunks = [_without_hidden_nulls(chunk, field.type) for chunk in cast.column(number).chunks]
            cast = cast.set_column(
                number, anything.field(number), pa.chunked_array(chunks, anything.field(number).type)
            )
    batches = [pa.record_batch(Renamed(batch, schema)) for batch in cast.to_batches()]
    return pa.Table.from_batches(batches, schema=schema)


def _without_hidden_nulls(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array whose required parts are null only within what is null itself: these parts without their bitmaps.

    Arrow's writer of parquet looks at the bitmap of a required field alone. `kind` says what is required."""
    if not _requires_within(kind):
        return array
    if pa.types.is_struct(kind):
        parts = [_part(array.field(number), field) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=array.is_null())
    inner = kind.item_field if pa.types.is_map(kind) else kind.value_field
    return _listed(array, array.buffers()[0], _part(_items(array), inner))


def _part(array: pa.Array, field: pa.Field) -> pa.Array:
    array = _without_hidden_nulls(array, field.type)
    if field.nullable or not array.null_count:
        return array
    if pa.types.is_struct(field.type):
        parts = [array.field(number) for number in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(array.type))
    if pa.types.is_nested(field.type):
        return _listed(array, None, _items(array))
    return pa.Array.from_buffers(array.type, len(array), [None, *array.buffers()[1:]], 0, array.offset)


def _items(array: pa.Array) -> pa.Array:
    return array.items if pa.types.is_map(array.type) else array.values


def _listed(array: pa.Array, validity: pa.Buffer | None, items: pa.Array) -> pa.Array:
    """The list or map with these items."""
    if pa.types.is_map(array.type):
        items = pa.StructArray.from_arrays([array.keys, items], fields=[array.type.key_field, array.type.item_field])
    buffers = [validity, array.buffers()[1]]
    return pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset, children=[items])


def nulls_where_required(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> Iterator[Nulls]:
    """The nulls in columns that `schema` requires, of rows that have its columns by name, and perhaps others."""
    for field in schema:
        if not _requires(field) or field.name not in rows.schema.names:
            continue
        column = rows.column(field.name)
        first = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            yield from _nulls(chunk, field, field.name, np.arange(first, first + len(chunk)))
            first += len(chunk)


def refuse_nulls(rows: pa.Table, schema: pa.Schema, position: Sequence[str]) -> None:
    """Raise LoadError for the first record that has one. `position`: the columns of its topic, partition and offset."""
    for found, path in nulls_where_required(rows, schema):
        topic, partition, offset = (rows.column(name)[int(found[0])].as_py() for name in position)
        raise LoadError(
            f"the record at offset {offset} of topic '{topic}', partition {partition}, has null in '{path}', which the "
            "table requires. Nothing is loaded: let the column be null, leave such records out, or keep them elsewhere "
            "(dead_letters, --dead-letters; with valueFormat)"
        )


def with_text(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """With text in the place of bytes in these columns (write option `text`). Raises ConfigError."""
    for name in names:
        number = schema.get_field_index(name)
        if number < 0 or schema.field(number).type not in (pa.binary(), pa.string()):
            raise ConfigError(f"write option text={name}: there is no column of bytes with this name")
        schema = schema.set(number, schema.field(number).with_type(pa.string()))
    return schema


def refuse_no_text(rows: pa.Table, schema: pa.Schema, position: Sequence[str]) -> None:
    """Raise LoadError for the first record with bytes that are not UTF-8 where `schema` has text; as `refuse_nulls`."""
    for field in schema:
        if not pa.types.is_string(field.type) or not pa.types.is_binary(rows.schema.field(field.name).type):
            continue
        try:
            rows.column(field.name).cast(pa.string())
        except pa.ArrowInvalid:
            for row, value in enumerate(rows.column(field.name).to_pylist()):
                if value is not None and not _is_text(value):
                    topic, partition, offset = (rows.column(name)[row].as_py() for name in position)
                    raise LoadError(
                        f"{field.name} of the record at offset {offset} of topic '{topic}', partition {partition}, is "
                        "not UTF-8 (write option text)"
                    ) from None


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def unfit_rows(columns: TableColumns, schema: pa.Schema) -> UnfitRows | None:
    """What tells the records that a table with `schema` cannot take, for RecordDecoder; None if it takes all."""
    if not any(map(_requires, schema)):
        return None

    def unfit(records: pa.RecordBatch) -> dict[int, str]:
        rows = columns.apply(pa.Table.from_batches([records]))
        bad: dict[int, str] = {}
        for found, path in nulls_where_required(rows, schema):
            for row in found.tolist():
                bad.setdefault(row, f"null in '{path}', which the table requires")
        return bad

    return unfit


def _nulls(column: pa.Array, field: pa.Field, path: str, rows: Rows) -> Iterator[Nulls]:
    """`rows`: of the elements of `column`."""
    if not field.nullable and column.null_count:
        yield rows[column.is_null().to_numpy(zero_copy_only=False)], path
    if not _requires_within(field.type):
        return
    there, rows = present(column, rows)
    if pa.types.is_struct(field.type):
        for inner in field.type:
            index = there.type.get_field_index(inner.name)
            if index >= 0:
                yield from _nulls(there.field(index), inner, f"{path}.{inner.name}", rows)
        return
    _, items, places = elements(there)
    inner = field.type.item_field if pa.types.is_map(field.type) else field.type.value_field
    yield from _nulls(items, inner, f"{path}.{'value' if pa.types.is_map(field.type) else 'element'}", rows[places])


def _requires(field: pa.Field) -> bool:
    return not field.nullable or _requires_within(field.type)


def _requires_within(kind: pa.DataType) -> bool:
    """Whether a value of the type has parts that must not be null. The keys of maps never are."""
    if pa.types.is_map(kind):
        return _requires(kind.item_field)
    return any(_requires(kind.field(number)) for number in range(kind.num_fields))


def relaxed(field: pa.Field) -> pa.Field:
    """The same, and anything may be null."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([relaxed(one) for one in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, relaxed(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(relaxed(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(relaxed(kind.value_field))
    return field.with_type(kind).with_nullable(True)


class Renamed:
    """A batch under a schema that differs in names and nullability alone, for which Arrow has no cast."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch = batch
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        _, data = self._batch.__arrow_c_array__()
        return self._schema.__arrow_c_schema__(), data
