"""The columns and the partition spec of an Iceberg table: made for the first load, compared with the rows of others.

Rows are written in the table's types, with its field ids, also in structs, lists and maps. A column of the rows may be
narrower than the table's (int for long). What does not fit is refused before a row is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.schema import Schema, index_by_name
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.table.sorting import SortField as IcebergSortField
from pyiceberg.transforms import IdentityTransform, VoidTransform, parse_transform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from broker.errors import ConfigError
from spark_connector.loads.grammar import TRANSFORMS
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.sorted_rows import SortKey
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.transforms import PartitionField

_FIELD_ID = b"PARQUET:field_id"
PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    f"write.metadata.metrics.column.{LOAD_COLUMN}": "full",
}
"""Of a new table. With the bounds of the column `load` in full, the rows of a load are found without reading others."""


def new_schema(layout: FileLayout) -> Schema:
    """The columns of a table for these rows; all may be null. Raises ConfigError for a type that Iceberg lacks."""
    ids = itertools.count(1)
    fields = [_with_ids(field, ids) for field in layout.schema]
    try:
        schema = pyarrow_to_schema(pa.schema(fields))
        index_by_name(schema)  # which refuses a column `a.b` beside a struct a with a field b
        return schema
    except (UnsupportedPyArrowTypeException, TypeError, ValueError) as error:
        raise ConfigError(f"an Iceberg table cannot hold these columns: {error}") from error


def new_spec(layout: FileLayout, schema: Schema) -> PartitionSpec:
    """Raises ConfigError for a column that is not there."""
    fields = [
        IcebergField(
            source_id=_source_of(field, schema),
            field_id=PARTITION_FIELD_ID_START + number,
            transform=parse_transform(field.transform),
            name=field.name,
        )
        for number, field in enumerate(layout.partition_by)
    ]
    return PartitionSpec(*fields)


def new_order(layout: FileLayout, schema: Schema) -> SortOrder:
    fields = []
    for field in layout.sort_by:
        source = _field_of(schema, field.column, "sort_by (--sort-by)")
        direction = SortDirection.DESC if field.descending else SortDirection.ASC
        nulls = NullOrder.NULLS_LAST  # as FileWriter sorts
        fields.append(
            IcebergSortField(
                source_id=source.field_id, transform=IdentityTransform(), direction=direction, null_order=nulls
            )
        )
    return SortOrder(*fields, order_id=1 if fields else 0)


def keys_of(metadata: TableMetadata) -> tuple[SortKey, ...]:
    """How the table wants the rows of a file sorted; empty for an unknown transform, or a field of a struct."""
    schema, keys = metadata.schema(), []
    order = next(one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id)
    for field in order.fields:
        column, transform = schema.find_column_name(field.source_id), str(field.transform)
        there = [one for one in schema.fields if one.field_id == field.source_id]
        if not there or column is None or transform.partition("[")[0] not in (*TRANSFORMS, "identity"):
            return ()
        value = PartitionField(column, column, transform, schema_to_pyarrow(there[0].field_type), "iceberg")
        keys.append(SortKey(value, field.direction == SortDirection.DESC, field.null_order == NullOrder.NULLS_FIRST))
    return tuple(keys)


def check_version(metadata: TableMetadata, shown: str) -> None:
    """Raise ConfigError for a table that pyiceberg cannot write."""
    if metadata.format_version > 2:
        raise ConfigError(
            f"{shown} has format version {metadata.format_version}, which pyiceberg cannot write: use a table of "
            "version 2"
        )


def fitted_layout(metadata: TableMetadata, layout: FileLayout, shown: str) -> FileLayout:
    """The layout in which rows go into this table: its types, field ids, and names of partition fields.

    Raises ConfigError, with what to do, when the table `shown` cannot take the rows.
    """
    check_version(metadata, shown)
    schema, given = metadata.schema(), new_schema(layout)
    _check_names(layout.schema.names, schema, shown)
    fields = [
        _fitted(field, given.find_field(field.name), schema.find_field(field.name), shown) for field in layout.schema
    ]
    required = [field.name for field in schema.fields if field.required and field.name not in layout.schema.names]
    if required:
        raise ConfigError(f"{shown} has columns that a load cannot fill: {', '.join(required)}")
    spec = fitted_spec(metadata, layout, shown)
    made = {"schema": pa.schema(fields), "partition_by": spec, "spec_id": metadata.default_spec_id}
    return replace(layout, directories=False, **made)


def fitted_spec(metadata: TableMetadata, layout: FileLayout, shown: str) -> tuple[PartitionField, ...]:
    """The partition fields by the table's names."""
    spec, schema = metadata.spec(), metadata.schema()
    shown_fields = [field for field in spec.fields if not is_void(field)]
    there = [(field.source_id, str(field.transform)) for field in shown_fields]
    wanted = [(_source_of(field, schema), field.transform) for field in layout.partition_by]
    if there != wanted:
        described = ", ".join(_described(field, schema) for field in shown_fields)
        raise ConfigError(
            f"{shown} is partitioned by {described or 'nothing'}: set partition_by (--partition-by) so, in this order"
        )
    return tuple(replace(field, name=own.name) for field, own in zip(layout.partition_by, shown_fields, strict=True))


def is_void(field: IcebergField) -> bool:
    """Whether a partition field has been dropped: in format version 1 it stays, and is null in new files."""
    return isinstance(field.transform, VoidTransform)


def _described(field: IcebergField, schema: Schema) -> str:
    column, transform = schema.find_column_name(field.source_id), str(field.transform)
    if transform == "identity":
        return str(column)
    name, _, width = transform.rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"


def _source_of(field: PartitionField, schema: Schema) -> int:
    return _field_of(schema, field.source, "partition_by (--partition-by)").field_id


def _field_of(schema: Schema, name: str, option: str) -> NestedField:
    try:
        return schema.find_field(name)
    except ValueError as error:
        raise ConfigError(f"{option} names '{name}', which is no column of the table") from error


def _check_names(names: Sequence[str], schema: Schema, shown: str) -> None:
    there = {field.name for field in schema.fields}
    for name in names:
        if name in there:
            continue
        if other := [one for one in there if one.lower() == name.lower()]:
            raise ConfigError(f"{shown} has a column '{other[0]}', which is '{name}' to Spark: rename it")
        if name == LOAD_COLUMN:
            raise ConfigError(
                f"{shown} has no column '{LOAD_COLUMN}', in which a load writes its id to every row: add it (ALTER "
                f"TABLE … ADD COLUMN {LOAD_COLUMN} STRING), or use another table"
            )
        raise ConfigError(f"{shown} has no column '{name}': add it, or leave it out (option columns)")


def _fitted(field: pa.Field, given: NestedField, there: NestedField, shown: str) -> pa.Field:
    """The field of the rows as the table has it."""
    type = _fitted_type(field.type, given.field_type, there.field_type, shown, there.name)
    return pa.field(field.name, type, nullable=not there.required, metadata=_id(there.field_id))


def _fitted_type(type: pa.DataType, given: IcebergType, there: IcebergType, shown: str, path: str) -> pa.DataType:
    if isinstance(given, StructType) and isinstance(there, StructType):
        own = {field.name: field for field in there.fields}
        new = {field.name: field for field in given.fields}
        if missing := [field.name for field in type if field.name not in own]:
            raise ConfigError(f"{shown} has no field '{path}.{missing[0]}': add it, or leave it out")
        return pa.struct([_fitted(field, new[field.name], own[field.name], shown) for field in type])
    if isinstance(given, ListType) and isinstance(there, ListType):
        value = _fitted(type.value_field, given.element_field, there.element_field, shown)
        return pa.list_(value.with_name("element"))
    if isinstance(given, MapType) and isinstance(there, MapType):
        key = _fitted(type.key_field, given.key_field, there.key_field, shown)
        value = _fitted(type.item_field, given.value_field, there.value_field, shown)
        return pa.map_(key.with_nullable(False), value)
    if given == there or _widens(given, there):
        return _small(schema_to_pyarrow(there))
    if path == LOAD_COLUMN:
        raise ConfigError(
            f"{shown} has a column '{LOAD_COLUMN}' of its own, of type {there}: a load writes its id there, as a "
            "string. Rename that column, or use another table"
        )
    raise ConfigError(f"{shown} has column '{path}' as {there}, not {given}")


def _widens(given: IcebergType, there: IcebergType) -> bool:
    if isinstance(given, DecimalType) and isinstance(there, DecimalType):
        return given.scale == there.scale and given.precision <= there.precision
    kinds = (type(given), type(there))
    return kinds in ((IntegerType, LongType), (FloatType, DoubleType))


def _small(type: pa.DataType) -> pa.DataType:
    """Without the wide offsets that pyiceberg reads with: parquet has none."""
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(type, type)


def _with_ids(field: pa.Field, ids: Iterator[int]) -> pa.Field:
    """The field, and all in it, with ids of their own and nullable: the catalog gives them others in the same order."""
    metadata, type = _id(next(ids)), field.type
    if pa.types.is_struct(type):
        type = pa.struct([_with_ids(one, ids) for one in type])
    elif pa.types.is_map(type):
        key, value = _with_ids(type.key_field, ids), _with_ids(type.item_field, ids)
        type = pa.map_(key.with_nullable(False), value)
    elif pa.types.is_list(type) or pa.types.is_large_list(type):
        type = pa.list_(_with_ids(type.value_field, ids))
    return pa.field(field.name, type, nullable=True, metadata=metadata)


def _id(number: int) -> dict[bytes, bytes]:
    return {_FIELD_ID: str(number).encode()}
