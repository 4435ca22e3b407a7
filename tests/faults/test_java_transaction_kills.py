"""kill -9 of coordinators and leaders under a Java producer whose transactions are of version 2 (KIP-890).

Three brokers, everything on three replicas. Each transaction writes its number to all partitions of a topic, and its
successor as the offset of a group. Whenever the client gives up, a new producer takes over.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.transaction_requests import transaction_version
from broker.coordinator.sharded_coordinator import partition_for
from broker.embedded import EmbeddedCluster
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from tests.faults.test_coordinator_failover import INTERNAL, PARTITIONS, REPLICATED
from tests.support.cluster import StateWatch
from tests.support.history import History
from tests.support.kafka_java import KafkaJava
from tests.support.randomness import seeded
from tests.support.raw_requests import Requests
from tests.support.raw_transactions import committed_offset, committed_values
from tests.support.waiting import eventually

TOPIC, GROUP, NAME = "t", "g", "payments"
WRITTEN = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]


class Work:
    """Transaction after transaction, and what the client was told of each: True, False, or None where it was told
    nothing."""

    def __init__(self, java: KafkaJava, bootstrap: str) -> None:
        self._java = java
        self._settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": NAME,
            "max.block.ms": "20000",
            "delivery.timeout.ms": "20000",
            "request.timeout.ms": "5000",
        }
        self._dice = seeded(890)
        self.told: list[bool | None] = []

    def run(self, is_over: threading.Event) -> None:
        producer: Any = None
        while not is_over.is_set():
            self.told.append(None)
            ending: bool | None = None
            try:
                if producer is None:
                    producer = self._java.producer(self._settings)
                    producer.initTransactions()
                producer.beginTransaction()
                self._write(producer, len(self.told) - 1)
                ending = self._dice.random() < 0.75
                self._end(producer, commit=ending)
                self.told[-1] = ending
            except Py4JJavaError as error:
                print(f"transaction {len(self.told) - 1}: {error.java_exception.toString()}", flush=True)
                if producer is not None and not self._has_aborted(producer, ending):
                    producer.close(self._java.duration(0))
                    producer = None

    def _write(self, producer: Any, number: int) -> None:
        for partition in range(PARTITIONS):
            producer.send(self._java.record(TOPIC, b"%d" % number, partition=partition))
        offset = self._java.kafka.clients.consumer.OffsetAndMetadata(number + 1)
        member = self._java.kafka.clients.consumer.ConsumerGroupMetadata(GROUP)
        producer.sendOffsetsToTransaction({self._java.partition(TOPIC, 0): offset}, member)

    def _end(self, producer: Any, *, commit: bool) -> None:
        if commit:
            producer.commitTransaction()
        else:
            producer.flush()
            producer.abortTransaction()

    def _has_aborted(self, producer: Any, ending: bool | None) -> bool:
        """Nothing is known of a commit that was not answered."""
        if ending is True:
            return False
        try:
            producer.abortTransaction()
        except Py4JJavaError:
            return False
        self.told[-1] = False
        return True


def check(work: Work, visible: list[list[bytes | None]], offset: int) -> None:
    assert all(values == visible[0] for values in visible), "a transaction is visible in part"
    numbers = [int(value or b"") for value in visible[0]]
    assert numbers == sorted(set(numbers)), "doubled, or out of order"
    committed = {number for number, told in enumerate(work.told) if told is True}
    aborted = {number for number, told in enumerate(work.told) if told is False}
    assert committed - set(numbers) == set(), "committed, and lost"
    assert aborted & set(numbers) == set(), "aborted, and visible"
    assert offset == numbers[-1] + 1
    print(f"{len(committed)} committed, {len(aborted)} aborted, {work.told.count(None)} unknown", flush=True)


@pytest.fixture
def java() -> Iterator[KafkaJava]:
    from tests.support.kafka_java import java_or_give_up

    with java_or_give_up() as java, java.closing():
        yield java


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_transaction_is_visible_wholly_or_not_at_all(tmp_path: Path, java: KafkaJava) -> None:
    with EmbeddedCluster(3, tmp_path, REPLICATED) as kafka, StateWatch(kafka.zookeeper, History()) as states:
        with Cluster(kafka.bootstrap) as cluster:
            Admin(cluster).create_topic(TOPIC, PARTITIONS, 3)
            eventually(lambda: transaction_version(cluster) == 2)
        work, is_over = Work(java, kafka.bootstrap), threading.Event()
        thread = threading.Thread(target=work.run, args=(is_over,))
        thread.start()
        coordinator = TopicPartition(TRANSACTION_STATE_TOPIC, partition_for(NAME, PARTITIONS))
        groups = TopicPartition(GROUP_OFFSETS_TOPIC, partition_for(GROUP, PARTITIONS))
        eventually(lambda: len(work.told) > 20, timeout=60)
        for tp in itertools.islice(itertools.cycle([coordinator, WRITTEN[0], groups, WRITTEN[1]]), 12):
            states.wait_for_isr([*WRITTEN, *INTERNAL], 3)
            enough = len(work.told) + 15
            eventually(lambda enough=enough: len(work.told) > enough, timeout=120)  # type: ignore[misc]
            victim = kafka.brokers[states.state(tp).leader]
            print(f"{time.strftime('%H:%M:%S')} kill the leader of {tp}", flush=True)
            victim.kill()
            states.wait_for_isr([*WRITTEN, *INTERNAL], 2)
            victim.start()
        states.wait_for_isr([*WRITTEN, *INTERNAL], 3)
        is_over.set()
        thread.join(120)
        producer = java.producer(work._settings)
        producer.initTransactions()  # ends what was left open
        at = {tp: kafka.brokers[states.state(tp).leader].bootstrap for tp in [*WRITTEN, groups]}
        visible = []
        for tp in WRITTEN:
            with Requests(at[tp]) as ask:
                visible.append(committed_values(ask, TOPIC, tp.partition))
        with Requests(at[groups]) as ask:
            check(work, visible, committed_offset(ask, GROUP, TOPIC))
