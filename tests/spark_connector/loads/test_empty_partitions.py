"""A partition that is empty when the group begins, or is added later: what it gets is loaded, or its loss is told, in
every kind of destination. Against a real broker, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.maintenance import verify
from tests.support.kafka import Kafka
from tests.support.small_loads import SmallLoads
from tests.support.topics import Topic

LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture(params=["parquet", "delta", "iceberg", "sql"])
def loads(request: pytest.FixtureRequest, numbers: Topic, tmp_path: Path) -> SmallLoads:
    return SmallLoads(numbers, tmp_path, request.param)


@pytest.fixture
def numbers(broker: Kafka, topic: str) -> Topic:
    """Partition 0 has records, partition 1 has none."""
    records = Topic(broker.bootstrap, topic, 2)
    records.produce([b"first"] * 3)
    return records


def test_its_first_records_are_missed_when_they_are_gone(loads: SmallLoads, numbers: Topic) -> None:
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


def test_what_it_gets_is_loaded_once(loads: SmallLoads, numbers: Topic) -> None:
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
    loads, start = SmallLoads(numbers, tmp_path, "parquet"), json.dumps({numbers.name: {"0": 1, "1": -2}})
    with pytest.raises(DataLoss, match=f"{numbers.name}-0 was to be loaded from offset 1, but begins at 2 now"):
        loads.load(starting_offsets=start)
    assert loads.load(LENIENT, starting_offsets=start).rows == 1


def test_what_an_added_partition_lost_before_its_first_load_is_missed(loads: SmallLoads, numbers: Topic) -> None:
    loads.load()
    numbers.grow(3)
    numbers.produce([b"later"] * 10, partition=2)
    Topic.eat(numbers.bootstrap, numbers.name, 2, 4)
    with pytest.raises(DataLoss, match=f"{numbers.name}-2 was added .* begins at 4 now: 4 offsets were deleted"):
        loads.load()
    assert loads.load(LENIENT).rows == 6
    found = verify(loads.target, numbers.bootstrap)
    assert [load.verdict for load in found.loads] == ["ok", "ok"]
    (said,) = found.unread
    assert said.startswith(f"{numbers.name}-2: 4 of offsets 0 to 3, ")
    assert loads.load().load_id is None


def test_an_added_partition_is_loaded_from_its_beginning(loads: SmallLoads, numbers: Topic) -> None:
    loads.load()
    numbers.grow(3)
    numbers.produce([b"later"] * 10, partition=2)
    assert loads.load().rows == 10
    assert verify(loads.target, numbers.bootstrap).verdict == "ok"


def test_a_topic_that_the_pattern_finds_later_is_missed_as_well(broker: Kafka, topic: str, tmp_path: Path) -> None:
    first = Topic(broker.bootstrap, f"{topic}-a")
    first.produce([b"first"])
    loads, pattern = SmallLoads(first, tmp_path, "parquet", topic=None), {"subscribePattern": f"{topic}-[abc]"}
    loads.load(pattern)
    second = Topic(broker.bootstrap, f"{topic}-b")
    second.produce([b"second"] * 5)
    Topic.eat(broker.bootstrap, second.name, 0, 2)
    with pytest.raises(DataLoss, match=f"{second.name}-0 was added .* begins at 2 now"):
        loads.load(pattern)
    other = {"subscribePattern": f"{topic}-(a|b)"}
    assert loads.load(other).rows == 3, "who selects a topic anew begins with what is left of it"


def test_a_partition_that_was_left_out_so_far_may_have_lost_its_beginning(numbers: Topic, tmp_path: Path) -> None:
    loads = SmallLoads(numbers, tmp_path, "parquet", topic=None)
    loads.load({"assign": json.dumps({numbers.name: [0]})})
    numbers.produce([b"later"] * 10, partition=1)
    Topic.eat(numbers.bootstrap, numbers.name, 1, 4)
    assert loads.load({"assign": json.dumps({numbers.name: [0, 1]})}).rows == 6
    numbers.grow(3)
    numbers.produce([b"later"] * 10, partition=2)
    Topic.eat(numbers.bootstrap, numbers.name, 2, 3)
    every = {"assign": json.dumps({numbers.name: [0, 1, 2]})}
    with pytest.raises(DataLoss, match="begins at 3 now"):
        loads.load(every)
    named = json.dumps({numbers.name: {"0": -2, "1": -2, "2": 3}})
    assert loads.load(every, starting_offsets=named).rows == 7, "the user says where"


@pytest.mark.parametrize("since", [0, 5_000])
def test_a_start_by_time_misses_what_may_have_been_young_enough(numbers: Topic, tmp_path: Path, since: int) -> None:
    loads, by_time = SmallLoads(numbers, tmp_path, "parquet"), {"startingOffsetsByTimestampStrategy": "latest"}
    loads.load(by_time | {"startingTimestamp": "1"})
    numbers.grow(3)
    for second in range(10):
        numbers.produce([b"later"], partition=2, timestamp=1000 + second * 1000)
    Topic.eat(numbers.bootstrap, numbers.name, 2, 3)
    options = by_time | {"startingTimestamp": str(1 + since)}
    if since:
        assert loads.load(options).rows == 5
    else:
        with pytest.raises(DataLoss, match="begins at 3 now"):
            loads.load(options)
