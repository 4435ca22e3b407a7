"""What brokers do while packets between their hosts vanish, with the time-outs that users get.

Each test has its own hosts, because a cut leaves its mark on a cluster. A busy machine makes all of it slower, so the
limits are twice what a quiet one takes.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Host, Network, Server, start_broker, start_zookeeper
from tests.support.partition_probe import Seen, State
from tests.support.raw_requests import Requests, batch
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BROKERS = ("b1:9092", "b2:9092", "b3:9092")
TRUNCATED = "kafka_server_brokertopicmetrics_truncatedrecords_total"
SETTINGS = {"min.insync.replicas": "2", "metrics.listener": "HTTP://0.0.0.0:9404"}


class Cluster:
    """Three brokers; the topic `t`, whose partition 0 the first leads, 1 the second, 2 the third."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.zookeeper, self.client = network.host("zk"), network.host("client")
        address = start_zookeeper(self.zookeeper)
        self.hosts = [network.host(f"b{number}") for number in (1, 2, 3)]
        self.servers = [start_broker(host, number, address, SETTINGS) for number, host in enumerate(self.hosts, 1)]
        self.client.call("tests.hosts.test_broker_cuts:make_topic", BROKERS[0])

    def probe(self, seconds: float) -> Server:
        """Returns when it has written to all partitions."""
        command = (sys.executable, "-m", "tests.support.partition_probe", str(seconds), "t", *BROKERS)
        probe = self.client.serve("probe", *command)
        eventually(lambda: {partition for _, partition in Seen(probe).written} == {0, 1, 2}, timeout=60)
        return probe

    @contextlib.contextmanager
    def isolated(self, host: Host) -> Iterator[None]:
        """It reaches clients, and neither other brokers nor ZooKeeper."""
        with contextlib.ExitStack() as cuts:
            for other in (*self.hosts, self.zookeeper):
                if other is not host:
                    cuts.enter_context(self.network.cut_between(host, other))
            yield


def make_topic(bootstrap: str) -> None:
    assignments = [
        {"partition_index": index, "broker_ids": ids} for index, ids in enumerate(([1, 2, 3], [2, 3, 1], [3, 1, 2]))
    ]
    with Requests(bootstrap) as client:
        eventually(lambda: len(client.metadata().brokers) == 3)
        (made,) = client.create_topics(
            {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        )
        assert not made.error_code, made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        with Network(tmp_path) as network:
            yield Cluster(network)
    except Unavailable as missing:
        give_up(str(missing))


def test_brokers_go_on_after_a_silent_cut_and_the_one_that_was_cut_is_soon_back(cluster: Cluster) -> None:
    """Also in the partitions that it only follows: it leaves their ISR with its session. When the cut is over its
    connections are not waited for, however long ago the kernel had last tried to get a packet through."""
    probe, cut_s = cluster.probe(120), 14.0
    with cluster.network.cut(cluster.hosts[0]):
        begun = time.time()
        time.sleep(cut_s)
    healed = time.time()
    eventually(lambda: all(Seen(probe).reached(BROKERS[1], one, 3, healed) is not None for one in range(3)), timeout=60)
    seen = Seen(probe)
    for partition in range(3):
        assert seen.outage_s(partition, begun, healed) < 10
        assert [state.epoch for state in seen.states_of(BROKERS[1], partition, begun)][-1] == (partition == 0)
        back = seen.reached(BROKERS[1], partition, 3, healed)
        assert back is not None
        assert back - healed < 8


def test_what_an_isolated_leader_took_with_acks_1_is_counted_when_it_is_cut_off_its_log(cluster: Cluster) -> None:
    """The judge counts what was acknowledged, and what is there in the end."""
    probe = cluster.probe(20)
    eventually(lambda: probe.process.poll() is not None, timeout=60)
    with cluster.isolated(cluster.hosts[0]):
        eventually(lambda: cluster.client.call("tests.hosts.test_broker_cuts:leader", BROKERS[1]) == 2, timeout=60)
        acknowledged = cluster.client.call("tests.hosts.test_broker_cuts:write_acks_1", BROKERS[0], 7)
        assert acknowledged > 0
        cluster.client.call("tests.hosts.test_broker_cuts:write_acks_1", BROKERS[1], 3)
    (server,) = cluster.servers[:1]
    eventually(lambda: "truncating" in server.output, timeout=60)
    eventually(lambda: cluster.client.call("tests.hosts.test_broker_cuts:in_sync", BROKERS[1]) == 3, timeout=60)
    values = cluster.client.call("tests.hosts.test_broker_cuts:values", BROKERS[1])
    lost = acknowledged - values.count(f"by {BROKERS[0]}")
    assert lost == acknowledged
    assert values.count(f"by {BROKERS[1]}") == 3 * 3
    warned = re.findall(r"WARNING .*t-0: truncating (\d+) records of leader epochs (\d+) to (\d+)", server.output)
    assert warned == [(str(lost), "0", "0")]
    counted = cluster.client.run("curl", "-s", "b1:9404/metrics")
    assert re.findall(rf'^{TRUNCATED}{{topic="t"}} (\S+)$', counted, re.MULTILINE) == [f"{lost:.1f}"]


def leader(bootstrap: str) -> int:
    """Of partition 0."""
    with Requests(bootstrap) as client:
        return next(int(one.leader_id) for one in client.metadata("t").topics[0].partitions if not one.partition_index)


def in_sync(bootstrap: str) -> int:
    """Replicas of partition 0."""
    with Requests(bootstrap) as client:
        return next(len(one.isr_nodes) for one in client.metadata("t").topics[0].partitions if not one.partition_index)


def write_acks_1(bootstrap: str, batches: int) -> int:
    """How many records of partition 0 it acknowledged: three in each batch."""
    count = 0
    with Requests(bootstrap) as client:
        for _ in range(batches):
            value = b"by " + bootstrap.encode()
            answer: Any = client.produce({("t", 0): batch(value, value, value)}, acks=1)["t", 0]
            count += 0 if answer.error_code else 3
    return count


def values(bootstrap: str) -> list[str]:
    """Of partition 0."""
    with Requests(bootstrap) as client:
        found: list[bytes | None] = []
        while len(more := client.values("t", len(found))):
            found += more
    return [(value or b"").decode() for value in found]


def test_a_partial_cut_costs_one_change_of_the_isr_and_no_leader(cluster: Cluster) -> None:
    """Two brokers do not reach each other; both reach ZooKeeper. acks=all waits until the follower has lagged for
    replica.lag.time.max.ms (30 s)."""
    probe = cluster.probe(150)
    first, second, _ = cluster.hosts
    with cluster.network.cut_between(first, second):
        begun = time.time()
        eventually(lambda: Seen(probe).reached(BROKERS[2], 0, 2, begun) is not None, timeout=60)
        eventually(lambda: Seen(probe).reached(BROKERS[2], 1, 2, begun) is not None, timeout=60)
        shrunk = time.time()
        eventually(lambda: Seen(probe).outage_s(0, shrunk, time.time()) < time.time() - shrunk, timeout=30)
        time.sleep(5)
    healed = time.time()
    eventually(lambda: all(Seen(probe).reached(BROKERS[2], one, 3, healed) is not None for one in (0, 1)), timeout=60)
    seen = Seen(probe)
    assert seen.states_of(BROKERS[2], 0) == [State(1, 0, (1, 2, 3)), State(1, 0, (1, 3)), State(1, 0, (1, 3, 2))]
    assert seen.states_of(BROKERS[2], 1) == [State(2, 0, (2, 3, 1)), State(2, 0, (2, 3)), State(2, 0, (2, 3, 1))]
    assert seen.states_of(BROKERS[2], 2) == [State(3, 0, (3, 1, 2))]
    assert seen.outage_s(2, begun, healed) < 5
    assert seen.outage_s(0, begun, healed) < 45
