"""Tasks of the connector on the hosts of brokers read from the replica beside them (KIP-392): by bytes on the link."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.batch_producer import BatchProducer
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.fetch import read_ranges
from spark_connector.read.planning import OffsetRange
from spark_connector.worker_clients import RACK_VARIABLE
from tests.support.hosts import Host, Network, start_broker, start_zookeeper
from tests.support.requirements import Unavailable, give_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC, PARTITIONS, BATCHES, ROWS, SIZE = "near", 3, 10, 100, 1_000
BYTES = PARTITIONS * BATCHES * ROWS * SIZE
NEAR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[Host]]:
    """Three of them, each in a rack of its own, with a replica of each partition."""
    try:
        with Network(tmp_path) as network:
            zookeeper = start_zookeeper(network.host("zoo"))
            hosts = [network.host(f"b{number}") for number in (1, 2, 3)]
            for number, host in enumerate(hosts, 1):
                start_broker(host, number, zookeeper, {"broker.rack": host.name, "min.insync.replicas": "3", **NEAR})
            hosts[0].call("tests.hosts.test_locality:fill", _bootstrap(hosts), timeout=300)
            yield hosts
    except Unavailable as missing:
        give_up(str(missing))


def test_tasks_read_from_the_replica_beside_them(brokers: list[Host]) -> None:
    reader = brokers[1]
    taken = {}
    for rack in ("", reader.name):
        before = _received(reader)
        assert reader.call("tests.hosts.test_locality:read", _bootstrap(brokers), rack) == BYTES // SIZE
        taken[rack] = _received(reader) - before
    assert taken[""] > BYTES / 2  # of two leaders that are elsewhere
    assert taken[reader.name] < BYTES / 20


def _bootstrap(hosts: list[Host]) -> str:
    return ",".join(f"{host.name}:9092" for host in hosts)


def _received(host: Host) -> int:
    """Bytes that came to the host over its link so far."""
    listed = subprocess.check_output([*host.network.switch, "cat", "/proc/net/dev"], text=True)
    (link,) = (line.split() for line in listed.splitlines() if line.strip().startswith(f"{host.port}:"))
    return int(link[9])  # what the bridge has sent there


def fill(bootstrap: str) -> None:
    """Runs on a host: records that all replicas have."""
    import pyarrow as pa

    from broker.records.columns import encode_columns

    assignment = [[(partition + at) % 3 + 1 for at in range(3)] for partition in range(PARTITIONS)]
    values = pa.array([b"x" * SIZE] * ROWS, pa.binary())
    batches = encode_columns(None, values, time.time_ns() // 1_000_000, codec=Codec.NONE)
    with Cluster(bootstrap) as cluster, BatchProducer(cluster) as producer:
        Admin(cluster).create_topics([NewTopic(TOPIC, assignment=assignment)])
        for partition in range(PARTITIONS):
            for batch in batches * BATCHES:
                producer.send(TopicPartition(TOPIC, partition), batch)
        producer.flush()


def read(bootstrap: str, rack: str) -> int:
    """Runs on a host as a task of Spark does; how many rows it read."""
    os.environ[RACK_VARIABLE] = rack
    options = parse_options({"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC}, Mode.BATCH)
    ranges = [OffsetRange(TopicPartition(TOPIC, partition), 0, BATCHES * ROWS) for partition in range(PARTITIONS)]
    return sum(batch.num_rows for batch in read_ranges(options, ranges, {}))
