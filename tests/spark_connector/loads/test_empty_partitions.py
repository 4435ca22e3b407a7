"""A partition that is empty when the group begins: what it gets later is loaded, or its loss is told, in every kind of
destination. Against a real broker, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.load import run_load
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import verify
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

LENIENT = {"failOnDataLoss": "false"}


class Loads:
    """Loads of one group into one place; so few records need no Spark."""

    def __init__(self, records: Topic, root: Path, format: str) -> None:
        catalog = add_catalog(root) if format == "iceberg" else None
        to = {"iceberg": "iceberg:lake.loads", "sql": f"sqlite:///{root}/loads.db#loads"}.get(format, str(root / "out"))
        self.target = Target(to, f"g-{records.name}", format=format, catalog=catalog).check()
        self._given: dict[str, Any] = {"bootstrap_servers": records.bootstrap, "topic": records.name}

    def load(self, options: dict[str, str] | None = None, **arguments: Any) -> LoadResult:
        request = LoadRequest.build(self.target, **self._given, options=options or {}, **arguments)
        return run_load(request, _no_spark, lambda phase, record: None)


def _no_spark() -> Any:
    raise AssertionError("a load as small as this needs no Spark")


@pytest.fixture(params=["parquet", "delta", "iceberg", "sql"])
def loads(request: pytest.FixtureRequest, numbers: Topic, tmp_path: Path) -> Loads:
    return Loads(numbers, tmp_path, request.param)


@pytest.fixture
def numbers(broker: Kafka, topic: str) -> Topic:
    """Partition 0 has records, partition 1 has none."""
    records = Topic(broker.bootstrap, topic, 2)
    records.produce([b"first"] * 3)
    return records


def test_its_first_records_are_missed_when_they_are_gone(loads: Loads, numbers: Topic) -> None:
    loads.load()
    numbers.produce([b"later"] * 10, partition=1)
    Topic.eat(numbers.bootstrap, numbers.name, 1, 4)
    with pytest.raises(DataLoss, match=f"{numbers.name}-1 was loaded up to offset 0, but begins at 4 now: 4 offsets"):
        loads.load()
    assert loads.load(LENIENT).rows == 6
    found = verify(loads.target, numbers.bootstrap)
    assert [load.verdict for load in found.loads] == ["ok", "ok"]
    assert found.verdict == "unknown"
    (said,) = found.unread
    assert said.startswith(f"{numbers.name}-1: 4 of offsets 0 to 3, ")
    assert "were never loaded" in said


def test_what_it_gets_is_loaded_once(loads: Loads, numbers: Topic) -> None:
    assert [(one.partition, one.start, one.end) for one in loads.load().ranges] == [(0, 0, 3), (1, 0, 0)]
    assert loads.load().load_id is None
    numbers.produce([b"later"] * 10, partition=1)
    second = loads.load()
    assert [(one.tp, one.start, one.end, one.stored) for one in second.ranges] == [
        (TopicPartition(numbers.name, 1), 0, 10, 0)
    ]
    assert verify(loads.target, numbers.bootstrap).verdict == "ok"


def test_a_start_whose_records_are_gone_is_data_loss(numbers: Topic, tmp_path: Path) -> None:
    Topic.eat(numbers.bootstrap, numbers.name, 0, 2)
    loads, start = Loads(numbers, tmp_path, "parquet"), json.dumps({numbers.name: {"0": 1, "1": -2}})
    with pytest.raises(DataLoss, match=f"{numbers.name}-0 was to be loaded from offset 1, but begins at 2 now"):
        loads.load(starting_offsets=start)
    assert loads.load(LENIENT, starting_offsets=start).rows == 1
