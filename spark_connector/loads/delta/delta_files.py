"""Data files of a Delta table, as its log has them, and their rows, read without deltalake.

deltalake's dataset refuses tables with a bound that is no date of Python, and has no way to read one file.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable

from broker.errors import ConfigError
from broker.storage.storage import Storage
from spark_connector.loads.compaction import TableFile
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.table_rows import write_rows
from spark_connector.loads.tasks.partition_values import value_of
from spark_connector.loads.tasks.required import relaxed
from spark_connector.loads.tasks.task_output import StorageOutput
from spark_connector.loads.tasks.transforms import PartitionField
from spark_connector.loads.tasks.written_file import WrittenFile

_PARQUET = pyarrow.dataset.ParquetFileFormat(
    read_options=pyarrow.dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")
)
_ELSEWHERE = "://"


class DeltaFiles:
    """The data files of one state of a table, and their rows."""

    def __init__(self, table: DeltaTable, storage: Storage) -> None:
        self._storage = storage
        self._table = table
        self.partitioning = table.metadata().partition_columns
        self.schema = pa.schema([field.remove_metadata() for field in pa.schema(table.schema().to_arrow())])
        """The columns of the table; without what must not be null: `relaxed`."""
        self.relaxed = pa.schema(list(map(relaxed, self.schema)))
        self._actions = pa.table(table.get_add_actions())

    def all(self) -> list[TableFile]:
        """But for those of another table, which this one has cloned. Raises ConfigError for partition columns whose
        values have no one spelling."""
        return [file for file in self._listed(self._actions) if _ELSEWHERE not in file.path]

    def of_keys(self, changes: pa.Table, key: Sequence[str]) -> list[TableFile]:
        """The files that may have rows of these keys, by their partition values and the bounds of whole numbers."""
        chosen = self._actions
        for name in key:
            values = changes.column(name).unique()
            if name in self.partitioning:
                there = pc.struct_field(chosen["partition"], [name])
                chosen = chosen.filter(pc.is_in(there, values.cast(there.type)))
            elif pa.types.is_integer(values.type) and len(values) and (bounds := _bounds(chosen, name)) is not None:
                low, high = pc.min_max(values).as_py().values()
                chosen = chosen.filter(
                    pc.and_(
                        pc.fill_null(pc.less_equal(bounds[0], high), True),
                        pc.fill_null(pc.greater_equal(bounds[1], low), True),
                    )
                )
        return self._own(self._listed(chosen))

    def of_loads(self, undone: pa.Array) -> tuple[list[TableFile], list[TableFile]]:
        """(files with rows of the loads with these ids only, those that have others, too)."""
        whole, mixed, ids = list[TableFile](), list[TableFile](), set(undone.to_pylist())
        for file, only in zip(self._listed(self._actions), self._only_loads(), strict=True):
            if only is not None:
                found = {only in ids}
            else:
                (file,) = self._own([file])
                loads = (part.column(LOAD_COLUMN) for part in self.read(file, [LOAD_COLUMN]))
                found = {one for load in loads for one in pc.is_in(load, undone).unique().to_pylist()}
            if True in found:
                (mixed if False in found else whole).append(file)
        return whole, mixed

    def read(self, file: TableFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of a file, part by part, in the table's types, in which everything may be null."""
        names = self.relaxed.names if columns is None else list(columns)
        with contextlib.closing(self._storage.open_input(unquote(file.path))) as source:
            fragment = _PARQUET.make_fragment(source, partition_expression=self._values_of(file))
            for batch in fragment.scanner(schema=self.relaxed, columns=names).to_batches():
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])

    def texts_of(self, file: TableFile) -> dict[str, str | None]:
        """Its partition values, as the log spells them."""
        values: Any = file.values
        return dict(zip(self.partitioning, values, strict=True))

    def write(self, parts: Iterable[pa.Table], directory: str, more: Sequence[pa.Field] = ()) -> list[WrittenFile]:
        """New files of these rows, below a directory of the table. `more`: columns that they have besides the table's.

        Raises as `write_rows`.
        """
        fields = tuple(
            PartitionField(name, name, "identity", self.schema.field(name).type, "delta") for name in self.partitioning
        )
        output = StorageOutput(self._storage.url, self._storage.options, directory)
        return write_rows(pa.schema([*self.schema, *more]), parts, output, partition_by=fields)

    def _listed(self, actions: pa.Table) -> list[TableFile]:
        values = [_texts(actions, name) for name in self.partitioning]
        rows = actions.select(["path", "size_bytes", "modification_time", "num_records"]).to_pylist()
        return [
            TableFile(row["path"], row["size_bytes"], row["num_records"], value, row["modification_time"])
            for row, value in zip(rows, zip(*values, strict=True) if values else [()] * len(rows), strict=True)
        ]

    def _own(self, files: list[TableFile]) -> list[TableFile]:
        """The files, of which each can be written anew. Raises ConfigError."""
        hidden = _with_vectors(self._table) if files else []
        for file in files:
            path = unquote(file.path)
            if _ELSEWHERE in path:
                raise ConfigError(f"{path} is a file of another table, which {self._storage.shown} has cloned")
            if any(one.endswith(f"/{path}") for one in hidden):
                raise ConfigError(
                    f"{path} in the Delta table {self._storage.shown} has rows that a deletion vector has deleted, and "
                    "would be written anew: purge it with Spark first (REORG TABLE … APPLY (PURGE))"
                )
        return files

    def _only_loads(self) -> list[str | None]:
        """For each file the load of all its rows, where its bounds tell."""
        bounds, nulls = _bounds(self._actions, LOAD_COLUMN), _statistic(self._actions, "null_count", LOAD_COLUMN)
        if bounds is None or nulls is None:
            return [None] * self._actions.num_rows
        low, high = bounds
        is_one = pc.and_(pc.equal(low, high), pc.equal(nulls, 0))
        found: list[str | None] = pc.if_else(is_one, low, pa.scalar(None, low.type)).to_pylist()
        return found

    def _values_of(self, file: TableFile) -> pc.Expression:
        fields = (
            pc.field(name) == value_of(text, self.schema.field(name).type)
            for name, text in self.texts_of(file).items()
            if text is not None
        )
        return functools.reduce(operator.and_, fields, pc.scalar(True))


def _bounds(actions: pa.Table, name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
    low, high = (_statistic(actions, side, name) for side in ("min", "max"))
    return None if low is None or high is None else (low, high)


def _statistic(actions: pa.Table, kind: str, name: str) -> pa.ChunkedArray | None:
    index = actions.schema.get_field_index(kind)
    if index < 0 or actions.schema.field(index).type.get_field_index(name) < 0:
        return None
    return pc.struct_field(actions.column(index), [name])


def _with_vectors(table: DeltaTable) -> list[str]:
    """The URLs of the files of which some rows are deleted by a deletion vector."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return []
    return [unquote(url) for url in pa.table(table.deletion_vectors()).column("filepath").to_pylist()]


def _texts(actions: pa.Table, column: str) -> list[str | None]:
    """The values of a partition column, as the log spells them. Raises ConfigError for a type without one spelling."""
    values = pc.struct_field(actions.column("partition"), [column])
    kinds = pa.types
    spelled = (kinds.is_string, kinds.is_integer, kinds.is_date, kinds.is_boolean, kinds.is_decimal)
    if not any(kind(values.type) for kind in spelled):
        raise ConfigError(
            f"the files of a Delta table that is partitioned by '{column}', a {values.type}, cannot be written anew"
        )
    texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    return texts
