"""What one task writes, in bounded memory: files of a size, sorted runs, partitions, counts and checksums."""

from __future__ import annotations

import io
import itertools
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import ParquetWriter

from spark_connector.loads.grammar import SortItem, parse_partition_by
from spark_connector.loads.tasks import file_writer, parquet_rows
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import StorageOutput
from spark_connector.loads.tasks.transforms import bind, with_partition_columns
from spark_connector.loads.tasks.written_file import WrittenFile

SOURCE = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
LOAD = pa.field("load", pa.string())
HOUR = 3_600_000_000


def batches(rows: int, size: int = 8, per_batch: int = 1000, topic: str = "t") -> list[pa.RecordBatch]:
    """Records of two partitions, batch by batch; their offsets go on, and each is an hour after the one before."""
    made, ends = [], {0: 0, 1: 0}
    for number, start in enumerate(range(0, rows, per_batch)):
        count, partition = min(per_batch, rows - start), number % 2
        offsets = range(ends[partition], ends[partition] + count)
        ends[partition] += count
        values = [random.Random(offset * 2 + partition).randbytes(size) for offset in offsets]
        times = [offset * HOUR for offset in offsets]
        columns = [values, [topic] * count, [partition] * count, list(offsets), times]
        arrays = [pa.array(column, one.type) for column, one in zip(columns, SOURCE, strict=True)]
        made.append(pa.RecordBatch.from_arrays(arrays, schema=SOURCE))
    return made


def layout(*partition_by: str, load_id: str | None = "g-000001-0000000a", **more: Any) -> FileLayout:
    items = parse_partition_by(partition_by)
    columns = TableColumns.of((), SOURCE, items)
    fields = bind(items, columns.schema, "delta" if load_id else "parquet")
    schema = with_partition_columns(columns.schema, fields)
    return FileLayout(schema.append(LOAD) if load_id else schema, columns, load_id, fields, **more)


def written(tmp_path: Path, how: FileLayout, rows: list[pa.RecordBatch]) -> list[WrittenFile]:
    writer = FileWriter(how, StorageOutput(f"file://{tmp_path}", {}, "data"))
    for batch in rows:
        writer.write(batch)
    return writer.close()


def read(tmp_path: Path, file: WrittenFile) -> pa.Table:
    return pyarrow.parquet.ParquetFile(tmp_path / "data" / file.name).read()


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 64 << 10)
    monkeypatch.setattr(file_writer, "MOST_WAITING", 256 << 10)


def test_all_rows_are_in_one_file_with_their_load(tmp_path: Path) -> None:
    (file,) = written(tmp_path, layout(), batches(2500))
    rows = read(tmp_path, file)
    expected = pa.Table.from_batches(batches(2500)).append_column(LOAD, pa.array(["g-000001-0000000a"] * 2500))
    assert rows.equals(expected)
    assert rows.schema.equals(expected.schema)
    assert file.size == (tmp_path / "data" / file.name).stat().st_size
    assert [tuple(count) for count in file.counts] == [("t", 0, 1500, 0, 1499), ("t", 1, 1000, 0, 999)]
    assert (file.rows, file.metadata().num_rows, file.values) == (2500, 2500, {})


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    assert written(tmp_path, layout(), []) == []
    assert not (tmp_path / "data").exists()


def test_files_of_a_directory_do_not_name_their_load(tmp_path: Path) -> None:
    (file,) = written(tmp_path, layout(load_id=None), batches(10))
    assert read(tmp_path, file).schema.names == SOURCE.names


@pytest.mark.usefixtures("small_groups")
def test_a_file_ends_at_the_target_size(tmp_path: Path) -> None:
    files = written(tmp_path, layout(compression="none", target_file_size=200_000), batches(6000, size=100))
    assert len(files) == 3
    assert all(200_000 <= file.size < 400_000 for file in files[:-1])
    assert all(file.metadata().num_row_groups > 1 for file in files[:-1])
    assert pa.concat_tables(read(tmp_path, file) for file in files).num_rows == 6000
    assert sum(file.rows for file in files) == 6000


@pytest.mark.usefixtures("small_groups")
def test_each_file_is_sorted(tmp_path: Path) -> None:
    how = layout(sort_by=(SortItem("partition"), SortItem("offset", descending=True)))
    files = written(tmp_path, how, batches(6000, size=100))
    assert len(files) > 1
    for file in files:
        rows = read(tmp_path, file)
        assert rows.equals(rows.sort_by([("partition", "ascending"), ("offset", "descending")]))
    assert sum(file.rows for file in files) == 6000


@pytest.mark.usefixtures("small_groups")
def test_memory_is_bounded_whatever_the_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hour is a partition of its own: thousands wait, and few are open."""
    most_open, most_waiting = 0, 0
    take_in = FileWriter._take_in

    def watched(writer: FileWriter) -> None:
        nonlocal most_open, most_waiting
        take_in(writer)
        most_open = max(most_open, sum(one.file is not None for one in writer._waiting.values()))
        most_waiting = max(most_waiting, sum(one.size for one in writer._waiting.values()))

    monkeypatch.setattr(FileWriter, "_take_in", watched)
    monkeypatch.setattr(file_writer, "MOST_OPEN", 5)
    files = written(tmp_path, layout("date", "hour"), batches(2000, size=1000))
    assert most_open <= 5
    assert most_waiting <= 256 << 10
    assert sum(file.rows for file in files) == 2000


def test_partitions_are_directories_that_duckdb_reads_back(tmp_path: Path) -> None:
    files = written(tmp_path, layout("topic", "date", load_id=None), batches(100, per_batch=50, topic="a/b c%"))
    assert {file.name.rpartition("/")[0] for file in files} == {
        f"topic=a%2Fb c%25/date=1970-01-0{day}" for day in (1, 2, 3)
    }
    assert all("date" not in read(tmp_path, file).schema.names for file in files)
    query = f'SELECT topic, date, "offset" FROM read_parquet("{tmp_path}/data/**/*.parquet", hive_partitioning=true)'
    found = duckdb.connect().execute(query).fetchall()
    assert sorted(row[2] for row in found) == sorted([*range(50)] * 2)
    assert {row[0] for row in found} == {"a/b c%"}
    assert all(row[2] // 24 == row[1].day - 1 for row in found)
    counted = itertools.chain.from_iterable(file.counts for file in files)
    assert {(count.topic, count.partition) for count in counted} == {("a/b c%", 0), ("a/b c%", 1)}


def test_files_have_statistics_a_page_index_and_checksums(tmp_path: Path) -> None:
    (file,) = written(tmp_path, layout(), batches(2000))
    group = file.metadata().row_group(0)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert (columns["offset"].statistics.min, columns["offset"].statistics.max) == (0, 999)
    assert all(column.has_offset_index and column.has_column_index for column in columns.values())
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    path = tmp_path / "data" / file.name
    damaged = bytearray(path.read_bytes())
    damaged[columns["value"].data_page_offset + 200] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(OSError, match="CRC"):
        pyarrow.parquet.ParquetFile(path, page_checksum_verification=True).read()


@pytest.mark.parametrize("topics", [["t"] * 6, ["t"] * 3 + ["u"] * 3, ["t", None, "t", None, None, None], [None] * 6])
def test_repeated_texts_are_numbered_once_and_the_file_is_the_same(
    topics: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's writer would look at the topic of each row; of the texts themselves it makes the same bytes."""
    offset = pa.array(range(6), pa.int64())
    rows = pa.table({"topic": pa.array(topics, pa.string()), "offset": offset, "load": pa.array(["l-1"] * 6)})
    how = FileLayout(rows.schema, TableColumns((), rows.schema))
    groups = [rows, pa.concat_tables([rows.slice(3), rows.slice(0, 0), rows])]
    plain, made = io.BytesIO(), io.BytesIO()
    with ParquetWriter(plain, rows.schema, **parquet_rows._settings(rows.schema, how, frozenset())) as writer:
        for group in groups:
            writer.write_table(group, group.num_rows)
    given: list[pa.Table] = []
    write_table = ParquetWriter.write_table

    def seen(writer: ParquetWriter, part: pa.Table, size: int) -> None:
        given.append(part)
        write_table(writer, part, size)

    monkeypatch.setattr(ParquetWriter, "write_table", seen)
    file = parquet_rows.ParquetRows(made, rows.schema, how, frozenset())
    for group in groups:
        file.write(group)
    file.close()
    assert made.getvalue() == plain.getvalue()
    for part, group in zip(given, groups, strict=True):
        for name in ("topic", "load"):
            assert (
                part.column(name).chunk(0).dictionary.to_pylist() == group.column(name).drop_null().unique().to_pylist()
            )


@pytest.mark.usefixtures("small_groups")
def test_rare_partitions_keep_no_rows_of_others_in_memory(tmp_path: Path) -> None:
    rows = pa.Table.from_batches(batches(20_000, size=100, per_batch=20_000))
    rare = pa.array(["rare" if offset % 500 == 0 else "t" for offset in range(20_000)])
    rows = rows.set_column(1, "topic", rare)
    writer = FileWriter(layout("topic"), StorageOutput(f"file://{tmp_path}", {}, "data"))
    for batch in rows.to_batches(1000):
        writer.write(batch)
    waiting = [part for one in writer._waiting.values() for part in one.parts]
    assert waiting
    assert sum(part.get_total_buffer_size() for part in waiting) < 2 * file_writer.ROW_GROUP_BYTES
    assert sum(file.rows for file in writer.close()) == 20_000


def test_a_writer_that_is_given_up_tells_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 1)
    writer = FileWriter(layout(), StorageOutput(f"file://{tmp_path}", {}, "data"))
    writer.write(batches(10)[0])
    writer.abort()
    with pytest.raises(pa.ArrowInvalid):
        pyarrow.parquet.ParquetFile(next((tmp_path / "data").iterdir()))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 120), max_size=6),
    st.sampled_from([(), ("partition",), ("date",), ("topic", "hour")]),
    st.sampled_from([1, 700, 1 << 20]),
    st.booleans(),
)
def test_no_row_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], by: tuple[str, ...], group: int, is_sorted: bool
) -> None:
    rows = [batch for size in sizes for batch in batches(size, per_batch=50)]
    path = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_writer, "ROW_GROUP_BYTES", group)
        patch.setattr(file_writer, "MOST_WAITING", 4 * group)
        how = layout(*by, sort_by=(SortItem("offset"),) if is_sorted else (), directories=False)
        files = written(path, how, rows)
    expected = sorted(pa.Table.from_batches(rows, SOURCE).select(["partition", "offset"]).to_pylist(), key=str)
    found = [read(path, file) for file in files]
    assert (
        sorted((row for part in found for row in part.select(["partition", "offset"]).to_pylist()), key=str) == expected
    )
    for file, part in zip(files, found, strict=True):
        for name, value in file.values.items():
            kept = part[name].cast(pa.int32()) if pa.types.is_date(part[name].type) else part[name]
            assert kept.unique().to_pylist() == [value]
        assert file.rows == part.num_rows
