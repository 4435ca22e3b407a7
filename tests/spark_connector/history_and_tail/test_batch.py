"""One read of a table and the rest of its topic, on a real broker and real tables, without Spark."""

from __future__ import annotations

import pickle

from tests.support.fake_s3 import FakeS3
from tests.support.history_loads import HistoryLoads, positions
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData


def test_each_record_once_after_each_load_and_each_record_produced(loads: HistoryLoads, data: TopicData) -> None:
    for _ in range(3):
        loads.must_load()
        assert positions(loads.read()) == data.positions(), "all of the table"
        data.produce(7)
        rows = loads.read(historyColumn="loaded")
        assert positions(rows) == data.positions()
        assert rows.column("loaded").to_pylist().count(False) == 7
    for row in rows.to_pylist():
        assert (row["key"], row["value"]) == data.record(row["partition"], row["offset"])


def test_a_plan_survives_the_way_to_an_executor(loads: HistoryLoads, data: TopicData) -> None:
    loads.load()
    data.produce(3)
    reader, tasks = pickle.loads(pickle.dumps(loads.plan()))
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 23


def test_loads_after_the_plan_change_nothing(loads: HistoryLoads, data: TopicData) -> None:
    loads.load()
    data.produce(3)
    reader, tasks = loads.plan()
    loads.load()
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 23


def test_a_delta_table_in_a_bucket(broker: Kafka, topic: str, s3: FakeS3) -> None:
    loads = HistoryLoads(broker.bootstrap, topic, "s3://lake/table", "delta", storage_options=s3.options)
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(20)
    loads.must_load()
    data.produce(6)
    assert positions(loads.read()) == data.positions()
    assert positions(loads.read(history="s3://lake/table")) == data.positions(), "without saying what it is"
