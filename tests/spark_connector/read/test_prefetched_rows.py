"""Micro-batches that the driver reads itself: which, and how Spark's runner takes the rows. No Spark runs here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import datasource_internal
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from spark_connector.read import spark_private
from tests.support.stream_calls import ALL, Document, Reader, ReaderOf, as_spark_does
from tests.support.topics import Topic

PlannedBatch = Callable[..., tuple[Reader, Document, Document]]


def has_rows(reader: Reader) -> bool:
    """Whether Spark's runner would ask for them; of an older Spark's reader, behind its stand-in."""
    return isinstance(getattr(reader, "_reader", reader), _SimpleStreamReaderWrapper)


@pytest.fixture
def batch(reader_of: ReaderOf, numbers: Topic) -> PlannedBatch:
    def make(**options: str) -> tuple[Reader, Document, Document]:
        reader = reader_of(numbers, **options)
        start = as_spark_does(reader.initialOffset())
        return reader, start, as_spark_does(reader.latestOffset(start, ALL))

    return make


def test_rows_go_along_with_the_plan_and_the_reader_is_itself_again(batch: PlannedBatch) -> None:
    reader, start, end = batch()
    assert not has_rows(reader)
    (task,) = reader.partitions(start, end)
    assert has_rows(reader)
    holder: Any = reader
    rows = [row for taken in holder.getCache(start, end) for row in taken.to_pylist()]
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, n) for n in range(10)] + [
        (1, n) for n in range(5)
    ]
    assert not has_rows(reader)
    again = [row for taken in reader.read(task) for row in taken.to_pylist()]
    assert again == rows, "should Spark let a task read after all"


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        pytest.param({"maxPrefetchedRecords": "15"}, 0, id="just as many"),
        pytest.param({"maxPrefetchedRecords": "14"}, 1, id="one too many, which share a task"),
        pytest.param({"maxPrefetchedRecords": "0", "minBytesPerPartition": "0"}, 2, id="a task per range"),
        pytest.param({"minPartitions": "2"}, 2, id="more tasks are asked for"),
        pytest.param({"maxRecordsPerPartition": "12"}, 2, id="smaller tasks are asked for"),
        pytest.param({"minPartitions": "1"}, 0, id="one task is what was asked for"),
    ],
)
def test_what_the_driver_reads(
    batch: PlannedBatch,
    options: dict[str, str],
    tasks: int,
) -> None:
    reader, start, end = batch(**options)
    planned = reader.partitions(start, end)
    assert (0 if has_rows(reader) else len(planned)) == tasks
    assert sum(taken.num_rows for task in planned for taken in reader.read(task)) == 15


def test_a_batch_without_rows_has_no_task(batch: PlannedBatch) -> None:
    reader, start, end = batch(filterKeyPrefix="no such key")
    assert reader.partitions(start, end) == []
    assert not has_rows(reader)


def test_without_the_hook_tasks_read(
    batch: PlannedBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(datasource_internal, "_SimpleStreamReaderWrapper")
    spark_private._class_with_rows.cache_clear()
    reader, start, end = batch()
    (task,) = reader.partitions(start, end)
    spark_private._class_with_rows.cache_clear()
    assert not has_rows(reader)
    assert sum(taken.num_rows for taken in reader.read(task)) == 15
