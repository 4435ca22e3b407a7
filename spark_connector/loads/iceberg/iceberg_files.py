"""Data files of an Iceberg table: as a commit adds them, from parquet footers, and as the table has them.

Columns are told by the field ids in the file, not by names: a column may have been renamed while the file was written,
or dropped and added again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.typedef import Record

from spark_connector.loads.iceberg.iceberg_readback import refuse_unreadable
from spark_connector.loads.iceberg.iceberg_schema import is_void
from spark_connector.loads.record import LoadError, LoadId
from spark_connector.loads.tasks.written_file import WrittenFile

DATA = "data"


def directory_of_load(load_id: str) -> str:
    """Where the files of a load lie, below the table's location."""
    return f"{DATA}/{load_id}"


def load_of(location: str, path: str) -> str | None:
    """The id of the load that wrote the data file at `path` into the table at `location`; None for other files."""
    prefix = f"{location.rstrip('/')}/{DATA}/"
    name = path.removeprefix(prefix).partition("/")[0] if path.startswith(prefix) else ""
    return name if LoadId.parse(name) else None


def data_file(
    metadata: TableMetadata,
    location: str,
    size: int,
    footer: Any,
    values: Mapping[str, Any],
    spec_id: int,
    records: str = "",
    sort_order_id: int | None = None,
) -> DataFile:
    """The file at `location`, with the statistics of its `footer` (pyarrow's FileMetaData).

    `values` has the value of each field of the partition spec, by its name, as Iceberg holds it. `records`: where its
    records are in the topics, in words. `sort_order_id`: the table's order by which its rows are sorted. Raises
    LoadError for a file without field ids, for a partition field without a value, and for what readers could not read.
    """
    try:
        schema = pyarrow_to_schema(footer.schema.to_arrow_schema())
    except ValueError as error:
        raise LoadError(f"{location} has no field ids: {error}") from error
    ids = parquet_path_to_id_mapping(schema)
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, metadata.properties), ids
    )
    for path in _without_bounds(footer):
        statistics.column_aggregates.pop(ids[path], None)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=_partition(metadata.specs()[spec_id], values, location),
        file_size_in_bytes=size,
        sort_order_id=sort_order_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    file.spec_id = spec_id
    refuse_unreadable(metadata, file, spec_id, records)
    return file


def _without_bounds(footer: Any) -> set[str]:
    """The columns of which a row group has values without bounds, as parquet has none of texts of more than 4 KiB.

    pyiceberg would take the bounds of the other row groups for those of the file, and readers would skip rows.
    """
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(footer.num_columns))
    return {
        column.path_in_schema
        for column in columns
        if (found := column.statistics) is None or (found.num_values and not found.has_min_max)
    }


def added_files(table: Table, load_id: str, files: Sequence[WrittenFile], spec_id: int | None) -> list[DataFile]:
    """The files that the tasks of a load have written, as a commit adds them. `spec_id`: None for the table's spec."""
    directory = f"{table.location().rstrip('/')}/{directory_of_load(load_id)}"
    spec_id = table.metadata.default_spec_id if spec_id is None else spec_id
    return [
        data_file(
            table.metadata, f"{directory}/{file.name}", file.size, file.metadata(), file.values, spec_id, file.where
        )
        for file in files
    ]


def data_files(table: Table) -> Iterator[DataFile]:
    """All data files of the newest snapshot."""
    snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file


def _partition(spec: PartitionSpec, values: Mapping[str, Any], location: str) -> Record:
    missing = [field.name for field in spec.fields if field.name not in values and not is_void(field)]
    if missing:
        raise LoadError(f"{location} has no value for the partition field {', '.join(missing)}")
    return Record(*(None if is_void(field) else values[field.name] for field in spec.fields))
