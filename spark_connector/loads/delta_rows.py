"""The files of a Delta table as the loads that wrote them see them: whose they are, and what rows they hold.

A load's files lie in a directory of the table that is named after it. As long as the table has them, its rows are known
by that; when they were rewritten (OPTIMIZE, DELETE, UPDATE, …) the rows are looked for by their offsets in all files
that are no load's. Given to loads/delta.py and loads/log_delta.py. Needs `deltalake`, of the extra `delta`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.file_rows import Offsets, gather_offsets, read_offsets
from spark_connector.loads.record import LoadFile, LoadId, LoadRecord
from spark_connector.loads.table_holdings import OwnRows, Parts, Spans
from spark_connector.storage import Storage

__all__ = ["DeltaFiles", "DeltaRows", "TableFile"]

_DELETED_ROWS = "deletionVectors"


@dataclass(frozen=True)
class TableFile:
    """A file of the table. `path` is as the log has it; `rows` None when the log does not say, `values` those of the
    partition columns, `bounds` (lowest, highest) of the others where the log has them; `keep` which rows count, None
    for all."""

    path: str
    size: int
    rows: int | None
    values: Mapping[str, str | None]
    bounds: Mapping[str, tuple[Any, Any]]
    keep: Any = None

    @property
    def name(self) -> str:
        """Below the table's directory."""
        return unquote(self.path)

    @property
    def load_id(self) -> str | None:
        """The load that has written it."""
        directory = self.path.partition("/")[0]
        return directory if LoadId.parse(directory) is not None else None

    def may_hold(self, tp: TopicPartition, start: int, end: int) -> bool:
        """Whether some row at these offsets can be in it."""
        asked = {"topic": (tp.topic, tp.topic), "partition": (tp.partition, tp.partition), "offset": (start, end - 1)}
        for column, (low, high) in asked.items():
            if column in self.values:
                if str(low) != self.values[column]:
                    return False
            elif column in self.bounds and (self.bounds[column][1] < low or high < self.bounds[column][0]):
                return False
        return True


class DeltaFiles:
    """All files that the table has, of which it knows without reading them."""

    def __init__(self, table: DeltaTable | None) -> None:
        self._of: dict[str | None, list[TableFile]] = {}
        for file in _files(table) if table is not None else ():
            self._of.setdefault(file.load_id, []).append(file)

    @property
    def strays(self) -> list[TableFile]:
        """Those that no load has written."""
        return self._of.get(None, [])

    def of(self, load_id: str) -> list[TableFile]:
        return self._of.get(load_id, [])

    def listed(self, load_id: str) -> tuple[LoadFile, ...]:
        """By name below the load's directory."""
        files = self.of(load_id)
        return tuple(sorted((LoadFile(f.name.partition("/")[2], f.size) for f in files), key=lambda file: file.name))

    def is_whole(self, record: LoadRecord) -> bool:
        """Whether the table still has all that the load has written, as it was written."""
        files = self.of(record.load_id)
        return all(file.keep is None for file in files) and sum(file.rows or 0 for file in files) == record.rows


class DeltaRows:
    """The rows of the table's files, read as they are asked for."""

    def __init__(self, storage: Storage, files: DeltaFiles) -> None:
        self._storage = storage
        self._files = files
        self.problems: Sequence[str] = ()

    def own(self, record: LoadRecord) -> OwnRows:
        files = self._files.of(record.load_id)
        offsets, problems = self._read(files, strict=True)
        written = sum(map(len, offsets.values()))  # the log may have no statistics of a file
        if self._files.is_whole(record) or written == record.rows:
            return OwnRows(offsets, True, tuple(problems))
        note = (
            f"of its {record.rows:,} rows {written:,} are in the files that it wrote; the others were rewritten or "
            "deleted since (OPTIMIZE, DELETE, RESTORE, …), and are looked for in the whole table"
        )
        return OwnRows(offsets, False, tuple(problems), (note,))

    def scan(self, spans: Spans) -> Parts:
        files = [file for file in self._files.strays if _may_hold(file, spans)]
        for file in files:
            offsets, problems = self._read([file], strict=False)
            self.problems = (*self.problems, *problems)
            yield {tp: [array] for tp, array in offsets.items()}

    def _read(self, files: Collection[TableFile], *, strict: bool) -> tuple[dict[TopicPartition, Offsets], list[str]]:
        def read(file: TableFile) -> dict[TopicPartition, list[Offsets]]:
            return read_offsets(
                self._storage, "", file.name, "parquet", given=file.values, keep=file.keep, strict=strict
            )

        return gather_offsets(read, files)


def _may_hold(file: TableFile, spans: Spans) -> bool:
    return any(file.may_hold(tp, wanted[0][0], wanted[-1][1]) for tp, wanted in spans.items())


def _files(table: DeltaTable) -> Iterable[TableFile]:
    kept = _kept_rows(table)  # empty but where Spark deletes rows
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        name = unquote(row["path"])
        yield TableFile(
            path=row["path"],
            size=row["size_bytes"],
            rows=row["num_records"],
            values={column: None if value is None else str(value) for column, value in _prefixed(row, "partition.")},
            bounds={
                column: (low, row[f"max.{column}"])
                for column, low in _prefixed(row, "min.")
                if low is not None and row.get(f"max.{column}") is not None
            },
            keep=next((rows for uri, rows in kept.get(_last(name), ()) if uri.endswith(f"/{name}")), None),
        )


def _prefixed(row: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    return ((name.removeprefix(prefix), value) for name, value in row.items() if name.startswith(prefix))


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _kept_rows(table: DeltaTable) -> dict[str, list[tuple[str, Any]]]:
    """Files with deleted rows: last part of the name → (URI, which of its rows count)."""
    if _DELETED_ROWS not in (table.protocol().reader_features or ()):
        return {}
    found: dict[str, list[tuple[str, Any]]] = {}
    for batch in table.deletion_vectors():
        rows = pa.record_batch(batch).to_pydict()
        for uri, keep in zip(rows["filepath"], rows["selection_vector"], strict=True):
            found.setdefault(_last(unquote(uri)), []).append((unquote(uri), np.array(keep, np.bool_)))
    return found
