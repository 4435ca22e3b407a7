"""Real clients go on when the leader or the coordinator is killed: nothing is lost, doubled or reordered.

Each client writes, reads in a group and writes transactions with its defaults, but for idempotence and quicker
reconnects. Three brokers, three replicas, min.insync.replicas=2; kill -9 falls while requests are in flight.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from broker.client.cluster_metadata import CoordinatorKind
from broker.client.consumer import Consumer
from broker.protocol.topic_partition import TopicPartition
from tests.support.failover_clients import READERS, WRITERS, OurWriter
from tests.support.failover_contract import PARTITIONS, Aborted, partition_of
from tests.support.replicated_cluster import ReplicatedCluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # kafka-python and aiokafka leave sockets open whose connection was refused.
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed <socket:ResourceWarning"
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("failover")) as cluster:
        yield cluster


@pytest.fixture
def made(cluster: ReplicatedCluster, topic: str) -> str:
    cluster.create(topic, PARTITIONS)
    return topic


def stored(cluster: ReplicatedCluster, topic: str) -> dict[int, list[int]]:
    """The committed numbers of each partition, in order."""
    settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    with Consumer(cluster.bootstrap, settings) as consumer:
        tps = [TopicPartition(topic, partition) for partition in found]
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(1.0):
                found[record.partition].append(int(record.value or b""))
    return found


def check(found: dict[int, list[int]], numbers: Iterable[int]) -> None:
    """Every number is in its partition, once and in order."""
    for partition in found:
        wanted = [number for number in numbers if partition_of(number) == partition]
        counts = Counter(found[partition])
        assert [number for number in wanted if not counts[number]] == [], f"lost in partition {partition}"
        assert [number for number, count in counts.items() if count > 1] == [], f"doubled in partition {partition}"
        assert found[partition] == wanted, f"partition {partition} is out of order"


@pytest.mark.parametrize("client", WRITERS)
def test_an_idempotent_writer_goes_on_when_leaders_are_killed(
    cluster: ReplicatedCluster, made: str, client: str
) -> None:
    with WRITERS[client](cluster.bootstrap, made) as writer:
        writer.send(range(300))
        writer.finish()
        for turn in range(2):
            start = 300 + turn * 1_200
            leader = cluster.leader(TopicPartition(made, turn))
            writer.send(range(start, start + 900))
            begun = time.monotonic()
            with cluster.without(leader):
                writer.send(range(start + 900, start + 1_200))
                writer.finish()
                print(f"{client}: {time.monotonic() - begun:.1f} s from the kill to the last acknowledgement")
    check(stored(cluster, made), range(2_700))


@pytest.mark.parametrize("client", READERS)
def test_a_group_goes_on_when_its_coordinator_and_a_leader_are_killed(
    cluster: ReplicatedCluster, made: str, group: str, client: str
) -> None:
    with OurWriter(cluster.bootstrap, made) as writer:

        def write(numbers: range) -> set[int]:
            writer.send(numbers)
            writer.finish()
            return set(numbers)

        reader = READERS[client](cluster.bootstrap, made, group)
        taken = reader.take_until(write(range(300)))
        for name, victim in (
            ("coordinator", cluster.coordinator(group)),
            ("leader", cluster.leader(TopicPartition(made, 0))),
        ):
            begun = time.monotonic()
            with cluster.without(victim):
                start = 300 if name == "coordinator" else 600
                taken += reader.take_until(write(range(start, start + 300)))
                print(f"{client}: {time.monotonic() - begun:.1f} s from the kill of the {name} to the last record")
        print(f"{client}: {len(taken) - len(set(taken))} records came twice")
        assert set(taken) == set(range(900))
        reader.close()
        with cluster.without(cluster.coordinator(group)):
            again = READERS[client](cluster.bootstrap, made, group)
            taken = again.take_until(write(range(900, 1_000)))
            again.close()
        assert sorted(taken) == list(range(900, 1_000)), "it goes on where the group had committed"


@pytest.mark.parametrize("client", [name for name in WRITERS if name != "kcat"])
def test_a_transaction_is_decided_once_when_its_coordinator_and_a_leader_are_killed(
    cluster: ReplicatedCluster, made: str, client: str
) -> None:
    committed: list[int] = []
    with WRITERS[client](cluster.bootstrap, made, f"txn-{made}") as writer:
        for number in range(0, 300, 10):
            numbers = range(number, number + 10)
            while True:
                writer.begin()
                writer.send(numbers)
                with contextlib.ExitStack() as outage:
                    if number in (100, 200):
                        coordinator = cluster.coordinator(f"txn-{made}", CoordinatorKind.TRANSACTION)
                        leader = cluster.leader(TopicPartition(made, 0))
                        outage.enter_context(cluster.without(coordinator if number == 100 else leader))
                    begun = time.monotonic()
                    try:
                        writer.commit()
                        committed += numbers
                        break
                    except Aborted as error:
                        print(f"{client}: aborted, {error.__cause__!r}")
                        writer.abort()
                    finally:
                        if number in (100, 200):
                            print(f"{client}: {time.monotonic() - begun:.1f} s for the end of a transaction")
    assert committed == list(range(300))
    check(stored(cluster, made), committed)
