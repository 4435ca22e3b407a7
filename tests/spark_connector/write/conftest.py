"""What the tests of the sink share: a write as the driver and the tasks see it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from spark_connector.options.write_options import parse_write_options
from spark_connector.worker_clients import worker_clients
from spark_connector.write import plan
from spark_connector.write.attempt import Attempt, TaskReport, run_attempt
from spark_connector.write.commit import commit_batch
from spark_connector.write.names import SinkNames
from spark_connector.write.plan import WritePlan, plan_write
from tests.support.broker_process import BrokerProcess
from tests.support.committed_records import committed_values
from tests.support.topics import Topic


class Query:
    """A streaming query's writes to a topic of its own, batch by batch; every call is a driver of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 2) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.id = f"query-{topic}"
        Topic(bootstrap, topic, partitions)

    def plan(self, **options: str) -> WritePlan:
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, **options}
        return plan_write(parse_write_options({k.replace("_", "."): v for k, v in given.items()}, stream=True))

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


def standing(query: Query, partition: int) -> str:
    """Kafka's name for the state of the transaction of that task."""
    with Cluster(query.bootstrap) as cluster:
        names = SinkNames("pykafka-sink", query.id)
        return Admin(cluster).describe_transaction(names.of_task(partition)).state


@pytest.fixture
def query(broker: BrokerProcess, topic: str) -> Iterator[Query]:
    yield Query(broker.bootstrap, topic)
    plan._plans.clear()
    worker_clients().close()
