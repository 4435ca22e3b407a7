"""A batch write: nobody comes back to it, so its end is made whole or undone at once. One with a name is decided."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_connector.errors import ConnectorError
from spark_connector.write import commit_protocol
from spark_connector.write.attempt import run_attempt
from spark_connector.write.commit_protocol import abort_batch_write, commit_batch_write
from spark_connector.write.task_report import Attempt, TaskReport
from spark_connector.write.write_plan import WritePlan, named_sink, plan_write
from tests.spark_connector.write.conftest import Died, Query, die_at, standing, write_options

_task_ids = itertools.count()


def write_task(query: Query, partition: int, values: Sequence[str]) -> TaskReport:
    rows = pa.record_batch({"value": pa.array(values, pa.string())})
    return run_attempt(query.plan(), Attempt(query.id, None, partition, task_id=next(_task_ids)), [rows])


def test_retried_tasks_are_there_once_and_only_after_the_commit(query: Query) -> None:
    reports = [write_task(query, 0, ["a0"]), write_task(query, 1, ["lost"]), write_task(query, 2, [])]
    lost, reports[1] = reports[1], write_task(query, 1, ["b0"])
    assert query.visible() == []
    assert standing(query, lost) == "Ongoing"
    commit_batch_write(query.plan(), reports)
    assert query.visible() == ["a0", "b0"]


def test_a_task_that_begins_after_the_abort_opens_nothing(query: Query) -> None:
    abort_batch_write(query.plan(), query.id, [])
    with pytest.raises(ConnectorError, match="PYKAFKA_SINK_ABORTED"):
        write_task(query, 0, ["zombie"])
    assert query.left_open() == []


def test_an_abort_frees_readers_at_once_and_fences_tasks(query: Query) -> None:
    reports = [write_task(query, 0, ["a0"]), write_task(query, 1, ["b0"])]
    abort_batch_write(query.plan(), query.id, reports[:1])
    assert query.left_open() == []
    with pytest.raises(ConnectorError, match="TRANSACTION_LOST.*Nothing is visible"):
        commit_batch_write(query.plan(), reports)
    assert query.visible() == []


class Named:
    """Writes under a `txnAppId`, inside foreachBatch of a query or, with a version, outside of any."""

    def __init__(self, query: Query) -> None:
        self.query = query

    def tasks(
        self, batch: int, *values: str, run: int = 0, name: str = "copy", version: bool = False
    ) -> list[TaskReport]:
        sink = named_sink(name, None if version else self.query.id) + (self.query.id if version else "")
        rows = [pa.record_batch({"value": [value]}) for value in values]
        plan = self.plan(batch if version else None, name)
        return [run_attempt(plan, Attempt(sink, batch, n, run=run), [one]) for n, one in enumerate(rows)]

    def plan(self, version: int | None = None, name: str = "copy") -> WritePlan:
        given = {"txnAppId": name} | ({} if version is None else {"txnVersion": str(version)})
        return plan_write(write_options(self.query, given, stream=False))

    def write(
        self, batch: int, *values: str, run: int = 0, name: str = "copy", version: bool = False
    ) -> list[TaskReport]:
        reports = self.tasks(batch, *values, run=run, name=name, version=version)
        commit_batch_write(self.plan(batch if version else None, name), reports)
        return reports


@pytest.fixture
def named(query: Query) -> Named:
    return Named(query)


def test_a_batch_that_is_repeated_by_a_later_run_is_written_once(named: Named) -> None:
    named.write(0, "a", "b", run=1)
    named.write(1, "c", "d", run=1)
    again = named.write(1, "c", "d", run=2)
    assert [report.decided for report in again] == [1, 1]
    named.write(2, "e", run=2)
    assert named.query.visible() == ["a", "b", "c", "d", "e"]


def test_what_a_dead_driver_left_open_is_not_seen_and_does_not_stay(named: Named) -> None:
    named.tasks(0, "a", "b", run=1)
    named.write(0, "a", "b", run=2)
    assert named.query.visible() == ["a", "b"]


def test_writes_of_one_function_need_names_of_their_own(named: Named) -> None:
    both = named.tasks(0, "x", run=1)
    named.write(0, "a", run=1)
    with pytest.raises(ConnectorError, match="PYKAFKA_SINK_NAME_TWICE"):
        named.tasks(0, "b", run=1)
    with pytest.raises(ConnectorError, match="PYKAFKA_SINK_NAME_TWICE"):
        commit_batch_write(named.plan(), both)
    named.write(0, "b", run=1, name="other")
    assert named.query.visible() == ["a", "b"]


def test_a_version_is_written_once_and_lower_ones_are_there_already(named: Named) -> None:
    named.write(5, "a", version=True)
    for version in (5, 3):
        (report,) = named.write(version, "again", version=True)
        assert report.decided == 5
    named.write(9, "b", version=True)
    assert named.query.visible() == ["a", "b"]
    named.write(7, "x")
    with pytest.raises(ConnectorError, match="SUPERSEDED"):  # of a batch of a query that would be a hole
        named.write(6, "y")


@pytest.mark.parametrize("version", [False, True])
def test_an_abort_frees_readers_of_what_killed_tasks_of_a_named_write_have_open(named: Named, version: bool) -> None:
    reports = named.tasks(0, "a", "b", version=version)
    abort_batch_write(named.plan(0 if version else None), "", reports[:1])
    assert [standing(named.query, report) for report in reports] == ["CompleteAbort", "Empty"]  # fenced: a new epoch
    named.write(0, "a", "b", version=version)
    assert named.query.visible() == ["a", "b"]


def test_an_abort_of_a_version_before_any_task_has_reported_finds_them_by_the_name(named: Named) -> None:
    name = f"all-{named.query.topic}"
    plan = named.plan(4, name)
    rows = pa.record_batch({"value": ["a"]})
    report = run_attempt(plan, Attempt(named_sink(name, None), 4, 0), [rows])
    abort_batch_write(plan, "", [])
    assert standing(named.query, report) == "Empty"


def test_an_abort_spares_an_earlier_version_that_is_decided(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    (decided,) = named.tasks(0, "a", version=True)
    with monkeypatch.context() as patched:
        die_at(patched, commit_protocol._Sink, "commit_all")
        with pytest.raises(Died):
            commit_batch_write(named.plan(0), [decided])
    later = named.tasks(1, "b", "c", version=True)
    abort_batch_write(named.plan(1), "", later[:1])
    assert [standing(named.query, one) for one in (decided, *later)] == ["Ongoing", "CompleteAbort", "Empty"]
