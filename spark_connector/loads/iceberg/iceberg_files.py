"""Data files of an Iceberg table: as a commit adds them, from parquet footers, and as the table has them.

Columns are told by the field ids in the file, not by names: a column may have been renamed while the file was written,
or dropped and added again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
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
from pyiceberg.types import DecimalType, PrimitiveType, StringType
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

from spark_connector.loads.column_bounds import Bounds, Raw, Unsaid, footer_bounds, lower_text, upper_text
from spark_connector.loads.iceberg.iceberg_readback import refuse_unreadable
from spark_connector.loads.iceberg.iceberg_schema import is_void
from spark_connector.loads.record import LoadError, LoadId
from spark_connector.loads.table_rows import write_rows
from spark_connector.loads.tasks.written_file import WrittenFiles

DATA = "data"
NOTHING_UNSAID = Unsaid()


@dataclass(frozen=True)
class IcebergOutput:
    """The directory of one load's files, written as pyiceberg writes there. Pickled to the executors."""

    location: str
    properties: Mapping[str, str] = field(repr=False)

    def open(self, name: str) -> Any:
        path = self.url_of(name)
        return load_file_io(dict(self.properties), path).new_output(path).create(overwrite=True)

    def open_input(self, name: str) -> Any:
        path = self.url_of(name)
        return load_file_io(dict(self.properties), path).new_input(path).open()

    def url_of(self, name: str) -> str:
        return f"{self.location}/{name}"


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
    *,
    unsaid: Unsaid = NOTHING_UNSAID,
    records: str = "",
    sort_order_id: int | None = None,
) -> DataFile:
    """The file at `location`, with the statistics of its `footer` (pyarrow's FileMetaData) and what that leaves unsaid.

    `values` has the value of each field of the partition spec, by its name, as Iceberg holds it. `records`: where its
    records are in the topics, in words. `sort_order_id`: the table's order by which its rows are sorted. Raises
    LoadError for a file without field ids, for a partition field without a value, and for what readers could not read.
    """
    try:
        schema = pyarrow_to_schema(footer.schema.to_arrow_schema())
    except ValueError as error:
        raise LoadError(f"{location} has no field ids: {error}") from error
    plan = compute_statistics_plan(schema, metadata.properties)
    of_path = parquet_path_to_id_mapping(schema)
    nans, nulls = (
        {of_path[".".join(path)]: number for path, number in counts.items()} for counts in (unsaid.nans, unsaid.nulls)
    )
    counted = {number: _counts_only(one, is_silent=bool(nans.get(number))) for number, one in plan.items()}
    statistics = data_file_statistics_from_parquet_metadata(footer, counted, of_path)
    low, high = _bounds(footer, unsaid, {path: plan[number] for path, number in of_path.items()})
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=_partition(metadata.specs()[spec_id], values, location),
        file_size_in_bytes=size,
        sort_order_id=sort_order_id,
        equality_ids=None,
        key_metadata=None,
        **{
            **statistics.to_serialized_dict(),
            "lower_bounds": low,
            "upper_bounds": high,
            "value_counts": {**statistics.value_counts, **dict.fromkeys(nans, footer.num_rows)},
            "null_value_counts": {**statistics.null_value_counts, **nulls},
            # Iceberg skips a file of NaN alone for `> 1`, but for Spark, DuckDB and polars NaN is above all numbers.
            "nan_value_counts": {number: count for number, count in nans.items() if count < footer.num_rows},
        },
    )
    file.spec_id = spec_id
    refuse_unreadable(metadata, file, spec_id, records)
    return file


def values_of(table: Table, file: DataFile) -> dict[str, Any]:
    """The partition values of a file, by the names of its spec's fields."""
    return {field.name: file.partition[at] for at, field in enumerate(table.specs()[file.spec_id].fields)}


def _counts_only(one: StatisticsCollector, *, is_silent: bool) -> StatisticsCollector:
    """pyiceberg's own bounds are Python's values, which end at the year 9999, and it makes surrogates of texts.

    `is_silent`: a column of which the footer says nothing, because it has NaN.
    """
    has_none = is_silent or one.mode.type == MetricModeTypes.NONE
    return replace(one, mode=MetricsMode(MetricModeTypes.NONE if has_none else MetricModeTypes.COUNTS))


def _bounds(
    footer: Any, unsaid: Unsaid, plan: Mapping[str, StatisticsCollector]
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The lower and the upper bounds of the columns that have them by the table's plan, by field id."""
    lower, upper = {}, {}
    for path, bounds in footer_bounds(footer, unsaid).items():
        one = plan[".".join(path)]
        if one.mode.type in (MetricModeTypes.TRUNCATE, MetricModeTypes.FULL):
            low, high = _cut(one, bounds)
            if low is not None:
                lower[one.field_id] = _serialized(one.iceberg_type, low)
            if high is not None:
                upper[one.field_id] = _serialized(one.iceberg_type, high)
    return lower, upper


def _cut(one: StatisticsCollector, bounds: Bounds) -> tuple[Raw | None, Raw | None]:
    length = one.mode.length
    if length is None or not isinstance(bounds.low, bytes) or not isinstance(bounds.high, bytes):
        return bounds
    if isinstance(one.iceberg_type, StringType):
        return lower_text(bounds.low, length), upper_text(bounds.high, length)
    return bounds.low[:length], truncate_upper_bound_binary_string(bounds.high, length)


def _serialized(type: PrimitiveType, raw: Raw) -> bytes:
    if isinstance(raw, bytes):
        return raw
    if isinstance(type, DecimalType):
        return int(raw).to_bytes((raw + (raw < 0)).bit_length() // 8 + 1, "big", signed=True)
    return to_bytes(type, raw)


def added_files(
    table: Table,
    load_id: str,
    files: WrittenFiles,
    spec_id: int | None,
    values: Mapping[str, Any] | None = None,
) -> list[DataFile]:
    """The files that the tasks of a load have written, as a commit adds them. `spec_id`: None for the table's spec.
    `values`: of files of `write_rows`, their one partition."""
    directory = f"{table.location().rstrip('/')}/{directory_of_load(load_id)}"
    spec_id = table.metadata.default_spec_id if spec_id is None else spec_id
    return [
        data_file(
            table.metadata,
            f"{directory}/{file.name}",
            file.size,
            file.metadata(),
            file.values if values is None else values,
            spec_id,
            unsaid=file.unsaid,
            records=file.where if values is None else "",
        )
        for file in files
    ]


def files_of_rows(
    table: Table, load_id: str, schema: pa.Schema, parts: Iterable[pa.Table], values: Mapping[str, Any], spec_id: int
) -> list[DataFile]:
    """New files of these rows, which are of one partition, in the directory of a load; none of no rows. Raises as
    `write_rows`."""
    place = f"{table.location().rstrip('/')}/{directory_of_load(load_id)}"
    files = write_rows(schema, parts, IcebergOutput(place, dict(table.io.properties)))
    return added_files(table, load_id, files, spec_id, values)


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
