"""Writes the record batches of one task into files, in bounded memory and without Python per record.

Rows wait per partition value until they make a row group, which the file's format (file_formats.py) writes. A file
ends when it has the target size. With a sort order each file is one sorted run: the rows that waited for it.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.storage.storage import discard_output
from spark_connector.formats.nested_values import Rows, elements, present
from spark_connector.loads.column_bounds import Path, Unsaid, floats, with_nan
from spark_connector.loads.footers import Count, count_positions, sum_counts
from spark_connector.loads.grammar import POSITION
from spark_connector.loads.record import LoadError, UnfitRow
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.tasks.file_formats import TASK_FORMATS
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.required import fitted, refuse_no_text, refuse_nulls
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.transforms import Values, directory_of, hidden, split
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.loads.write_options import FILES, PARQUET, SQL

ROW_GROUP_BYTES = 32 << 20
"""Bytes of Arrow in one row group."""

MOST_WAITING = 4 * ROW_GROUP_BYTES
"""Most bytes of Arrow that wait in one task; also those of a sorted run."""

MOST_OPEN = 32
"""Most files that are open at once; each has a buffer."""

_NANOSECONDS = (2**63 - 1) // 1000
"""The last microsecond of times in nanoseconds."""


@dataclass
class _Waiting:
    """The rows of one partition value that wait for their row group, and the file that is open for them."""

    values: Values
    parts: list[pa.Table] = field(default_factory=list)
    size: int = 0
    file: _OpenFile | None = None


class FileWriter:
    """One task's writer. `write` takes batches as they are read; `close` gives the files.

    After an error call `abort`: what was written is no part of the load, because nobody is told of it.
    """

    def __init__(self, layout: FileLayout, output: TaskOutput) -> None:
        self._layout = layout
        self._output = output
        self._group = MOST_WAITING if layout.sort_by else ROW_GROUP_BYTES
        self._floats = floats(layout.schema) if layout.format == PARQUET else []
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self._waiting: dict[tuple[Any, ...], _Waiting] = {}
        self._written: list[WrittenFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises OSError, LoadError for a null in a column that the table requires, and ArrowException for other values
        that do not fit the table."""
        self._batches.append(batch)
        self._size += batch.nbytes
        if self._size >= ROW_GROUP_BYTES:
            self._take_in()

    def close(self) -> list[WrittenFile]:
        """Write what waits, and close all files."""
        self._take_in()
        for waiting in self._waiting.values():
            self._write_group(waiting)
            self._end_file(waiting)
        return self._written

    def abort(self) -> None:
        """Close all files, whatever becomes of them."""
        for waiting in self._waiting.values():
            if waiting.file is not None:
                waiting.file.abort()

    def _take_in(self) -> None:
        """Make the batches rows of the table, and put them to their partition values."""
        if not self._batches:
            return
        rows = pa.Table.from_batches(self._batches)
        self._batches, self._size = [], 0
        groups = split(self._with_positions(rows), self._layout.partition_by)
        for values, part in groups:
            waiting = self._waiting.setdefault(tuple(values.values()), _Waiting(values))
            waiting.parts.append(part)
            waiting.size += part.nbytes
            if waiting.size >= self._group:
                self._write_group(waiting)
            elif len(groups) > 1:
                waiting.parts[-1] = _copied(part)  # a slice keeps the rows of all groups in memory
        while sum(waiting.size for waiting in self._waiting.values()) > MOST_WAITING:
            self._write_group(max(self._waiting.values(), key=lambda waiting: waiting.size))

    def _with_positions(self, rows: pa.Table) -> pa.Table:
        """The table's rows, and beside them where each record is: a table may leave these columns out."""
        table = self._layout.columns.apply(rows)
        if self._layout.int96:
            _check_nanoseconds(table, rows)
        if self._layout.load_id is not None:
            load = pa.repeat(pa.scalar(self._layout.load_id, pa.string()), rows.num_rows)
            table = table.append_column(LOAD_COLUMN, load)
        for name in POSITION:
            table = table.append_column(hidden(name), rows.column(name))
        position = [hidden(name) for name in POSITION]
        refuse_nulls(table, self._layout.schema, position)
        if self._layout.format == SQL:
            refuse_no_text(table, self._layout.schema, position)
        return table

    def _write_group(self, waiting: _Waiting) -> None:
        if not waiting.parts:
            return
        rows = pa.concat_tables(waiting.parts)
        waiting.parts, waiting.size = [], 0
        if self._layout.sort_by:
            order = [(one.column, "descending" if one.descending else "ascending") for one in self._layout.sort_by]
            rows = rows.sort_by(order)
        nan = with_nan(rows, self._floats)
        if waiting.file is not None and not nan <= waiting.file.without_bounds:
            self._end_file(waiting)
        if waiting.file is None:
            self._make_room()
            waiting.file = _OpenFile(self._layout, self._output, waiting.values, nan)
        waiting.file.write(rows)
        if self._layout.sort_by or waiting.file.size >= self._layout.target_file_size:
            self._end_file(waiting)

    def _make_room(self) -> None:
        opened = [waiting for waiting in self._waiting.values() if waiting.file is not None]
        if len(opened) >= MOST_OPEN:
            self._end_file(max(opened, key=lambda waiting: waiting.file.size if waiting.file else 0))

    def _end_file(self, waiting: _Waiting) -> None:
        if waiting.file is not None:
            self._written.append(waiting.file.close())
            waiting.file = None


def _check_nanoseconds(table: pa.Table, records: pa.Table) -> None:
    """Raise LoadError for a time that readers of INT96 would show as another: they take it for nanoseconds."""
    for name in table.column_names:
        first = 0
        for chunk in table.column(name).chunks:
            for path, times, rows in _times(chunk, name, np.arange(first, first + len(chunk))):
                numbers = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
                wrong = pc.or_(pc.less(numbers, -_NANOSECONDS), pc.greater(numbers, _NANOSECONDS))
                if pc.any(wrong).as_py():
                    row = int(rows[pc.index(wrong, pa.scalar(True)).as_py()])
                    topic, partition, offset = (records.column(each)[row].as_py() for each in POSITION)
                    raise LoadError(
                        f"{path} of the record at offset {offset} of topic '{topic}', partition {partition}, lies "
                        "beyond the years 1678 to 2261: the directory has times as INT96, as earlier versions wrote "
                        "them, and readers would show another time. Load into another directory"
                    )
            first += len(chunk)


def _times(column: pa.Array, path: str, rows: Rows) -> Iterator[tuple[str, pa.Array, Rows]]:
    """(path, times, the row of each) at every depth. `rows`: those of the elements of `column`."""
    if pa.types.is_timestamp(column.type):
        yield path, column, rows
    elif pa.types.is_struct(column.type):
        there, rows = present(column, rows)
        for inner in there.type:
            yield from _times(there.field(inner.name), f"{path}.{inner.name}", rows)
    elif pa.types.is_list(column.type) or pa.types.is_map(column.type):
        there, rows = present(column, rows)
        keys, items, places = elements(there)
        for part in (keys, items) if pa.types.is_map(column.type) else (items,):
            yield from _times(part, path, rows[places])


def _copied(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.arange(rows.num_rows)))


class _OpenFile:
    """A file that is being written. The columns `without_bounds` may hold NaN."""

    def __init__(
        self, layout: FileLayout, output: TaskOutput, values: Values, without_bounds: frozenset[Path] = frozenset()
    ) -> None:
        self.without_bounds = without_bounds
        self._values = values
        self._texts = {field.name: field.text(values[field.name]) for field in layout.partition_by}
        base = f"part-{secrets.token_hex(12)}{FILES[layout.format].suffixes[layout.compression]}"
        self._name = posixpath.join(directory_of(layout.partition_by, values), base)
        self._counts: list[Count] = []
        in_name = values.keys() if layout.directories else ()
        self._schema = pa.schema([field for field in layout.schema if field.name not in in_name])
        self._file = CountedFile(output.open(self._name))
        try:
            self._rows = TASK_FORMATS[layout.format]().open(self._file, self._schema, layout, without_bounds)
        except BaseException:
            discard_output(self._file)
            raise

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, rows: pa.Table) -> None:
        self._counts += count_positions(rows.select([hidden(name) for name in POSITION]).rename_columns(POSITION))
        try:
            self._rows.write(fitted(rows.select(self._schema.names), self._schema))
        except UnfitRow as error:
            topic, partition, offset = (rows.column(hidden(name))[error.row].as_py() for name in POSITION)
            raise LoadError(
                f"a value of the record at offset {offset} of topic '{topic}', partition {partition}, does not fit "
                f"into the table: {error.why}"
            ) from error

    def close(self) -> WrittenFile:
        try:
            end = self._rows.close()
            size = self.size
        except BaseException:
            discard_output(self._file)
            raise
        self._file.close()
        return WrittenFile(
            self._name,
            size,
            self._file.end if end.footer is None else end.footer,
            tuple(sum_counts(self._counts).values()),
            dict(self._values),
            self._texts,
            socket.gethostname(),
            end.unsaid or Unsaid(),
            end.rows,
        )

    def abort(self) -> None:
        self._rows.abort()
        with contextlib.suppress(Exception):
            discard_output(self._file)


_END = 64
"""Bytes at the end of a file that are kept, to tell it from another."""


class CountedFile:
    """Counts what is written, because not every file system's files tell their position (HDFS), and keeps its end."""

    def __init__(self, file: Any) -> None:
        self.opened = file
        self.size = 0
        self.end = b""
        self.closed = False

    def write(self, data: Any) -> int:
        self.opened.write(data)
        view = memoryview(data).cast("B")
        self.size += view.nbytes
        self.end = (self.end + bytes(view[-_END:]))[-_END:]
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        self.opened.flush()

    def close(self) -> None:
        self.closed = True
        self.opened.close()
