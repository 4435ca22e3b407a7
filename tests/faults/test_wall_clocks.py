"""Wall clocks of brokers jump forward and back: no promise is broken, and times are what Kafka would give.

Only record timestamps, retention and the age of transactions depend on the wall clock, as in Kafka. Waits, leases and
the lag of followers are measured with the monotonic clock.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka import TopicPartition as Asked
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.embedded import EmbeddedCluster
from broker.log.inspection import segment_files
from broker.protocol.topic_partition import TopicPartition
from tests.faults.test_cluster_histories import PARTITIONS, REPLICATED, checked_cluster
from tests.support.cluster import ClusterFaults, StateWatch
from tests.support.history import History
from tests.support.history_run import COPIED_PARTITIONS, WRITTEN_PARTITIONS
from tests.support.randomness import seeded
from tests.support.replica_audit import partition_directories
from tests.support.waiting import eventually
from tests.support.wall_clocks import movable_clocks

RETENTION = {"log.retention.ms": "3600000", "log.retention.check.interval.ms": "200"}
"""An hour. Clocks are wrong by 50 minutes at most."""
MINUTE_S = 60


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_jumping_clocks_break_no_promise_and_delete_nothing(tmp_path: Path, seed: int) -> None:
    kinds = ClusterFaults.CLOCKS * 2 + ClusterFaults.PROCESSES
    with (
        movable_clocks(tmp_path, 3) as clocks,
        checked_cluster(tmp_path, more=RETENTION) as (cluster, states, run),
    ):
        faults = ClusterFaults(cluster, kinds, seeded(seed), lambda: states.wait_for_isr(PARTITIONS, 3), clocks=clocks)

        def disturb() -> None:
            faults.run(100)
            for broker in cluster.brokers:  # transactions that began in the future end now
                clocks.set(broker, 51 * MINUTE_S)

        run(disturb)
        print(f"faults: {dict(faults.made)}")
        for tp in (*WRITTEN_PARTITIONS, *COPIED_PARTITIONS):
            for directory in partition_directories(cluster.brokers, tp).values():
                assert int(segment_files(directory)[0].stem) == 0, f"{directory} has lost its first segment"


@pytest.mark.slow
def test_log_append_time_is_what_the_leaders_clock_says(tmp_path: Path) -> None:
    """It may go back with the clock. A search by time gives the first record in offset order that is new enough."""
    with (
        movable_clocks(tmp_path, 3) as clocks,
        EmbeddedCluster(3, tmp_path, REPLICATED) as kafka,
        StateWatch(kafka.zookeeper, History()) as states,
    ):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        config = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2, 3]], config=config)])["t"].result(10)
        written = []
        for ahead_s in (0, 20 * MINUTE_S, -20 * MINUTE_S, 0):
            clocks.set(1, ahead_s)
            written.append(_write(kafka.bootstrap) / 1000 - time.time() - ahead_s)
        assert all(abs(off) < 60 for off in written)
        at = time.time()
        asked = {offset: int((at + minutes * MINUTE_S) * 1000) for offset, minutes in {0: -25, 1: 10}.items()}
        tp = TopicPartition("t", 0)
        for leader in (1, 2):
            eventually(partial(_is_led_by, states, tp, leader))
            admin = AdminClient({"bootstrap.servers": kafka.brokers[leader].bootstrap})
            # librdkafka asks the leader that its metadata name, and waits for it even if it is dead.
            eventually(lambda admin=admin, leader=leader: _shown_leader(admin) == leader)  # type: ignore[misc]
            for offset, timestamp in asked.items():
                assert _offset(admin, OffsetSpec.for_timestamp(timestamp)) == offset
            assert _offset(admin, OffsetSpec.for_timestamp(int((at + 30 * MINUTE_S) * 1000))) == -1
            assert _offset(admin, OffsetSpec.max_timestamp()) == 1
            kafka.brokers[leader].kill()


def _is_led_by(states: StateWatch, tp: TopicPartition, leader: int) -> bool:
    return states.state(tp).leader == leader


def _shown_leader(admin: AdminClient) -> int:
    leader: int = admin.list_topics("t", timeout=10).topics["t"].partitions[0].leader
    return leader


def _write(bootstrap: str) -> int:
    """The timestamp, in ms, that the record got."""
    delivered: list[Message] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce("t", b"x", on_delivery=lambda error, message: delivered.append(message))
    assert producer.flush(20) == 0
    assert delivered[0].error() is None
    _, timestamp = delivered[0].timestamp()
    return timestamp


def _offset(admin: AdminClient, spec: OffsetSpec) -> int:
    asked = Asked("t", 0)
    offset: int = admin.list_offsets({asked: spec})[asked].result(20).offset
    return offset
