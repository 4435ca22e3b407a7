"""`pykafka transactions` against a broker with open transactions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from tests.support.console import answer_of, error_of, output_of
from tests.support.kafka import Kafka


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


@pytest.fixture
def transactional_id(broker: Kafka, topic: str, group: str) -> Iterator[str]:
    """One with an open transaction of a record in `topic`."""
    patient = {"transactional.id": group, "transaction.timeout.ms": 600_000}  # a cluster of many topics takes a while
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap, patient) as producer:
        Admin(cluster).create_topic(topic)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        yield group


def document(*arguments: str) -> Any:
    return json.loads(answer_of("transactions", *arguments, "--json"))


def test_open_transactions_are_listed_and_described(at: tuple[str, str], topic: str, transactional_id: str) -> None:
    lines = [line.split() for line in output_of("transactions", "list", "--state", "Ongoing", *at).splitlines()]
    assert lines[0] == ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"]
    assert transactional_id in [line[0] for line in lines]
    described = document("describe", "--transactional-id", transactional_id, *at)
    assert (described["state"], described["partitions"]) == ("Ongoing", [{"topic": topic, "partition": 0}])
    assert 0 <= described["openMs"] < 60_000
    assert f"  {topic}-0" in answer_of("transactions", "describe", "--transactional-id", transactional_id, *at)
    (producer,) = document("producers", "--topic", topic, *at)
    assert producer["producerId"] == described["producerId"]
    assert producer["transactionStartOffset"] == 0
    assert "START-OFFSET" in answer_of("transactions", "producers", "--topic", topic, *at)


def test_a_transaction_is_aborted_only_by_force_while_its_coordinator_knows_it(
    at: tuple[str, str], topic: str, transactional_id: str
) -> None:
    assert topic not in [row["topic"] for row in document("find-hanging", "--max-transaction-timeout", "0", *at)]
    where = ("--topic", topic, "--partition", "0", "--start-offset")
    assert f"belongs to '{transactional_id}'" in error_of("transactions", "abort", *where, "0", *at)
    assert "they begin at 0" in error_of("transactions", "abort", *where, "5", *at)
    assert "Aborted the transaction" in answer_of("transactions", "abort", *where, "0", "--force", *at)
    (producer,) = document("producers", "--topic", topic, *at)
    assert producer["transactionStartOffset"] is None
    assert "none is open" in error_of("transactions", "abort", *where, "0", *at)


def test_what_is_not_there_is_told(at: tuple[str, str]) -> None:
    error = error_of("transactions", "describe", "--transactional-id", "nobody", *at)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in error
    assert "there is no transaction state Asleep" in error_of(
        "transactions", "list", "--state", "Asleep", *at, status=2
    )
