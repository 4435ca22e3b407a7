"""The rows of the table's files as the read's columns: what a Spark task does with a file.

A table may have loads of several groups. Rows of another group are left out by the column `load`: their topics have no
part in this read. Rows without a load are of another writer, such as a backfill, and belong to the table.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.history_and_tail.conform import conform_batch
from spark_connector.loads.record import LoadError, LoadId
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.table_snapshot import TableFile, TableScan, TableSnapshot, no_longer_there, not_shared
from spark_connector.loads.tasks.partition_values import value_of


@dataclass(frozen=True)
class FilesToRead:
    """The work of one task: files of one snapshot, and how to read them, planned on that host. Picklable."""

    files: tuple[TableFile, ...]
    scan: TableScan
    shown: str
    version: str
    group: str | None
    """Whose rows are read; None when the files hold no others."""
    planned_on: str = field(default_factory=socket.gethostname)

    @classmethod
    def of(cls, snapshot: TableSnapshot, files: Sequence[TableFile], group: str) -> FilesToRead:
        only = None if snapshot.one_group else group
        return cls(tuple(files), snapshot.scan, snapshot.shown, snapshot.version, only)


def read_history(work: FilesToRead, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the files in these columns. Raises ConnectorError when a file is gone, or is on another host,
    LoadError when it is damaged."""
    wanted = [*columns.names, *([] if work.group is None else [LOAD_COLUMN])]
    for file in work.files:
        try:
            for batch in work.scan.read(file, wanted):
                mine = batch if work.group is None else _of_group(batch, work.group)
                if mine.num_rows:
                    yield conform_batch(_with_path_values(mine, file.values, columns), columns)
        except FileNotFoundError as error:
            if file.is_local and work.planned_on != socket.gethostname():
                raise not_shared(work.shown, file.name, work.planned_on) from error
            raise no_longer_there(work.shown, work.version, f"{file.name} is gone") from error
        except (pa.ArrowException, ValueError) as error:
            raise LoadError(f"{work.shown}: {file.name} cannot be read: {error}") from error


def _with_path_values(batch: pa.RecordBatch, texts: Mapping[str, str | None], columns: pa.Schema) -> pa.RecordBatch:
    """With the values of the file's directories in the types of the read. Raises ValueError for a text that is none."""
    for name in texts.keys() & set(columns.names):
        kind = columns.field(name).type
        value = pa.repeat(value_of(texts[name], kind), batch.num_rows)
        batch = batch.set_column(batch.schema.get_field_index(name), name, value)
    return batch


def _of_group(batch: pa.RecordBatch, group: str) -> pa.RecordBatch:
    """Without the rows that loads of other groups have written."""
    if LOAD_COLUMN not in batch.schema.names:
        return batch
    loads = batch.column(LOAD_COLUMN)
    found = pc.unique(loads).to_pylist()
    others = [text for text in found if isinstance(text, str) and _group_of(text) not in (group, None)]
    return batch.filter(pc.invert(pc.is_in(loads, pa.array(others, loads.type)))) if others else batch


def _group_of(text: str) -> str | None:
    load_id = LoadId.parse(text)
    return None if load_id is None else load_id.group
