"""The readers behind the audit of the kill matrix: what counts for a reader of the output, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from broker.storage.storage import Storage, open_storage
from tests.support.job_output import rows_of_load, rows_of_read, rows_of_stream


@pytest.fixture
def output(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "output"))


def write(output: Storage, path: str, offset: int) -> None:
    """A file of one row."""
    row = {"topic": "t", "partition": 0, "offset": offset, "key": b"k", "value": b"v"}
    with output.open_output(path) as file:
        pyarrow.parquet.write_table(pa.Table.from_pylist([row]), file)


def log(output: Storage, name: str, *files: str, action: str = "add") -> None:
    """An entry of the log of Spark's file sink."""
    lines = [json.dumps({"path": output.url_of(file), "action": action}) for file in files]
    output.create(f"_spark_metadata/{name}", "\n".join(["v1", *lines]).encode())


def test_a_read_counts_only_when_spark_says_that_it_is_finished(output: Storage) -> None:
    write(output, "part-0.parquet", 0)
    write(output, "_temporary/part-1.parquet", 1)
    with pytest.raises(AssertionError, match="not finished"):
        rows_of_read(output)
    output.create("_SUCCESS", b"")
    assert [row.offset for row in rows_of_read(output)] == [0]


def test_of_loads_the_published_ones_count(output: Storage) -> None:
    write(output, "load=g-1-a/part-0.parquet", 0)
    write(output, "load=g-2-b/part-0.parquet", 1)
    write(output, "_staging/files/g-3-c/data/part-0.parquet", 2)
    assert [row.offset for row in rows_of_load(output)] == [0, 1]


def test_of_a_stream_the_files_count_that_its_log_names(output: Storage) -> None:
    for number in range(3):
        write(output, f"part-{number}.parquet", number)
    log(output, "0", "part-0.parquet")
    log(output, "1", "part-2.parquet")
    output.create("_spark_metadata/.2.tmp", b"half")
    assert [row.offset for row in rows_of_stream(output)] == [0, 2]


def test_a_file_that_the_log_of_a_stream_names_twice_counts_twice(output: Storage) -> None:
    write(output, "part-0.parquet", 0)
    log(output, "0", "part-0.parquet")
    log(output, "1", "part-0.parquet")
    assert [row.offset for row in rows_of_stream(output)] == [0, 0]


def test_a_compacted_log_stands_for_all_entries_before_it(output: Storage) -> None:
    names = [f"part-{number}.parquet" for number in range(12)]
    for number, name in enumerate(names):
        write(output, name, number)
        log(output, f"{number}.compact" if number == 9 else str(number), *(names[:10] if number == 9 else [name]))
    assert sorted(row.offset for row in rows_of_stream(output)) == list(range(12))


def test_no_output_yet_is_no_row(output: Storage) -> None:
    assert rows_of_load(output) == rows_of_stream(output) == []


def test_a_log_entry_that_takes_files_away_is_not_passed_over(output: Storage) -> None:
    log(output, "0", "part-0.parquet", action="delete")
    with pytest.raises(AssertionError, match="delete"):
        rows_of_stream(output)
