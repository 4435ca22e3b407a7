"""A write without a query: nobody comes back to it, so its end is made whole or undone at once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_connector.errors import ConnectorError
from spark_connector.write.attempt import Attempt, TaskReport, run_attempt
from spark_connector.write.commit import abort_batch_write, commit_batch_write
from tests.spark_connector.write.conftest import Query, standing


def write_task(query: Query, partition: int, values: Sequence[str]) -> TaskReport:
    rows = pa.record_batch({"value": pa.array(values, pa.string())})
    return run_attempt(query.plan(), Attempt(query.id, None, partition), [rows])


def test_retried_tasks_are_there_once_and_only_after_the_commit(query: Query) -> None:
    reports = [write_task(query, 0, ["a0"]), write_task(query, 1, ["lost"]), write_task(query, 2, [])]
    reports[1] = write_task(query, 1, ["b0"])
    assert query.visible() == []
    commit_batch_write(query.plan(), reports)
    assert query.visible() == ["a0", "b0"]


def test_a_task_that_begins_after_the_abort_opens_nothing(query: Query) -> None:
    abort_batch_write(query.plan(), query.id, 2)
    with pytest.raises(ConnectorError, match="PYKAFKA_SINK_ABORTED"):
        write_task(query, 0, ["zombie"])
    assert standing(query, 0) == "Empty"


def test_an_abort_frees_readers_at_once_and_fences_tasks(query: Query) -> None:
    reports = [write_task(query, 0, ["a0"]), write_task(query, 1, ["b0"])]
    abort_batch_write(query.plan(), query.id, 2)
    assert [standing(query, partition) for partition in (0, 1)] == ["Empty", "Empty"]
    with pytest.raises(ConnectorError, match="TRANSACTION_LOST.*Nothing is visible"):
        commit_batch_write(query.plan(), reports)
    assert query.visible() == []
