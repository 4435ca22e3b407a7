"""Reading a load's ranges from a session that knows no Python data source, and the count of what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet
import pytest

from broker.protocol.topic_partition import TopicPartition
from pyspark_pykafka import DefaultSource
from spark_connector.loads.footers import Count
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.loads.write import _counted, check_rows, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD = LoadRecord("g-000001-abc", "file:///out", "parquet", "files", 0, (LoadRange("t", 0, 0, 5, None),))


class Session:
    """Answers `read.format(…).options(…).load()` by failing until the source is registered."""

    def __init__(self, failure: str) -> None:
        self.read = MagicMock()
        self.read.format.return_value.options.return_value.load.side_effect = self._load
        self.dataSource = MagicMock()
        self.frame = MagicMock()
        self._failure = failure

    def _load(self) -> Any:
        if not self.dataSource.register.called:
            raise RuntimeError(self._failure)
        return self.frame


def test_a_session_that_cannot_find_the_source_is_told_of_it() -> None:
    session = Session("org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find …")
    frame = read_ranges(cast("SparkSession", session), RECORD, {})
    session.dataSource.register.assert_called_once_with(DefaultSource)
    assert cast("object", frame) is session.frame


def test_any_other_failure_is_raised_as_it_is() -> None:
    session = Session("no broker of bootstrap.servers could be reached")
    with pytest.raises(RuntimeError, match="no broker"):
        read_ranges(cast("SparkSession", session), RECORD, {})
    session.dataSource.register.assert_not_called()


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (Count("t", 0, 5, 0, 4), None),
        (Count("t", 0, 3, 1, 4), None),  # gaps are compaction and markers
        (Count("t", 0, 6, 0, 4), "asked for offsets 0 to 4 of t-0, but the output holds 6 rows"),
        (Count("t", 0, 5, 0, 5), "with offsets 0 to 5"),
        (Count("t", 1, 1, 0, 0), "asked for nothing of t-1"),
    ],
)
def test_rows_that_do_not_add_up_are_refused(count: Count, why: str | None) -> None:
    written = {TopicPartition(count.topic, count.partition): count}
    if why is None:
        check_rows(RECORD, written)
    else:
        with pytest.raises(LoadError, match=why):
            check_rows(RECORD, written)


def test_counts_of_tasks_are_compared_with_their_files() -> None:
    """No row of theirs goes through Spark."""
    footer = pa.BufferOutputStream()
    pa.parquet.write_metadata(pa.schema([]), footer)
    file = WrittenFile("a", 1, footer.getvalue().to_pybytes(), (Count("t", 0, 5, 0, 4),), {})
    with pytest.raises(LoadError, match="the tasks counted 5 rows, but their files hold 0"):
        _counted(RECORD, [file])
