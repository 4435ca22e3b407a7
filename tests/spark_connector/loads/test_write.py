"""The count of what was written."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet
import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.footers import Count
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.loads.write import _counted, check_rows

RECORD = LoadRecord("g-000001-abc", "file:///out", "parquet", "files", 0, (LoadRange("t", 0, 0, 5, None),))


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
