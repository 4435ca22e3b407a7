"""Exactly once over every place where a driver or a task can die, by what a reader of committed data sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import TransactionDescription
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.transaction_requests import TransactionHandle, end_transaction, end_transactions
from spark_connector.errors import ConnectorError
from spark_connector.write import commit_protocol as commit_module
from spark_connector.write import decision_log
from spark_connector.write.commit_protocol import abort_batch, commit_batch
from spark_connector.write.decision import may_withdraw
from spark_connector.write.decision_log import DecisionLog
from spark_connector.write.task_report import TaskReport
from spark_connector.write.write_plan import SinkNames
from tests.spark_connector.write.conftest import Died, Query, die_at, standing
from tests.support.committed_records import committed_values
from tests.support.topics import Topic
from tests.support.waiting import eventually

ROWS = (["a0", "a1"], ["b0"], ["c0", "c1", "c2"])
ALL = ["a0", "a1", "b0", "c0", "c1", "c2"]


def die_between_ends(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Have the driver die when so many of a batch's transactions are committed."""

    def dying(cluster: Cluster, handles: Sequence[TransactionHandle], *, commit: bool) -> Any:
        if len(handles) == 1:
            return end_transactions(cluster, handles, commit=commit)  # the first of all, alone
        end_transactions(cluster, handles[:after], commit=commit)
        raise Died

    monkeypatch.setattr(commit_module, "end_transactions", dying)


def test_nothing_is_visible_before_the_commit_and_all_after_it(query: Query) -> None:
    reports = query.tasks(0, ROWS)
    assert query.visible() == []
    commit_batch(query.plan(), 0, reports)
    assert query.visible() == ALL
    assert [report.rows for report in reports] == [2, 1, 3]


def test_batches_follow_each_other_and_tasks_without_rows_open_nothing(query: Query) -> None:
    query.run(0, ROWS)
    reports = query.run(1, [[], ["d0"], []])
    assert [report.handle is None for report in reports] == [True, False, True]
    query.run(2, [[], []])
    query.run(3, [["e0"]])
    assert query.visible() == [*ALL, "d0", "e0"]


DEATHS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the take-over": lambda m: die_at(m, DecisionLog, "take_over"),
    "before the decision": lambda m: die_at(m, DecisionLog, "record"),
    "after the decision": lambda m: die_at(m, DecisionLog, "record", first=True),
    "after the first end": lambda m: die_between_ends(m, 1),
    "after the second end": lambda m: die_between_ends(m, 2),
    "before the mark": lambda m: die_at(m, DecisionLog, "mark_done"),
    "before Spark knows": lambda m: die_at(m, DecisionLog, "mark_done", first=True),
}


@pytest.mark.parametrize("place", DEATHS)
def test_a_driver_that_dies_is_followed_by_one_that_makes_the_batch_whole(
    query: Query, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    reports = query.tasks(0, ROWS)
    with monkeypatch.context() as patch:
        DEATHS[place](patch)
        with pytest.raises(Died):
            commit_batch(query.plan(), 0, reports)
    query.run(0, [*ROWS[:2], [], ROWS[2]])  # the same rows, dealt to tasks in another way
    assert query.visible() == ALL
    query.run(1, [["d0"]])
    assert query.visible() == [*ALL, "d0"]


def test_a_driver_that_dies_while_it_decides_holds_the_next_one_up_only_until_that_times_out(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "_TIMEOUT_MS", 4000)
    reports = query.tasks(0, ROWS)
    with monkeypatch.context() as patch:
        die_at(patch, decision_log, "end_transaction")
        with pytest.raises(Died):
            commit_batch(query.plan(), 0, reports)
    query.run(0, ROWS)
    assert query.visible() == ALL


def test_a_batch_that_is_finished_twice_is_there_once(query: Query) -> None:
    reports = query.run(0, ROWS)
    commit_batch(query.plan(), 0, reports)
    again = query.run(0, ROWS)
    assert [report.decided for report in again] == [0, 0, 0]
    assert query.visible() == ALL


@pytest.mark.parametrize("rows", [["x", "y"], ["y"]], ids=["both", "only bad ones"])
def test_a_batch_with_rows_for_the_bad_topic_is_finished_twice_and_there_once(query: Query, rows: list[str]) -> None:
    bad = f"0-{query.topic}"  # sorts before the topic
    Topic(query.bootstrap, bad, 2)
    schema = '{"type": "enum", "name": "e", "symbols": ["x"]}'
    options = {"valueFormat": "avro", "valueColumns": "value", "valueSchema": schema, "badRowsTopic": bad}
    reports = query.tasks(0, [rows], **options)
    commit_batch(query.plan(**options), 0, reports)
    commit_batch(query.plan(**options), 0, reports)
    commit_batch(query.plan(**options), 0, query.tasks(0, [rows], **options))
    found = [len(list(committed_values(query.bootstrap, name))) for name in (query.topic, bad)]
    assert found == [rows.count("x"), 1]
    with Cluster(query.bootstrap) as cluster:
        recorded = DecisionLog(cluster, SinkNames("pykafka-sink", query.id), query.topic).read()
    assert recorded is not None
    assert recorded.topic == query.topic  # where the next driver waits for a decision


def test_a_decided_batch_is_finished_though_the_repeated_one_has_no_rows(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = query.tasks(0, ROWS)
    with monkeypatch.context() as patch:
        die_between_ends(patch, 1)
        with pytest.raises(Died):
            commit_batch(query.plan(), 0, reports)
    query.run(0, [[], []])
    assert query.visible() == ALL


def test_a_task_that_goes_on_after_the_abort_leaves_nothing(query: Query) -> None:
    reports = query.tasks(0, ROWS)
    abort_batch(query.plan(), 0, reports[:2])
    late = query.task(0, 0, ["zombie"])
    assert late.handle is not None
    query.run(0, ROWS)
    assert query.visible() == ALL
    assert query.left_open() == []


def test_what_tasks_report_is_committed_whatever_the_committing_process_would_have_planned(query: Query) -> None:
    reports = query.tasks(0, ROWS)
    commit_batch(query.plan(delivery="at-least-once"), 0, reports)
    assert query.visible() == ALL


def test_a_query_that_was_exactly_once_is_not_continued_at_least_once(query: Query) -> None:
    query.run(0, ROWS)
    with pytest.raises(ConnectorError, match=r"DELIVERY_CHANGED.*exactly-once up to batch 0.*delete the groups"):
        query.task(1, 0, ["d0"], delivery="at-least-once")
    assert query.visible() == ALL
    with Cluster(query.bootstrap) as cluster:
        names = SinkNames("pykafka-sink", query.id)
        for group in (names.group(), names.group_of_done):
            Admin(cluster).delete_group(group)
    query.task(1, 0, ["d0"], delivery="at-least-once")
    assert query.visible() == [*ALL, "d0"]


def test_an_abort_does_not_touch_what_is_decided(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = query.tasks(0, ROWS)
    with monkeypatch.context() as patch:
        die_between_ends(patch, 1)
        with pytest.raises(Died):
            commit_batch(query.plan(), 0, reports)
    abort_batch(query.plan(), 0, reports)
    assert query.run(0, ROWS)[0].decided == 0
    assert query.visible() == ALL


def test_what_more_tasks_of_an_earlier_attempt_left_open_is_aborted(query: Query) -> None:
    query.tasks(0, [*ROWS, ["x"], ["y"]])
    commit_module._swept.clear()
    query.run(0, [[value for values in ROWS for value in values]])
    assert query.visible() == ALL
    assert query.left_open() == []


def test_what_a_failed_batch_left_open_is_aborted_by_the_next_one_of_the_same_process(query: Query) -> None:
    query.run(0, ROWS)
    reports = query.tasks(1, [*ROWS, ["x"]])
    abort_batch(query.plan(), 1, reports[:1])  # the others had not reported
    query.run(1, [[value for values in ROWS for value in values]])
    assert query.left_open() == []


def test_the_first_decision_is_waited_for_while_it_is_being_made(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = query.tasks(0, ROWS)
    fetch = GroupOffsets.committed
    asked: list[object] = []

    def fetch_and_note(offsets: GroupOffsets, *args: Any, **kwargs: Any) -> Any:
        asked.append(None)
        return fetch(offsets, *args, **kwargs)

    def look_while_it_ends(cluster: Cluster, driver: TransactionHandle, *, commit: bool) -> None:
        monkeypatch.setattr(GroupOffsets, "committed", fetch_and_note)
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(query.task, 0, 0, ROWS[0])
            eventually(lambda: len(asked) >= 3 or late.done())
            end_transaction(cluster, driver, commit=commit)
            assert late.result().decided == 0

    monkeypatch.setattr(decision_log, "end_transaction", look_while_it_ends)
    commit_batch(query.plan(), 0, reports)
    assert query.visible() == ALL


def test_a_query_with_a_copied_checkpoint_does_not_take_the_others_batch_for_its_own(query: Query, topic: str) -> None:
    other = Topic(query.bootstrap, f"{topic}-copy").name
    query.run(0, ROWS)
    copied = query.tasks(0, ROWS, topic=other)
    with pytest.raises(ConnectorError, match=rf"batch 0 was already written to topic '{topic}'.*transactionalIdPrefix"):
        commit_batch(query.plan(topic=other), 0, copied)
    own = {"topic": other, "transactionalIdPrefix": "copy"}
    commit_batch(query.plan(**own), 0, query.tasks(0, ROWS, **own))
    assert len(committed_values(query.bootstrap, other)) == len(ALL)


@pytest.mark.parametrize("bumps", [1, 2])
def test_a_decision_is_withdrawn_however_the_broker_numbers_its_abort(
    query: Query, monkeypatch: pytest.MonkeyPatch, bumps: int
) -> None:
    """By the next epoch, or by the one after it (Kafka 4.0.0)."""
    reports = query.tasks(0, ROWS)
    with monkeypatch.context() as patch:
        die_at(patch, DecisionLog, "record", first=True)
        with pytest.raises(Died):
            commit_batch(query.plan(), 0, reports)
    lost = commit_module._handle_of(reports[1])
    with Cluster(query.bootstrap) as cluster:
        end_transaction(cluster, lost, commit=False)
    describe = Admin.describe_transaction

    def describe_as_if_it_had_timed_out(admin: Admin, name: str) -> TransactionDescription:
        found = describe(admin, name)
        return found._replace(producer_epoch=lost.epoch + bumps) if name == lost.transactional_id else found

    monkeypatch.setattr(Admin, "describe_transaction", describe_as_if_it_had_timed_out)
    monkeypatch.setattr(commit_module, "transaction_version", lambda cluster: 2)
    with pytest.raises(ConnectorError, match="BATCH_WITHDRAWN"):
        commit_batch(query.plan(), 0, query.tasks(0, ROWS))
    assert query.visible() == []
    query.run(0, ROWS)
    assert query.visible() == ALL


class TestTimeOut:
    """A transaction that is open too long; the broker looks every 200 ms."""

    @pytest.fixture
    def short(self) -> dict[str, str]:
        return {"kafka_transaction_timeout_ms": "3000"}

    def wait(self, query: Query, report: TaskReport) -> None:
        eventually(lambda: standing(query, report) == "CompleteAbort")

    def test_before_the_decision_the_batch_fails_whole(self, query: Query, short: dict[str, str]) -> None:
        reports = [query.task(0, 0, ROWS[0]), query.task(0, 1, ROWS[1], **short)]
        self.wait(query, reports[1])
        with pytest.raises(ConnectorError, match=r"TRANSACTION_LOST.*task 1 of batch 0 \(1 rows.*Nothing is visible"):
            commit_batch(query.plan(), 0, reports)
        abort_batch(query.plan(), 0, reports)
        query.run(0, ROWS)
        assert query.visible() == ALL

    def test_after_the_decision_and_before_any_end_it_is_withdrawn(
        self, query: Query, short: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reports = [query.task(0, 0, ROWS[0]), query.task(0, 1, ROWS[1], **short)]
        with monkeypatch.context() as patch:
            die_at(patch, DecisionLog, "record", first=True)
            with pytest.raises(Died):
                commit_batch(query.plan(), 0, reports)
        self.wait(query, reports[1])
        skipping = query.tasks(0, ROWS)
        assert [report.decided for report in skipping] == [0, 0, 0]
        with pytest.raises(ConnectorError, match=r"BATCH_WITHDRAWN.*Nothing of it is visible.*restart"):
            commit_batch(query.plan(), 0, skipping)
        assert query.visible() == []
        query.run(0, ROWS)
        assert query.visible() == ALL

    def test_a_decision_is_not_withdrawn_when_the_driver_before_wakes_up_and_commits(
        self, query: Query, short: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reports = [query.task(0, 0, ROWS[0]), query.task(0, 1, ROWS[1], **short)]
        with monkeypatch.context() as patch:
            die_at(patch, DecisionLog, "record", first=True)
            with pytest.raises(Died):
                commit_batch(query.plan(), 0, reports)
        self.wait(query, reports[1])
        look = may_withdraw

        def look_and_be_overtaken(*args: Any) -> bool:
            found = look(*args)
            with Cluster(query.bootstrap) as cluster:
                end_transaction(cluster, commit_module._handle_of(reports[0]), commit=True)
            return found

        monkeypatch.setattr(commit_module, "may_withdraw", look_and_be_overtaken)
        with pytest.raises(ConnectorError, match=r"BATCH_INCOMPLETE.*tasks 1 \(1 rows\)"):
            commit_batch(query.plan(), 0, query.tasks(0, ROWS))
        assert query.visible() == ROWS[0]

    def test_between_two_ends_it_is_said_what_is_missing_as_long_as_it_is(
        self, query: Query, short: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reports = [query.task(0, 0, ROWS[0]), query.task(0, 1, ROWS[1], **short), query.task(0, 2, ROWS[2])]
        with monkeypatch.context() as patch:
            die_between_ends(patch, 1)
            with pytest.raises(Died):
                commit_batch(query.plan(), 0, reports)
        self.wait(query, reports[1])
        for _ in range(2):
            skipping = query.tasks(0, ROWS)
            missing = (
                r"BATCH_INCOMPLETE.*1 of its 3 transactions.*up to 1 rows are missing, those of tasks 1 \(1 rows\)"
            )
            with pytest.raises(ConnectorError, match=missing):
                commit_batch(query.plan(), 0, skipping)
            abort_batch(query.plan(), 0, skipping)
            assert query.visible() == [*ROWS[0], *ROWS[2]]

    def test_what_is_lost_right_after_our_own_decision_withdraws_it(
        self, query: Query, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reports = query.tasks(0, ROWS)
        record = DecisionLog.record

        def record_and_lose(log: DecisionLog, driver: TransactionHandle, *args: Any) -> None:
            record(log, driver, *args)
            if not args[0].withdrawn:
                end_transaction(log._cluster, commit_module._handle_of(reports[0]), commit=False)

        with monkeypatch.context() as patch:
            patch.setattr(DecisionLog, "record", record_and_lose)
            with pytest.raises(ConnectorError, match="BATCH_WITHDRAWN"):
                commit_batch(query.plan(), 0, reports)
        assert query.visible() == []
        query.run(0, ROWS)
        assert query.visible() == ALL


class TestTwoDrivers:
    """Two drivers of one query at once: one of them fails, nothing is there twice, nothing is missing."""

    def test_the_older_one_cannot_decide_any_more(self, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        older = query.tasks(0, ROWS)
        record = DecisionLog.record

        def be_overtaken(log: DecisionLog, *args: Any) -> None:
            monkeypatch.setattr(DecisionLog, "record", record)
            query.run(0, ROWS)
            record(log, *args)

        monkeypatch.setattr(DecisionLog, "record", be_overtaken)
        with pytest.raises(ConnectorError, match="SUPERSEDED"):
            commit_batch(query.plan(), 0, older)
        abort_batch(query.plan(), 0, older)
        assert query.visible() == ALL

    @pytest.mark.parametrize("newer_first", [False, True])
    def test_the_first_to_decide_wins_and_the_other_finishes_it(self, query: Query, newer_first: bool) -> None:
        older, newer = query.tasks(0, ROWS), query.tasks(0, ROWS)
        for reports in (newer, older) if newer_first else (older, newer):
            commit_batch(query.plan(), 0, reports)
        assert query.visible() == ALL
        assert query.left_open() == []

    def test_one_that_is_a_batch_behind_fails_and_takes_nothing_back(self, query: Query) -> None:
        behind = query.tasks(0, ROWS)
        query.run(0, ROWS)
        query.run(1, [["d0"]])
        with pytest.raises(ConnectorError, match="SUPERSEDED"):
            commit_batch(query.plan(), 0, behind)
        abort_batch(query.plan(), 0, behind)
        late = query.tasks(0, ROWS)
        assert {report.decided for report in late} == {1}
        with pytest.raises(ConnectorError, match="SUPERSEDED.*another driver.*checkpoint was restored"):
            commit_batch(query.plan(), 0, late)
        assert query.visible() == [*ALL, "d0"]

    def test_one_that_repeats_a_batch_while_the_other_writes_the_next_sees_that_it_is_done(self, query: Query) -> None:
        query.run(0, ROWS)
        next_batch = query.tasks(1, [["d0"], ["d1"]])
        query.run(0, ROWS)
        commit_batch(query.plan(), 1, next_batch)
        assert query.visible() == [*ALL, "d0", "d1"]
