"""A table of loads at one moment, as a value: its files, the group's offsets, and how to read a file.

`LoadedDestination.snapshot` makes it from one state of the table's own metadata, so files and offsets belong together:
the rows of the files are the records before the offsets. Spark plans in one process and reads in others, so everything
here is a plain description that can be pickled; no open table is.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet

from broker.storage.storage import open_storage
from broker.storage.url_secrets import text_without_secrets, without_secrets
from spark_connector.errors import ConnectorError
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.shared_path import SHARED, is_local
from spark_connector.offset_store.base import Offsets
from spark_connector.outages import one_line

_ROWS = 10_000  # of one batch: each is copied over a socket to Spark
BUFFER = 256 << 10
"""Bytes that are read of a column at a time by who wants the first rows only; else a column is read at once."""


@dataclass(frozen=True)
class TableFile:
    """A data file. `places` are (URL of a directory, path below it): the file is at the first of them that exists,
    because a repair may rename its directory after this was planned.

    `name` tells it from the other files of the snapshot, wherever it is. `values`: column → value, as text, of the
    columns that are directories and not in the file. `rows` is about how many it has, None where nothing tells. `task`:
    what else the scan must know to read it.
    """

    name: str
    places: tuple[tuple[str, str], ...] = field(repr=False)
    size: int
    rows: int | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)
    task: bytes = field(default=b"", repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is on a path that is another place on each host."""
        return any(map(is_local, (self.name, *(directory for directory, _ in self.places))))


class TableScan(Protocol):
    """Reads the files of one snapshot, in any process; picklable."""

    def read(self, file: TableFile, columns: Sequence[str], few: int = 0) -> Iterator[pa.RecordBatch]:
        """Those of the columns that the file has or `values` names, in batches. Columns that the file lacks are left
        out: they are null. `few`: rows of a batch, for who wants the first rows and not the file. Raises
        FileNotFoundError when the file is gone."""


@dataclass(frozen=True)
class TableSnapshot:
    """`version` names the moment: it can be given to `LoadedDestination.snapshot` again. `newest` is the group's newest
    load, None where the table has forgotten its record. `offsets` are the group's next offsets at that moment.

    `columns` are the table's, None of a directory without a row. `one_group`: whether every file
    holds rows of this group alone. `one_row_per_key`: whether loads change and delete rows (mode=upsert).
    `in_paths` are columns that are directories, as text: their types are those of the records that were loaded.
    `former_columns`: names that columns had once, and what they are called now, None where they are gone.
    """

    shown: str
    version: str
    number: int
    newest: LoadRecord | None
    offsets: Offsets
    columns: pa.Schema | None
    files: tuple[TableFile, ...]
    scan: TableScan
    in_paths: tuple[str, ...] = ()
    one_group: bool = False
    one_row_per_key: bool = False
    former_columns: Mapping[str, str | None] = field(default_factory=dict)


class TableVersion(NamedTuple):
    """A state that the table had. `version` is a Delta table's, or the id of an Iceberg table's snapshot, or the number
    of a load; `load_id` the load of the group that made it, or a rewind of it, "" for a change by somebody else."""

    version: str
    at_ms: int
    what: str
    load_id: str = ""


@dataclass(frozen=True)
class ParquetScan:
    """Columns by name, the files by fsspec with these storage options."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def read(self, file: TableFile, columns: Sequence[str], few: int = 0) -> Iterator[pa.RecordBatch]:
        buffer = BUFFER if few else 0
        with (
            self._open(file) as opened,
            pyarrow.parquet.ParquetFile(opened, coerce_int96_timestamp_unit="us", buffer_size=buffer) as parquet,
        ):
            there = [name for name in columns if name in parquet.schema_arrow.names and name not in file.values]
            for batch in parquet.iter_batches(few or _ROWS, columns=there):
                arrays = {name: batch.column(name) for name in there}
                for name in columns:
                    if name in file.values:
                        arrays[name] = pa.repeat(pa.scalar(file.values[name], pa.string()), batch.num_rows)
                yield pa.RecordBatch.from_pydict(arrays) if arrays else batch

    def schema_of(self, file: TableFile) -> pa.Schema:
        """The columns of the file, without those of its path. Raises FileNotFoundError."""
        with self._open(file) as opened:
            inside = pyarrow.parquet.read_schema(opened)
        return pa.schema([one for one in inside if one.name not in file.values])

    def _open(self, file: TableFile) -> pa.NativeFile:
        for directory, path in file.places:
            try:
                return pa.PythonFile(open_storage(directory, self.options).open_input(path), mode="r")
            except FileNotFoundError:
                continue
        raise FileNotFoundError(", ".join(f"{without_secrets(directory)}/{path}" for directory, path in file.places))


def not_shared(snapshot: str, name: str, planned_on: str) -> ConnectorError:
    """The error for a file on a local path of the driver's host, which the executor on this host does not have."""
    return ConnectorError(
        "PYKAFKA_HISTORY_NOT_SHARED",
        f"{snapshot}: a file of it is not on host {socket.gethostname()}: {without_secrets(name)}. It is a local path, "
        f"and the query was planned on host {planned_on}, where the file was. {SHARED}",
    )


def no_longer_there(snapshot: str, version: str, error: Exception | str) -> ConnectorError:
    """The error for a snapshot whose files or metadata were deleted after it was planned."""
    why = text_without_secrets(one_line(str(error)))
    return ConnectorError(
        "PYKAFKA_HISTORY_GONE",
        f"Version {version} of {snapshot} can no longer be read: {why}. Its files were deleted after the query was "
        "planned: by a rewind, by VACUUM, or by an expiry of snapshots. Run the query again, a stream with a new "
        "checkpoint and an empty output, or keep old versions for longer.",
    )
