"""An Iceberg table at one snapshot as a value: files, and the offsets of a group's property, of one metadata file.

Files are read by iceberg_reader.py, which finds columns by field id and leaves out rows that delete files name. A task
gets the part of the metadata that this takes, without snapshots, and one pickled description of its file.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from broker.errors import ConfigError
from spark_connector.loads.change_files import UPSERT_PROPERTY
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.iceberg.iceberg_reader import read_file
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.table_snapshot import TableFile, TableSnapshot, no_longer_there

_ROWS = 10_000  # of one batch: each is copied over a socket to Spark
_NONE = "0"  # the version of a table without a snapshot
_UNUSED: dict[str, Any] = {
    **{name: [] for name in ("snapshots", "snapshot_log", "metadata_log", "statistics", "partition_statistics")},
    "refs": {},
    "current_snapshot_id": None,
}
"""What no task needs of the metadata, which may be a megabyte."""


@dataclass(frozen=True)
class IcebergScan:
    """Reads files of one snapshot. `metadata` and `schema` are JSON, `properties` those of the FileIO."""

    metadata: str = field(repr=False)
    schema: str = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)

    def read(self, file: TableFile, columns: Sequence[str], few: int = 0) -> Iterator[pa.RecordBatch]:
        metadata, schema = _parsed(self.metadata, self.schema)
        there = [name for name in columns if name in {one.name for one in schema.fields}]
        io = load_file_io(dict(self.properties), metadata.location)
        for batch in read_file(metadata, io, schema.select(*there), pickle.loads(file.task), few):
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start, _ROWS)


@functools.lru_cache(maxsize=4)
def _parsed(metadata: str, schema: str) -> tuple[TableMetadata, Schema]:
    """Once for all files that a process reads."""
    return TableMetadataUtil.parse_raw(metadata), Schema.model_validate_json(schema)


def snapshot_of(log: IcebergCommitLog, shown: str, version: str | None) -> TableSnapshot:
    """The table now, or at the snapshot `version`. Raises ConfigError, LoadError, ConnectorError."""
    table = log.table()
    if table is None:
        raise ConfigError(f"there is no Iceberg table {shown}")
    state = log.state(table)
    current = table.metadata.current_snapshot()
    now = _NONE if current is None else str(current.snapshot_id)
    wanted = now if version is None else version
    if wanted not in {_NONE, *(str(one.snapshot_id) for one in table.metadata.snapshots)}:
        raise no_longer_there(shown, wanted, "the snapshot has expired")
    scan = table.scan(snapshot_id=None if wanted in (now, _NONE) else int(wanted))
    schema = scan.projection()
    if LOAD_COLUMN not in {one.name for one in schema.fields}:
        raise ConfigError(
            f"option 'history': {shown} has no column '{LOAD_COLUMN}', so the rows of a group cannot be found"
        )
    return TableSnapshot(
        shown=shown,
        version=wanted,
        number=state.number,
        newest=state.record,
        offsets=state.offsets,
        columns=schema_to_pyarrow(schema, include_field_ids=False),
        files=() if wanted == _NONE else _files(scan, shown),
        scan=IcebergScan(_small(table.metadata), schema.model_dump_json(), dict(table.io.properties)),
        one_row_per_key=UPSERT_PROPERTY in table.properties,
        former_columns=_former_columns(table.metadata, schema),
    )


def _former_columns(metadata: TableMetadata, schema: Schema) -> dict[str, str | None]:
    """By the field ids, which a renamed column keeps."""
    now = {one.field_id: one.name for one in schema.fields}
    names = set(now.values())
    return {
        one.name: now.get(one.field_id)
        for earlier in metadata.schemas
        for one in earlier.fields
        if one.name not in names
    }


def _files(scan: Any, shown: str) -> tuple[TableFile, ...]:
    try:
        tasks = list(scan.plan_files())
    except (ValueError, NotImplementedError) as error:  # equality deletes, and what else a newer writer may leave
        raise ConfigError(f"option 'history': pyiceberg cannot read {shown}: {error}") from error
    except FileNotFoundError as error:
        raise no_longer_there(shown, str(scan.snapshot_id), error) from error
    files = [
        TableFile(
            name=task.file.file_path,
            places=(),
            size=task.file.file_size_in_bytes,
            rows=task.file.record_count,
            task=pickle.dumps(task),
        )
        for task in tasks
    ]
    return tuple(sorted(files, key=lambda file: file.name))


def _small(metadata: TableMetadata) -> str:
    return metadata.model_copy(update=_UNUSED).model_dump_json()
