"""Attempts at one task: each on its own, whenever it wakes up, and few ids for all of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from broker.client.cluster import Cluster
from broker.client.transaction_errors import TransactionError
from broker.client.transaction_requests import end_transaction
from spark_connector.write import commit_protocol as commit_module
from spark_connector.write.commit_protocol import commit_batch
from spark_connector.write.decision import ATTEMPT_IDS
from spark_connector.write.decision_log import DecisionLog
from spark_connector.write.rows_writer import RowsWriter
from tests.spark_connector.write.conftest import Died, Query, die_at, standing


def test_attempts_at_a_task_touch_each_other_only_when_one_of_them_is_decided(query: Query) -> None:
    attempts = [query.task(0, 0, ["a0"]) for _ in range(3)]
    assert {standing(query, attempt) for attempt in attempts} == {"Ongoing"}
    commit_batch(query.plan(), 0, [attempts[1]])
    assert query.visible() == ["a0"]
    assert standing(query, attempts[0]) == "Empty"
    for lost in (attempts[0], attempts[2]):
        assert lost.handle is not None
        with Cluster(query.bootstrap) as cluster, pytest.raises(TransactionError):
            end_transaction(cluster, lost.handle, commit=True)
    assert query.left_open() == []


def test_attempts_of_many_batches_and_drivers_use_few_ids(query: Query) -> None:
    for batch_id in range(12):
        query.tasks(batch_id, [["lost"], ["lost"]])  # of a driver that died
        query.run(batch_id, [["a"], ["b"]])
    assert query.visible() == ["a"] * 12 + ["b"] * 12
    assert query.left_open() == []
    assert len(query.ids()) == 2 * (ATTEMPT_IDS + 1)


def test_an_attempt_that_fails_ends_its_transaction_itself(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        die_at(patch, RowsWriter, "finish", first=True)
        with pytest.raises(Died):
            query.task(0, 0, ["a0"])
    assert query.left_open() == []
    query.run(0, [["a0"]])
    assert query.visible() == ["a0"]


class Zombie:
    """An attempt in a process of its own that stands still before it takes a transactional id, until it is let go."""

    def __init__(self, query: Query, before: str) -> None:
        """`before`: which id, "number" or "own"."""
        program = [sys.executable, "-c", _ZOMBIE, query.bootstrap, query.topic, query.id, before]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "paused\n"

    def let_go(self) -> str:
        """Wait until it has ended; what it says."""
        said, _ = self._process.communicate("\n", timeout=60)
        return said.strip()


_ZOMBIE = """
import sys
import pyarrow as pa
from spark_connector.options.write_options import parse_write_options
from spark_connector.write import attempt
from spark_connector.write.write_plan import plan_write

bootstrap, topic, query, before = sys.argv[1:]
take = attempt.init_transactional_id

def pause(cluster, name, **more):
    if before == "number" or name.count("-") > f"pykafka-sink-{query}-0".count("-"):
        attempt.init_transactional_id = take
        print("paused", flush=True)
        sys.stdin.readline()
    return take(cluster, name, **more)

attempt.init_transactional_id = pause
attempt._LOOK_AGAIN_S = 0  # the pause is as long as the driver needs, whatever the machine
plan = plan_write(parse_write_options({"kafka.bootstrap.servers": bootstrap, "topic": topic}, stream=True))
rows = pa.record_batch({"value": ["zombie"]})
report = attempt.run_attempt(plan, attempt.Attempt(query, 0, 0, 0), [rows])
print("wrote" if report.handle else f"found {report.decided}")
"""


@pytest.mark.parametrize(
    ("before", "wakes"),
    [("own", "before the decision"), ("own", "between decision and end"), ("number", "in the next batch")],
)
def test_an_attempt_that_wakes_up_late_hurts_no_other(
    query: Query, monkeypatch: pytest.MonkeyPatch, before: str, wakes: str
) -> None:
    """Between its look for a decision and its transactional id it stands still; meanwhile the task is repeated."""
    zombie = Zombie(query, before)
    said: list[str] = []

    def wake(original: Callable[..., Any]) -> Callable[..., Any]:
        def awake(*given: Any, **named: Any) -> Any:
            result = original(*given, **named)
            if not said:
                said.append(zombie.let_go())
            return result

        return awake

    reports = query.tasks(0, [["a0"], ["b0"]])
    with monkeypatch.context() as patch:
        if wakes == "before the decision":
            patch.setattr(commit_module._Sink, "check_open", wake(commit_module._Sink.check_open))
        elif wakes == "between decision and end":
            patch.setattr(DecisionLog, "record", wake(DecisionLog.record))
        commit_batch(query.plan(), 0, reports)
    following = query.tasks(1, [["d0"], ["d1"]])
    if not said:
        said.append(zombie.let_go())
    commit_batch(query.plan(), 1, following)
    query.run(2, [["e0"]])
    assert query.visible() == ["a0", "b0", "d0", "d1", "e0"]
    assert query.left_open() == []
    assert said == ["wrote" if wakes == "before the decision" else "found 0"]
