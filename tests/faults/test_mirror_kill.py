"""A mirror that is killed again and again while records, transactions and new partitions come to the source."""

from __future__ import annotations

import random
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.broker_process import BrokerProcess
from tests.support.committed_records import CommittedRecord, committed_records
from tests.support.console import answer_of, command
from tests.support.source_tree import ROOT
from tests.support.topics import Topic

KILLS = 25
SEED = 20261123


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: str, group: str) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    with (
        BrokerProcess(tmp_path / "a", zookeeper=f"{zookeeper}/{group}-a") as source,
        BrokerProcess(tmp_path / "b", zookeeper=f"{zookeeper}/{group}-b") as target,
    ):
        yield source, target


class Writer(threading.Thread):
    """Transactions of some records each, every third of them aborted, until `end` is set."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 1})
        self._topic = topic
        self._partitions = partitions
        self.end = threading.Event()

    def run(self) -> None:
        choose = random.Random(SEED)
        self._producer.init_transactions(30)
        number = 0
        while not self.end.is_set():
            self._producer.begin_transaction()
            aborted = choose.random() < 0.3
            for _ in range(choose.randrange(1, 60)):
                value = b"%s %d" % (b"aborted" if aborted else b"kept", number)
                size = choose.choice((0, 0, 0, 40_000))
                self._producer.produce(
                    self._topic,
                    value + b" " * size,
                    b"k",
                    choose.randrange(self._partitions),
                    headers=[("n", b"%d" % number)],
                )
                number += 1
            self._producer.flush(30)
            (self._producer.abort_transaction if aborted else self._producer.commit_transaction)(30)
            self.end.wait(0.002)


def by_partition(bootstrap: str, topic: str) -> dict[int, list[CommittedRecord]]:
    found: dict[int, list[CommittedRecord]] = defaultdict(list)
    for record in committed_records(bootstrap, topic):
        found[record.partition].append(record._replace(offset=0))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled(brokers: tuple[BrokerProcess, BrokerProcess], topic: str) -> None:
    source, target = brokers
    made = Topic(source.bootstrap, topic, partitions=3)
    arguments = ["mirror", "--from", source.bootstrap, "--to", target.bootstrap, "--topics", topic]
    often = ["--commit-interval", "0.2", "--refresh-topics-interval", "0.5", "--emit-checkpoints-interval", "0.5"]
    writer = Writer(source.bootstrap, topic, 3)
    writer.start()
    choose = random.Random(SEED)
    try:
        for kill in range(KILLS):
            with subprocess.Popen(command(*arguments, *often), cwd=ROOT, stderr=subprocess.DEVNULL) as running:
                writer.join(choose.uniform(0.5, 3.0))  # it goes on: a moment by chance
                assert writer.is_alive()
                running.kill()
            if kill == KILLS // 2:
                made.grow(5)
                made.number(500, partition=4)
    finally:
        writer.end.set()
        writer.join()
    answer_of(*arguments, "--once")
    expected, found = by_partition(source.bootstrap, topic), by_partition(target.bootstrap, topic)
    assert sum(map(len, expected.values())) > 1000
    assert sorted(found) == sorted(expected)
    for partition, records in expected.items():
        assert found[partition] == records, f"partition {partition}"
