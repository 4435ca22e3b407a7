"""What the tests of the sink share: a write as the driver and the tasks see it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from spark_connector.options.write_options import WriteOptions, parse_write_options
from spark_connector.worker_clients import worker_clients
from spark_connector.write import write_plan
from spark_connector.write.attempt import run_attempt
from spark_connector.write.commit_protocol import commit_batch
from spark_connector.write.task_report import Attempt, TaskReport
from spark_connector.write.write_plan import SinkNames, WritePlan, plan_write
from tests.support.committed_records import committed_values
from tests.support.kafka import Kafka
from tests.support.topics import Topic


class Query:
    """A streaming query's writes to a topic of its own, batch by batch; every call is a driver of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 2) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.id = f"query-{topic}"
        Topic(bootstrap, topic, partitions)

    def plan(self, **options: str) -> WritePlan:
        return plan_write(write_options(self, options, stream=True))

    def task(self, batch_id: int, partition: int, values: Sequence[str], **options: str) -> TaskReport:
        """One attempt at a task that writes `values`."""
        rows = pa.record_batch({"value": pa.array(values, pa.string())})
        return run_attempt(self.plan(**options), Attempt(self.id, batch_id, partition), [rows])

    def tasks(self, batch_id: int, rows: Sequence[Sequence[str]], **options: str) -> list[TaskReport]:
        return [self.task(batch_id, partition, values, **options) for partition, values in enumerate(rows)]

    def run(self, batch_id: int, rows: Sequence[Sequence[str]]) -> list[TaskReport]:
        """The whole batch."""
        reports = self.tasks(batch_id, rows)
        commit_batch(self.plan(), batch_id, reports)
        return reports

    def visible(self) -> list[str]:
        return [value.decode() for value in committed_values(self.bootstrap, self.topic)]

    def ids(self) -> dict[str, str]:
        """The transactional ids of its tasks, and the state of each."""
        names = SinkNames("pykafka-sink", self.id)
        with Cluster(self.bootstrap) as cluster:
            found = Admin(cluster).list_transactions()
        return {one.transactional_id: one.state for one in found if names.task_of(one.transactional_id) is not None}

    def left_open(self) -> list[str]:
        return [name for name, state in self.ids().items() if state == "Ongoing"]


def write_options(query: Query, options: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Of a write to the query's topic."""
    given = {"kafka.bootstrap.servers": query.bootstrap, "topic": query.topic, **options}
    return parse_write_options({name.replace("_", "."): value for name, value in given.items()}, stream=stream)


class Died(BaseException):
    """The driver is gone: no handler of the product's may see it."""


def die_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: int = 0, first: bool = False) -> None:
    """Have the function die: at its call number `after`, before it does anything unless `first`."""
    original, calls = getattr(owner, name), 0

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= after:
            return original(*args, **kwargs)
        if first:
            original(*args, **kwargs)
        raise Died

    monkeypatch.setattr(owner, name, dying)


def standing(query: Query, report: TaskReport) -> str:
    """Kafka's name for the state of the transaction that a task has reported."""
    assert report.handle is not None
    with Cluster(query.bootstrap) as cluster:
        return Admin(cluster).describe_transaction(report.handle.transactional_id).state


@pytest.fixture
def query(broker: Kafka, topic: str) -> Iterator[Query]:
    yield Query(broker.bootstrap, topic)
    write_plan._plans.clear()
    worker_clients().close()
