"""`pykafka offsets` against a broker, and against groups in ZooKeeper."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.consumer_registry import ConsumerRegistry
from tests.support.console import answer_of, error_of, output_of
from tests.support.kafka import Kafka


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


@pytest.fixture
def filled(broker: Kafka, topic: str) -> str:
    """Two partitions; the first has records of ms 1000, 2000 and 3000."""
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 2)
        for index in range(3):
            producer.send(topic, b"v", partition=0, timestamp=(index + 1) * 1000)
    return topic


def document(*arguments: str) -> Any:
    return json.loads(answer_of(*arguments, "--json"))


def test_beginning_and_end_of_partitions(at: tuple[str, str], filled: str) -> None:
    table = [line.split() for line in output_of("offsets", "list", "--topic", filled, *at).splitlines()]
    assert table == [["TOPIC", "PARTITION", "EARLIEST", "LATEST"], [filled, "0", "0", "3"], [filled, "1", "0", "0"]]
    assert {"topic": filled, "partition": 1, "earliest": 0, "latest": 0} in document("offsets", "list", *at)


def test_the_first_record_since_a_time(at: tuple[str, str], filled: str) -> None:
    def since(time: str) -> list[tuple[int | None, int | None]]:
        rows = document("offsets", "list", "--topic", filled, "--time", time, *at)
        return [(row["offset"], row["timestamp"]) for row in rows]

    assert since("1500") == [(1, 2000), (None, None)]
    assert since("1970-01-01T00:00:02.500+00:00") == [(2, 3000), (None, None)]
    assert since("max-timestamp") == [(2, 3000), (None, None)]
    assert since("latest") == [(3, None), (0, None)]
    shown = answer_of("offsets", "list", "--topic", f"{filled}:0", "--time", "1500", *at).splitlines()
    assert shown[1].split() == [filled, "0", "1", "1970-01-01", "00:00:02.000"]
    assert "such as 2026-01-31T12:00:00" in error_of("offsets", "list", "--time", "noon", *at, status=2)


def test_offsets_of_a_group_are_set_and_read(at: tuple[str, str], filled: str, group: str) -> None:
    assert "has no offsets" in error_of("offsets", "get", "--group", group, *at)
    answer_of("offsets", "set", "--group", group, "--offset", f"{filled}:0=2", *at)
    assert document("offsets", "get", "--group", group, *at) == [
        {"group": group, "topic": filled, "partition": 0, "offset": 2}
    ]
    assert "2 partitions, but no 9" in error_of("offsets", "set", "--group", group, "-o", f"{filled}:9=2", *at)
    assert "TOPIC:PARTITION=OFFSET" in error_of("offsets", "set", "--group", group, "-o", filled, *at, status=2)


def test_groups_in_zookeeper_are_read_and_set(
    at: tuple[str, str], broker: Kafka, zookeeper: str, filled: str, group: str
) -> None:
    """The early generation's groups: their own place, the same commands."""
    there = ("--zookeeper", f"{zookeeper}/session")
    answer_of("offsets", "set", "--group", group, "-o", f"{filled}:0=1", "-o", f"{filled}:1=0", *there)
    rows = document("offsets", "get", "--group", group, *there)
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 1), (1, 0)]
    assert group in answer_of("groups", "list", *there).splitlines()
    assert group not in answer_of("groups", "list", *at)
    (described,) = document("groups", "describe", "--group", group, *there, *at)
    assert [(row["currentOffset"], row["lag"]) for row in described["partitions"]] == [(1, 2), (0, 0)]
    assert "there is no group 'nobody'" in error_of("groups", "describe", "--group", "nobody", *there, *at)


def test_offsets_of_a_zookeeper_group_with_members_are_left_alone(zookeeper: str, filled: str, group: str) -> None:
    there = ("--zookeeper", f"{zookeeper}/session")
    with ZooKeeper(there[1], 10_000) as zk:
        ConsumerRegistry(zk).register(group, "someone", b"{}")
        error = error_of(
            "offsets", "set", "--group", group, "-o", f"{filled}:0=1", "--zookeeper", f"{zookeeper}/session"
        )
    assert "has members: someone" in error


def test_a_zookeeper_that_is_not_there_is_told() -> None:
    assert "not a ZooKeeper path" in error_of("groups", "list", "--zookeeper", "localhost:1/a//b", status=2)
