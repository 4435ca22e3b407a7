"""An unclean election loses records that clients have read: they are told, and go on where the logs part (KIP-320)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.stream_calls import ALL, Reader, as_spark_does, planned, reader, values
from tests.support.waiting import eventually

TP = TopicPartition("t", 0)
FIRST, SECOND = 1, 2
KEPT, LOST, NEW = 20, 10, 30


def write(bootstrap: str, text: str, count: int) -> list[bytes]:
    sent = [b"%s %d" % (text.encode(), number) for number in range(count)]
    with Producer(bootstrap) as producer:
        for value in sent:
            producer.send(TP.topic, value, partition=TP.partition)
        producer.flush(60)
    return sent


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        polled = consumer.poll(30)
        assert polled, f"only {len(found)} of {count} records came"
        found += [record.value for record in polled]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whoever_read_what_an_unclean_election_lost_is_told(
    tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    with ReplicatedCluster(tmp_path) as brokers, Cluster(brokers.bootstrap) as cluster:
        configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        Admin(cluster).create_topics([NewTopic("t", configs=configs, assignment=((FIRST, SECOND),))])
        brokers.wait_until_healed()

        def state() -> tuple[int, set[int]]:
            cluster.expire()
            one = cluster.topic("t").partitions[0]
            return one.leader, set(one.isr)

        def consumer(reset: str, **more: object) -> Consumer:
            settings = {"auto.offset.reset": reset, "enable.auto.commit": False, **more}
            made = Consumer(brokers.bootstrap, settings)
            request.addfinalizer(made.close)
            made.assign([TP])
            return made

        def query(**options: str) -> Reader:
            where = {"kafka.bootstrap.servers": brokers.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
            made = reader({**where, **options})
            request.addfinalizer(made.stop)
            return made

        kept = write(brokers.bootstrap, "kept", KEPT)
        brokers.brokers[SECOND].kill()
        eventually(lambda: state() == (FIRST, {FIRST}), timeout=60)
        lost = write(brokers.bootstrap, "lost", LOST)
        lenient, strict, member = consumer("earliest"), consumer("none"), consumer("earliest", **{"group.id": "g"})
        strict.seek(TP, 0)
        for one in (lenient, strict, member):
            assert read(one, KEPT + LOST) == kept + lost
        member.commit()
        stream = query()
        end = as_spark_does(stream.latestOffset(as_spark_does(stream.initialOffset()), ALL))
        assert end["topics"] == {"t": {"0": KEPT + LOST}}

        brokers.brokers[FIRST].kill()
        brokers.brokers[SECOND].start()
        eventually(lambda: state() == (SECOND, {SECOND}), timeout=60)
        new = write(brokers.bootstrap, "new", NEW)  # more than was lost
        assert read(lenient, NEW) == new
        assert read(consumer("earliest", **{"group.id": "g"}), NEW) == new, "the committed offset has an epoch"
        with pytest.raises(BrokerError, match=f"t-0 was truncated: it was read up to offset {KEPT + LOST}") as raised:
            read(strict, 1)
        assert raised.value.code is ErrorCode.offset_out_of_range
        for running in (stream, query()):
            with pytest.raises(DataLoss, match="PARTITION_OFFSET_CHANGED.*t-0 was truncated"):
                running.latestOffset(end, ALL)
        tolerant = query(failOnDataLoss="false")
        following = as_spark_does(tolerant.latestOffset(end, ALL))
        assert "t-0 was truncated" in caplog.text
        assert planned(tolerant, end, following) == [(0, KEPT, KEPT + NEW)]
        assert values(tolerant, end, following) == new

        brokers.brokers[FIRST].start()
        brokers.wait_until_healed()
        final = consumer("earliest")
        assert read(final, KEPT + NEW) == kept + new, "the old leader has cut off what it alone had"
