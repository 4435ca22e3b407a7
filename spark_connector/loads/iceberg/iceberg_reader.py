"""Reads the rows of one data file in the columns of a table, told by their field ids, at any depth.

pyiceberg's own reader makes an empty list of a list of structs that is NULL, and an empty map of such a map. Whoever
writes rows anew would write that into the table. It is used for files with delete files beside them, whose rows it
leaves out, where no such column is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from broker.errors import ConfigError
from spark_connector.loads.table_snapshot import BUFFER
from spark_connector.loads.tasks.required import fitted, relaxed

_FIELD_ID = b"PARQUET:field_id"
_ROWS = 65_536  # of a batch


def read_file(
    metadata: TableMetadata, io: FileIO, schema: Schema, task: FileScanTask, few: int = 0
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the columns of `schema`, which is the table's or a part of it; without deleted rows.
    `few`: as `TableScan.read` has it.

    Raises ConfigError for a file with delete files that cannot be read without loss, and OSError.
    """
    with io.new_input(task.file.file_path).open() as source:
        file = pyarrow.parquet.ParquetFile(source, buffer_size=BUFFER if few else 0)
        there = {number: at for at, field in enumerate(file.schema_arrow) if (number := _id_of(field)) is not None}
        if task.delete_files or _is_by_other_means(metadata, schema, there):
            yield from _by_pyiceberg(metadata, io, schema, task)
            return
        target = [relaxed(_small(field)) for field in schema_to_pyarrow(schema, include_field_ids=True)]
        plain = pa.schema([_small(field) for field in schema_to_pyarrow(schema, include_field_ids=False)])
        wanted = [file.schema_arrow[there[number]].name for field in target if (number := _id_of(field)) in there]
        for batch in file.iter_batches(few or _ROWS, columns=wanted):
            found = {_id_of(field): column for field, column in zip(batch.schema, batch.columns, strict=True)}
            columns = [_projected(found.get(_id_of(field)), field, batch.num_rows) for field in target]
            yield from fitted(pa.table(columns, schema=pa.schema(target)), plain).to_batches()


def _by_pyiceberg(metadata: TableMetadata, io: FileIO, schema: Schema, task: FileScanTask) -> Iterator[pa.RecordBatch]:
    if lossy := [field.name for field in schema.fields if _is_lossy(field.field_type)]:
        raise ConfigError(
            f"{task.file.file_path} has delete files, or no field ids: then pyiceberg cannot tell a NULL in {lossy[0]} "
            "from an empty value. Compact the table first (CALL system.rewrite_data_files in Spark)"
        )
    yield from ArrowScan(metadata, io, schema, AlwaysTrue()).to_record_batches([task])


def _is_by_other_means(metadata: TableMetadata, schema: Schema, there: Mapping[int, int]) -> bool:
    """Whether a column's values may be in a partition value, or its columns are told by names: imported files."""
    fields = (field for spec in metadata.partition_specs for field in spec.fields)
    sources = {field.source_id for field in fields if str(field.transform) == "identity"}
    return not there or any(field.field_id in sources - there.keys() for field in schema.fields)


def _is_lossy(type: IcebergType) -> bool:
    if isinstance(type, ListType):
        return isinstance(type.element_type, StructType) or _is_lossy(type.element_type)
    if isinstance(type, MapType):
        return isinstance(type.value_type, StructType) or _is_lossy(type.value_type)
    return isinstance(type, StructType) and any(_is_lossy(field.field_type) for field in type.fields)


def _projected(array: Any, field: pa.Field, rows: int) -> pa.Array:
    """The values of a column in the type of `field`; parts that the file does not have are null."""
    type = field.type
    if array is None:
        return pa.nulls(rows, type)
    if pa.types.is_struct(type):
        found = {_id_of(one): array.field(at) for at, one in enumerate(array.type)}
        children = [_projected(found.get(_id_of(one)), one, len(array)) for one in type]
        return pa.StructArray.from_arrays(children, fields=list(type), mask=array.is_null())
    if pa.types.is_map(type):
        keys = _projected(array.keys, type.key_field, len(array.keys))
        items = _projected(array.items, type.item_field, len(array.items))
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=type, mask=array.is_null())
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        values = _projected(array.values, type.value_field, len(array.values))
        kind = pa.ListArray if pa.types.is_list(array.type) else pa.LargeListArray
        made = kind.from_arrays(array.offsets, values, mask=array.is_null())
        return made.cast(type)
    return array.cast(type)


def _small(field: pa.Field) -> pa.Field:
    """Without the wide offsets that pyiceberg has in its types: parquet has none."""
    type = field.type
    if pa.types.is_struct(type):
        return field.with_type(pa.struct([_small(one) for one in type]))
    if pa.types.is_map(type):
        return field.with_type(pa.map_(_small(type.key_field), _small(type.item_field)))
    if pa.types.is_large_list(type) or pa.types.is_list(type):
        return field.with_type(pa.list_(_small(type.value_field)))
    return field.with_type({pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(type, type))


def _id_of(field: pa.Field) -> int | None:
    number = (field.metadata or {}).get(_FIELD_ID)
    return None if number is None else int(number)
